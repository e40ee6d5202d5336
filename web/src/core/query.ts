/** Inputs as a query string and back: one codec a field; what cannot be read falls back to the default. */

import { useCallback, useEffect, useMemo, useRef } from "preact/hooks";

import { go, usePlace } from "./route";

export interface Codec<T> {
  fallback: T;
  read(text: string): T | undefined;
  write(value: T): string;
}

export type Schema<T> = { [K in keyof T]: Codec<T[K]> };

export const text = (fallback: string): Codec<string> => ({ fallback, read: (t) => t, write: (v) => v });

export const number = (fallback: number): Codec<number> => ({
  fallback,
  read: (t) => (t.trim() !== "" && Number.isFinite(Number(t)) ? Number(t) : undefined),
  write: String,
});

/** A number that may be absent: a limit not set, a GPU field not changed. */
export const optional = (fallback: number | null = null): Codec<number | null> => ({
  fallback,
  read: (t) => (t.trim() === "" ? null : Number.isFinite(Number(t)) ? Number(t) : undefined),
  write: (v) => (v === null ? "" : String(v)),
});

export const oneOf = <T extends string>(choices: readonly T[], fallback: T): Codec<T> => ({
  fallback,
  read: (t) => choices.find((choice) => choice === t),
  write: (v) => v,
});

export const list = (fallback: readonly string[]): Codec<string[]> => ({
  fallback: [...fallback],
  read: (t) => t.split(",").filter((word) => word !== ""),
  write: (v) => v.join(","),
});

/** Fields whose names only the server knows (a kernel's): "n:4096;k:4096". */
export const fields = (): Codec<Record<string, string>> => ({
  fallback: {},
  read: (t) => Object.fromEntries(t.split(";").flatMap((pair) => (pair.includes(":") ? [split(pair)] : []))),
  write: (v) => Object.entries(v).map(([name, value]) => `${name}:${value}`).join(";"),
});

function split(pair: string): [string, string] {
  const at = pair.indexOf(":");
  return [pair.slice(0, at), pair.slice(at + 1)];
}

export function readQuery<T extends object>(schema: Schema<T>, query: string): T {
  const given = new URLSearchParams(query);
  const out = {} as T;
  for (const key of Object.keys(schema) as (keyof T & string)[]) {
    const said = given.get(key);
    const read = said === null ? undefined : schema[key].read(said);
    out[key] = read === undefined ? schema[key].fallback : read;
  }
  return out;
}

export function writeQuery<T extends object>(schema: Schema<T>, value: T): string {
  const out = new URLSearchParams();
  for (const key of Object.keys(schema) as (keyof T & string)[]) out.set(key, schema[key].write(value[key]));
  return "?" + out.toString().replace(/%2C|%3A|%3B/g, decodeURIComponent);
}

export interface How {
  /** A slider on its way: the whole drag leaves one step in the history. */
  passing?: boolean;
  /** Filled in by the page, not by the user: no step in the history. */
  replace?: boolean;
}

export type Change<T> = (part: Partial<T>, how?: How) => void;

/** Changes of one input closer than this are one step in the history: "1", "12", "128". */
const TYPING_MS = 1000;

/** The inputs of a view, read from the URL; changing them changes the URL. */
export function useInputs<T extends object>(path: string, schema: Schema<T>): [T, Change<T>] {
  const place = usePlace();
  const value = useMemo(() => readQuery(schema, place.query), [schema, place.query]);
  useEffect(() => go(path, writeQuery(schema, readQuery(schema, location.search)), true), [path, schema]);
  const last = useRef({ names: "", at: -Infinity, passing: false });
  const change = useCallback<Change<T>>(
    (part, how = {}) => {
      const next = { ...readQuery(schema, location.search), ...part };
      const names = Object.keys(part).join();
      const typing = names === last.current.names && performance.now() - last.current.at < TYPING_MS;
      go(path, writeQuery(schema, next), how.replace === true || last.current.passing || typing);
      last.current = { names, at: performance.now(), passing: how.passing === true };
    },
    [path, schema],
  );
  return [value, change];
}
