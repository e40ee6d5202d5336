/** Prices of one's own: a line a GPU, or a file with them (lines, CSV or one JSON object). */

import { useId, useState } from "preact/hooks";

import { Field } from "./form";

interface PricesProps {
  value: Record<string, string>;
  set: (prices: Record<string, string>) => void;
}

const MOST = 50_000;

export function PricesField({ value, set }: PricesProps) {
  const id = useId();
  const [draft, setDraft] = useState<string | null>(null);
  const [trouble, setTrouble] = useState("");
  const finish = (text: string): void => {
    const found = read(text);
    setTrouble(typeof found === "string" ? found : "");
    if (typeof found === "string") return;
    setDraft(null);
    set(found);
  };
  const chosen = async (file: File | undefined): Promise<void> => {
    if (!file) return;
    if (file.size > MOST) setTrouble(`${file.name} is larger than ${MOST / 1e3} kB.`);
    else finish(await file.text());
  };
  return (
    <>
      <Field label="USD an hour and GPU" name="prices" also={["price"]} hint="a line a GPU, such as H100 = 2.50">
        {(wiring) => <textarea {...wiring} rows={3} spellcheck={false} value={draft ?? written(value)} onInput={(event) => setDraft(event.currentTarget.value)} onChange={(event) => finish(event.currentTarget.value)} />}
      </Field>
      <div class="opener" data-opener="prices">
        <input id={id} class="hidden" type="file" accept=".csv,.json,.txt" onChange={(event) => void chosen(event.currentTarget.files?.[0])} />
        <label for={id} class="open-button">
          Open a file with prices
        </label>
        {trouble && (
          <p class="field-error" role="alert">
            {trouble}
          </p>
        )}
      </div>
    </>
  );
}

const written = (prices: Record<string, string>): string => Object.entries(prices).map(([gpu, usd]) => `${gpu} = ${usd}`).join("\n");

/** Prices of a text, or what is wrong with it; the server checks names and numbers. */
function read(text: string): Record<string, string> | string {
  if (text.trim().startsWith("{")) return fromJson(text);
  const out: Record<string, string> = {};
  for (const line of text.split("\n").map((one) => one.trim()).filter((one) => one !== "")) {
    const found = /^(.*\S)\s*[=:,\t]\s*(\S+)$/.exec(line);
    if (!found) return `“${line.slice(0, 60)}” is no price: write such as H100 = 2.50`;
    const [, gpu = "", usd = ""] = found;
    if (!(/^gpu$/i.test(gpu) && !Number.isFinite(Number(usd)))) out[gpu] = usd; // a header
  }
  return out;
}

function fromJson(text: string): Record<string, string> | string {
  try {
    return Object.fromEntries(Object.entries(JSON.parse(text) as object).map(([gpu, usd]) => [gpu, String(usd)]));
  } catch {
    return "The text begins as JSON and is none: an object such as {\"H100\": 2.5} is expected.";
  }
}
