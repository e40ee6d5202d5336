/** Two deployments under one load, as they stand in the URL, and the questions they make. */

import { type Schema, number, oneOf, readQuery, text, writeQuery } from "../core/query";
import { SERVE, type ServeInputs, serveBody } from "./inputs";
import { trafficBody } from "./traffic-inputs";

export const SIDES = ["a", "b"] as const;
export type Side = (typeof SIDES)[number];
export const DEPLOYED = ["model", "gpu", "tp", "pp", "ep", "engine", "kv_cache_dtype", "max_num_batched_tokens"] as const;
type Deployed = Pick<ServeInputs, (typeof DEPLOYED)[number]>;
type Sided<S extends Side> = { [K in keyof Deployed as `${S}_${K}`]: Deployed[K] };

/** What both sides are asked for. */
export const SHARED = ["load", "batch", "input_len", "output_len", "arrivals", "rate", "concurrency", "requests"] as const;
export type CompareInputs = Sided<"a"> & Sided<"b"> & Pick<ServeInputs, (typeof SHARED)[number]>;

const deployed = (gpu: string): Schema<Deployed> => ({
  model: text("Llama-3.1-8B"),
  gpu: text(gpu),
  tp: number(1),
  pp: number(1),
  ep: number(1),
  engine: text("vllm"),
  kv_cache_dtype: text("auto"),
  max_num_batched_tokens: number(8192),
});

const sided = <S extends Side>(side: S, gpu: string): Schema<Sided<S>> =>
  Object.fromEntries(Object.entries(deployed(gpu)).map(([name, codec]) => [`${side}_${name}`, codec])) as unknown as Schema<Sided<S>>;

export const COMPARE: Schema<CompareInputs> = {
  ...sided("a", "H200"),
  ...sided("b", "H100"),
  load: SERVE.load,
  batch: SERVE.batch,
  input_len: SERVE.input_len,
  output_len: SERVE.output_len,
  arrivals: oneOf(["rate", "concurrency"], "rate"),
  rate: SERVE.rate,
  concurrency: SERVE.concurrency,
  requests: SERVE.requests,
};

/** The inputs of one side, as Serve has them. */
export function sideOf(inputs: CompareInputs, side: Side): ServeInputs {
  const own = Object.fromEntries(DEPLOYED.map((name) => [name, inputs[`${side}_${name}`]]));
  const shared = Object.fromEntries(SHARED.map((name) => [name, inputs[name]]));
  return { ...readQuery(SERVE, ""), ...own, ...shared };
}

export const sideBody = (inputs: CompareInputs, side: Side): Record<string, unknown> | null =>
  inputs.load === "traffic" ? trafficBody(sideOf(inputs, side)) : serveBody(sideOf(inputs, side));

/** From a deployment of Serve: it stands on both sides, for one of them to be changed. */
export function compareQuery(inputs: ServeInputs): string {
  const both = Object.fromEntries(SIDES.flatMap((side) => DEPLOYED.map((name) => [`${side}_${name}`, inputs[name]])));
  const shared = Object.fromEntries(SHARED.map((name) => [name, inputs[name]]));
  const arrivals = inputs.arrivals === "concurrency" ? "concurrency" : "rate";
  return writeQuery(COMPARE, { ...readQuery(COMPARE, ""), ...both, ...shared, arrivals });
}

export const serveQuery = (inputs: CompareInputs, side: Side): string => writeQuery(SERVE, sideOf(inputs, side));
