/** The inputs of the views as they stand in the URL, and the questions they make. */

import { gpuOf, modelOf } from "../core/own";
import { type Schema, fields, list, number, oneOf, optional, text } from "../core/query";
import type { KernelFamily, KernelField, Scalar } from "../core/types";

export const ENGINES = ["vllm", "sglang", "trtllm"] as const;
export const PROTOCOLS = ["cold", "serving", "graph", "profiler_warm"] as const;

export interface PlanInputs {
  model: string;
  gpus: string[];
  input_len: number;
  output_len: number;
  ttft_ms: number | null;
  tpot_ms: number | null;
  /** Requests a second that the fleet must serve; null: what one replica serves. */
  rate: number | null;
  prefix_share: number;
  max_gpus: number;
  /** Lists to try; empty where the search chooses. */
  tp: string;
  pp: string;
  engines: string;
  kv: string;
  prices: Record<string, string>;
  x: "tpot_ms" | "ttft_ms";
  y: "tokens_per_s_per_gpu" | "usd_per_million_tokens";
  /** The chosen design, by its place on the front. */
  pick: number | null;
}

export const PLAN: Schema<PlanInputs> = {
  model: text("Llama-3.1-70B"),
  gpus: list(["H100", "H200", "B200", "L40S"]),
  input_len: number(2048),
  output_len: number(256),
  ttft_ms: optional(2000),
  tpot_ms: optional(40),
  rate: optional(),
  prefix_share: number(0),
  max_gpus: number(8),
  tp: text(""),
  pp: text(""),
  engines: text("vllm"),
  kv: text("auto"),
  prices: fields(),
  x: oneOf(["tpot_ms", "ttft_ms"], "tpot_ms"),
  y: oneOf(["tokens_per_s_per_gpu", "usd_per_million_tokens"], "tokens_per_s_per_gpu"),
  pick: optional(),
};

const some = <T,>(list: T[]): T[] | null => (list.length > 0 ? list : null);
const words = (said: string): string[] => said.split(",").map((word) => word.trim()).filter((word) => word !== "");
const numeric = (word: string): number | string => (word !== "" && Number.isFinite(Number(word)) ? Number(word) : word);

export function planBody(inputs: PlanInputs): Record<string, unknown> {
  const { input_len, output_len, ttft_ms, tpot_ms, rate, prefix_share, max_gpus } = inputs;
  const prices = Object.fromEntries(Object.entries(inputs.prices).map(([gpu, usd]) => [gpu, numeric(usd)])) as Record<string, unknown>;
  return {
    ...{ model: modelOf(inputs.model), gpus: inputs.gpus.map(gpuOf), prices, input_len, output_len, ttft_ms, tpot_ms, rate, prefix_share, max_gpus, rows: 60 },
    tp: some(words(inputs.tp).map(numeric)),
    pp: some(words(inputs.pp).map(numeric)),
    engines: some(words(inputs.engines)),
    kv_cache_dtypes: words(inputs.kv),
  };
}

export interface ServeInputs {
  model: string;
  gpu: string;
  tp: number;
  pp: number;
  ep: number;
  engine: string;
  kv_cache_dtype: string;
  batch: number;
  input_len: number;
  output_len: number;
  max_num_batched_tokens: number;
  dram_gbps: number | null;
  sms: number | null;
  l2_mb: number | null;
  boost_clock_mhz: number | null;
  step: "decode" | "prefill";
  /** One batch that arrives together, or requests over time. */
  load: "batch" | "traffic";
  arrivals: Arrivals;
  rate: number;
  concurrency: number;
  requests: number;
  spread: number;
  max_num_seqs: number | null;
  /** Ranks of attention data parallelism. */
  dp: number;
  /** Disaggregated: engines for prompts and for tokens, 0 of both for neither. */
  prefill_engines: number;
  decode_engines: number;
  /** The split of one pool's engines; null as the deployment's. */
  prefill_tp: number | null;
  prefill_ep: number | null;
  prefill_dp: number | null;
  decode_tp: number | null;
  decode_ep: number | null;
  decode_dp: number | null;
  drafts: Drafts;
  draft_tokens: number | null;
  acceptance: number | null;
  settled: "no" | "yes";
  trace: string;
  ttft_ms: number | null;
  tpot_ms: number | null;
  e2e_ms: number | null;
}

export const ARRIVALS = ["rate", "concurrency", "together", "trace"] as const;
export type Arrivals = (typeof ARRIVALS)[number];

export const DRAFTS = ["none", "mtp", "eagle3", "ngram"] as const;
export type Drafts = (typeof DRAFTS)[number];

export const SERVE: Schema<ServeInputs> = {
  model: text("Llama-3.1-8B"),
  gpu: text("H200"),
  tp: number(1),
  pp: number(1),
  ep: number(1),
  engine: text("vllm"),
  kv_cache_dtype: text("auto"),
  batch: number(32),
  input_len: number(2048),
  output_len: number(256),
  max_num_batched_tokens: number(8192),
  dram_gbps: optional(),
  sms: optional(),
  l2_mb: optional(),
  boost_clock_mhz: optional(),
  step: oneOf(["decode", "prefill"], "decode"),
  load: oneOf(["batch", "traffic"], "batch"),
  arrivals: oneOf(ARRIVALS, "rate"),
  rate: number(4),
  concurrency: number(32),
  requests: number(500),
  spread: number(0),
  max_num_seqs: optional(),
  dp: number(1),
  prefill_engines: number(0),
  decode_engines: number(0),
  prefill_tp: optional(),
  prefill_ep: optional(),
  prefill_dp: optional(),
  decode_tp: optional(),
  decode_ep: optional(),
  decode_dp: optional(),
  drafts: oneOf(DRAFTS, "none"),
  draft_tokens: optional(),
  acceptance: optional(),
  settled: oneOf(["no", "yes"], "no"),
  trace: text(""),
  ttft_ms: optional(),
  tpot_ms: optional(),
  e2e_ms: optional(),
};

export const POOL_SPLITS = ["prefill_tp", "prefill_ep", "prefill_dp", "decode_tp", "decode_ep", "decode_dp"] as const;

export const WHAT_IF = ["dram_gbps", "sms", "l2_mb", "boost_clock_mhz"] as const;

export function serveBody(inputs: ServeInputs): Record<string, unknown> {
  const { tp, pp, ep, engine, kv_cache_dtype, batch, input_len, output_len, max_num_batched_tokens } = inputs;
  return {
    ...{ model: modelOf(inputs.model), gpu: gpuOf(inputs.gpu), tp, pp, ep, engine, kv_cache_dtype },
    ...{ batch, input_len, output_len, max_num_batched_tokens, what_if: whatIf(inputs) },
  };
}

export const whatIf = (inputs: ServeInputs): Record<string, number> =>
  Object.fromEntries(WHAT_IF.flatMap((name) => (inputs[name] === null ? [] : [[name, inputs[name]]]))) as Record<string, number>;

export interface KernelInputs {
  kernel: string;
  case: Record<string, string>;
  field: string;
  from: number;
  to: number;
  points: number;
  scale: "log" | "linear";
  gpus: string[];
  protocol: string;
  layers: string[];
  /** A second swept field, "" for none. */
  y: string;
  y_from: number;
  y_to: number;
  y_points: number;
  y_scale: "log" | "linear";
  y_gpu: string;
}

export const KERNEL: Schema<KernelInputs> = {
  kernel: text("gemm"),
  case: fields(),
  field: text(""),
  from: number(1),
  to: number(8192),
  points: number(200),
  scale: oneOf(["log", "linear"], "log"),
  gpus: list(["H200", "L40S"]),
  protocol: text("cold"),
  layers: list(["band", "floor", "ceiling"]),
  y: text(""),
  y_from: number(128),
  y_to: number(8192),
  y_points: number(24),
  y_scale: oneOf(["log", "linear"], "log"),
  y_gpu: text(""),
};

/** The inputs of a family's example, when the URL says nothing of its fields. */
export function exampleInputs(family: KernelFamily): Partial<KernelInputs> {
  const { example } = family;
  if (!example) return { kernel: family.kernel, case: {}, field: family.sweeps[0] ?? "", y: "" };
  const { field, from, to } = example.sweep;
  return { kernel: family.kernel, case: shownCase(example.case), field, from, to, scale: "log", y: "" };
}

const shownCase = (given: Record<string, Scalar | number[]>): Record<string, string> =>
  Object.fromEntries(Object.entries(given).map(([name, value]) => [name, shown(value)]));

/** Lists as people write them: 32 times 2048 is "2048*32". */
export function shown(value: Scalar | number[]): string {
  if (!Array.isArray(value)) return value === null ? "" : String(value);
  const groups: [number, number][] = [];
  for (const one of value) {
    const last = groups.at(-1);
    if (last && last[0] === one) last[1] += 1;
    else groups.push([one, 1]);
  }
  return groups.map(([one, times]) => (times > 1 ? `${one}*${times}` : String(one))).join(",");
}

const MOST_ENTRIES = 65_536;

function read(field: KernelField, said: string): unknown {
  const listed = field.type === "ints" || (field.type === "routing" && /^[\d*,\s]+$/.test(said));
  if (listed) return words(said).flatMap(repeated);
  if (field.type === "int" || field.type === "float") return numeric(said);
  return field.type === "bool" ? said === "true" : said;
}

function repeated(word: string): (number | string)[] {
  const [value = "", times = "1"] = word.split("*");
  const count = Number(times);
  return Number.isInteger(count) && count > 0 && count <= MOST_ENTRIES ? Array<number | string>(count).fill(numeric(value)) : [word];
}

/** A swept number needs no value; a swept list still says how many requests there are. */
export const swept = (field: KernelField, name: string): boolean => field.name === name && field.type !== "ints";

export function kernelBody(inputs: KernelInputs, family: KernelFamily | undefined): Record<string, unknown> | null {
  if (!family || inputs.field === "") return null;
  return {
    kernel: inputs.kernel,
    case: caseOf(atFirstRow(inputs, family), family, [inputs.field]),
    sweep: { field: inputs.field, from: inputs.from, to: inputs.to, points: inputs.points, scale: inputs.scale },
    gpus: inputs.gpus.map(gpuOf),
    protocol: inputs.protocol,
  };
}

/** The curves under a heat map are those of its first row, where the field down the map has no size of its own. */
function atFirstRow(inputs: KernelInputs, family: KernelFamily): KernelInputs {
  const whole = family.fields.some((field) => field.name === inputs.y && field.type === "int");
  return whole && !inputs.case[inputs.y] ? { ...inputs, case: { ...inputs.case, [inputs.y]: String(inputs.y_from) } } : inputs;
}

/** Columns of a table over two fields at most; the curves have more points than a cell can show. */
const COLUMNS = 32;

export function gridBody(inputs: KernelInputs, family: KernelFamily | undefined): Record<string, unknown> | null {
  const gpu = inputs.gpus.includes(inputs.y_gpu) ? inputs.y_gpu : inputs.gpus[0];
  if (!family || inputs.field === "" || inputs.y === "" || gpu === undefined) return null;
  return {
    kernel: inputs.kernel,
    case: caseOf(inputs, family, [inputs.field, inputs.y]),
    x: { field: inputs.field, from: inputs.from, to: inputs.to, points: Math.min(inputs.points, COLUMNS), scale: inputs.scale },
    y: { field: inputs.y, from: inputs.y_from, to: inputs.y_to, points: inputs.y_points, scale: inputs.y_scale },
    gpu: gpuOf(gpu),
    protocol: inputs.protocol,
  };
}

function caseOf(inputs: KernelInputs, family: KernelFamily, varied: readonly string[]): Record<string, unknown> {
  const given = family.fields.flatMap((field) => {
    const said = inputs.case[field.name];
    return said === undefined || said === "" || varied.some((name) => swept(field, name)) ? [] : [[field.name, read(field, said)]];
  });
  return Object.fromEntries(given) as Record<string, unknown>;
}
