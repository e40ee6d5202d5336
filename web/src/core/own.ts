/** Files of one's own, kept by this page until it is closed; each question sends along those that it names. Those of
 * models and GPUs also stand in the fragment of the address where they are short enough, so that a link holds them. */

import { useLayoutEffect, useState } from "preact/hooks";

import { ask } from "./api";
import { digits } from "./format";
import type { Gpu, ModelAnswer } from "./types";

export interface OwnFile {
  file: string;
  text: string;
}

/** Begins the name of an own file where a model's or GPU's name stands: in inputs and in the page's address. */
const OPEN = "file:";

const models = new Map<string, OwnFile>();
const gpus = new Map<string, OwnFile & { numbers?: Gpu }>();
const traces = new Map<string, OwnFile>();
const heard = new Set<() => void>();

const notify = (): void => heard.forEach((listener) => listener());

/** What a question holds in place of the name: the file, or the name itself where no such file is open. */
export const modelOf = (name: string): string | OwnFile => sent(models, name);
export const gpuOf = (name: string): string | OwnFile => sent(gpus, name);
export const traceOf = (name: string): OwnFile | undefined => bare(traces.get(name));

const sent = (files: Map<string, OwnFile>, name: string): string | OwnFile => bare(files.get(name)) ?? name;
const bare = (one: OwnFile | undefined): OwnFile | undefined => one && { file: one.file, text: one.text };

/** Characters of files that an address holds; browsers copy and open links of this length. */
const LINKED = 24_000;
const FRAGMENT = "#own=";

type Kept = Record<"models" | "gpus", [string, OwnFile][]>;

/** JSON without its spaces; any other text as it is. */
const short = ({ file, text }: OwnFile): OwnFile => {
  try {
    return { file, text: JSON.stringify(JSON.parse(text)) };
  } catch {
    return { file, text };
  }
};

/** Puts the open files into the fragment, or none where they are too long. */
function link(): void {
  const kept: Kept = { models: [...models].map(([key, one]) => [key, short(one)]), gpus: [...gpus].map(([key, one]) => [key, short(one)]) };
  const bytes = new TextEncoder().encode(JSON.stringify(kept));
  const packed = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const fragment = packed.length <= LINKED ? FRAGMENT + packed.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "") : "";
  history.replaceState(null, "", location.pathname + location.search + fragment);
}

/** Opens the files that the address holds; a damaged fragment holds none. */
function unlink(): void {
  if (!location.hash.startsWith(FRAGMENT)) return;
  try {
    const packed = atob(location.hash.slice(FRAGMENT.length).replaceAll("-", "+").replaceAll("_", "/"));
    const kept = JSON.parse(new TextDecoder().decode(Uint8Array.from(packed, (letter) => letter.charCodeAt(0)))) as Kept;
    for (const [key, { file, text }] of kept.models) models.set(key, { file, text });
    for (const [key, { file, text }] of kept.gpus) {
      gpus.set(key, { file, text });
      void ask<Gpu>("/api/gpu", { gpu: { file, text } }).then((numbers) => {
        gpus.set(key, { file, text, numbers });
        notify();
      });
    }
  } catch {
    return;
  }
}

/** Reads a config.json; the name to choose the model by, and what it is in words. Raises ApiError as the server says. */
export async function openModel(own: OwnFile): Promise<[string, string]> {
  const found = await ask<ModelAnswer>("/api/model", { model: own });
  models.set(OPEN + own.file, own);
  link();
  notify();
  return [OPEN + own.file, `${found.model}: ${digits(found.parameters / 1e9)} B parameters, layers ${found.pattern}`];
}

/** Reads a GPU's spec file; likewise. */
export async function openGpu(own: OwnFile): Promise<[string, string]> {
  const numbers = await ask<Gpu>("/api/gpu", { gpu: own });
  gpus.set(OPEN + own.file, { ...own, numbers });
  link();
  notify();
  return [OPEN + own.file, `${numbers.name}: ${digits(numbers.sms)} SMs, ${digits(numbers.dram_gbps, 4)} GB/s, ${digits(numbers.dram_gb)} GB`];
}

/** Keeps a trace of requests, which the server reads when it is asked. */
export async function openTrace(own: OwnFile): Promise<[string, string]> {
  traces.set(OPEN + own.file, own);
  notify();
  return Promise.resolve([OPEN + own.file, `${own.file}: ${digits(own.text.length / 1e3)} kB`]);
}

export interface Own {
  models: string[];
  gpus: { key: string; numbers: Gpu }[];
}

/** Names of the open files, and another picture whenever one is opened. */
export function useOwn(): Own {
  const [, again] = useState(0);
  useLayoutEffect(() => {
    const listener = (): void => again((count) => count + 1);
    heard.add(listener);
    return () => void heard.delete(listener);
  }, []);
  return { models: [...models.keys()], gpus: [...gpus].flatMap(([key, { numbers }]) => (numbers ? [{ key, numbers }] : [])) };
}

/** "file:mine.yaml" as people call it. */
export const called = (name: string): string => (name.startsWith(OPEN) ? name.slice(OPEN.length) : name);

unlink();
