/** Several GPUs as removable chips with a list to add from. */

import { useList } from "../core/latest";
import { called, useOwn } from "../core/own";
import type { Gpu } from "../core/types";
import { Field } from "./form";

interface GpusProps {
  value: readonly string[];
  set: (value: string[]) => void;
  most: number;
}

export function Gpus({ value, set, most }: GpusProps) {
  const known = useList<Gpu>("/api/gpus");
  const own = useOwn().gpus.filter(({ key }) => !value.includes(key));
  const rest = known.filter((gpu) => !value.includes(gpu.name));
  return (
    <Field label="GPUs" name="gpus" also={["gpu"]} hint={value.length >= most ? `At most ${most} at once` : undefined}>
      {(wiring) => (
        <>
          <ul class="chips">
            {value.map((name) => (
              <li key={name}>
                <button type="button" aria-label={`Remove ${called(name)}`} onClick={() => set(value.filter((one) => one !== name))}>
                  {called(name)} <span aria-hidden="true">×</span>
                </button>
              </li>
            ))}
          </ul>
          <select {...wiring} value="" disabled={value.length >= most} onChange={(event) => add(event.currentTarget, value, set)}>
            <option value="">Add a GPU…</option>
            {own.map(({ key }) => (
              <option key={key} value={key}>
                {called(key)}
              </option>
            ))}
            {groups(rest).map(([architecture, gpus]) => (
              <optgroup key={architecture} label={architecture}>
                {gpus.map((gpu) => (
                  <option key={gpu.name} value={gpu.name}>
                    {gpu.name} · {gpu.dram_gb} GB
                  </option>
                ))}
              </optgroup>
            ))}
          </select>
        </>
      )}
    </Field>
  );
}

function add(select: HTMLSelectElement, value: readonly string[], set: (value: string[]) => void): void {
  const name = select.value;
  select.value = "";
  if (name) set([...value, name]);
}

export function groups(gpus: readonly Gpu[]): [string, Gpu[]][] {
  const out = new Map<string, Gpu[]>();
  for (const gpu of gpus) out.set(gpu.architecture, [...(out.get(gpu.architecture) ?? []), gpu]);
  return [...out.entries()];
}
