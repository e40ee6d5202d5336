/** Opening files of one's own: chosen, or pasted as text; what the server says of them stands beside. */

import { useId, useState } from "preact/hooks";

import { ApiError } from "../core/api";
import { type OwnFile, openGpu, openModel } from "../core/own";
import { Group } from "./form";

interface OpenerProps {
  label: string;
  accept: string;
  /** Name of a pasted text. */
  pasted: string;
  /** Characters at most. */
  most: number;
  open: (own: OwnFile) => Promise<[string, string]>;
  set: (name: string) => void;
}

interface Said {
  good: boolean;
  text: string;
}

export function Opener({ label, accept, pasted, most, open, set }: OpenerProps) {
  const id = useId();
  const [said, say] = useState<Said | null>(null);
  const [text, setText] = useState("");
  const take = async (own: OwnFile): Promise<void> => {
    try {
      const [name, words] = await open(own);
      say({ good: true, text: words });
      set(name);
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      say({ good: false, text: problem.message });
    }
  };
  const chosen = async (file: File | undefined): Promise<void> => {
    if (!file) return;
    if (file.size > most) say({ good: false, text: `${file.name} is larger than ${most / 1e3} kB.` });
    else await take({ file: file.name, text: await file.text() });
  };
  return (
    <div class="opener" data-opener={pasted}>
      <input id={id} class="hidden" type="file" accept={accept} onChange={(event) => void chosen(event.currentTarget.files?.[0])} />
      <label for={id} class="open-button">
        {label}
      </label>
      <details>
        <summary>or paste its text</summary>
        <textarea aria-label={`Text: ${label}`} rows={5} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <button type="button" class="more" disabled={text.trim() === "" || text.length > most} onClick={() => void take({ file: pasted, text })}>
          Use this text
        </button>
      </details>
      {said && (
        <p class={said.good ? "hint" : "field-error"} role={said.good ? "status" : "alert"}>
          {said.text}
        </p>
      )}
    </div>
  );
}

const MODEL_CHARACTERS = 900_000;
const GPU_CHARACTERS = 100_000;

interface OwnProps {
  model?: (name: string) => void;
  gpu?: (name: string) => void;
}

/** The group of every view that takes a model or a GPU. */
export function OwnFiles({ model, gpu }: OwnProps) {
  return (
    <Group title="Own files" open={false}>
      {model && <Opener label="Open a config.json" accept=".json" pasted="pasted.json" most={MODEL_CHARACTERS} open={openModel} set={model} />}
      {gpu && <Opener label="Open a GPU's spec file" accept=".yaml,.yml,.json" pasted="pasted.yaml" most={GPU_CHARACTERS} open={openGpu} set={gpu} />}
      <p class="hint">They stay in this page and in its link, where they are short: the server on this machine reads them for each answer and keeps none.</p>
    </Group>
  );
}
