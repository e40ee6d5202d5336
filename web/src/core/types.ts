/** What the API answers: the dictionaries that the commands print with --json. */

export interface Gpu {
  name: string;
  architecture: string;
  sms: number;
  boost_clock_mhz: number;
  dram_gb: number;
  dram_gbps: number;
  l2_mb: number;
  usd_per_hour: number | null;
}

export interface Model {
  name: string;
  layers: number;
  parameters: number;
  weights_gib: number;
}

/** One part of a layer, as one rank holds it. */
export interface ModelPart {
  name: string;
  shape: string;
  precision: string;
  parameters: number;
  weight_bytes: number;
  flops: number;
  kv_bytes: number;
  state_bytes: number;
  detail: string;
}

/** A model as kinds of layers: `pattern` says how they follow one another. */
export interface ModelAnswer {
  model: string;
  parameters: number;
  active_parameters: number;
  model_type: string;
  layers: number;
  weights_gib_per_gpu: number;
  kv_bytes_per_token_per_gpu: number;
  state_bytes_per_sequence_per_gpu: number;
  kv_dtype: string;
  notes: string[];
  pattern: string;
  blocks: { letter: string; layers: string; count: number; parts: ModelPart[] }[];
  command: string;
}

export type Scalar = string | number | boolean | null;

export interface KernelField {
  name: string;
  type: "int" | "float" | "bool" | "str" | "ints" | "routing" | "config";
  default: Scalar | number[];
  required: boolean;
  choices: string[] | null;
}

export interface Sweep {
  field: string;
  from: number;
  to: number;
  scale?: "linear" | "log";
}

export interface KernelFamily {
  kernel: string;
  help: string;
  fields: KernelField[];
  sweeps: string[];
  example: { case: Record<string, Scalar | number[]>; sweep: Sweep } | null;
}

/** The shell command that gives the same numbers, where there is one. */
export interface Answer {
  command: string | null;
}

export interface Series {
  gpu: string;
  latency_us: number[];
  low_us: number[];
  high_us: number[];
  floor_us: number[];
  ceiling_us: number[];
  bound: string[];
  basis: string[];
  impl: string[];
  stack: string[];
  notes: string[];
  waves: number[] | null;
}

/** A GPU that cannot run the call says why. */
export interface NoSeries {
  gpu: string;
  error: { code: string; field: string | null; message: string };
}

export interface TunerChoices {
  gpu: string;
  kernel: string;
  runs: { from: number; to: number; config: Record<string, number>; waves: [number, number] }[];
}

export interface KernelAnswer extends Answer {
  kernel: string;
  field: string;
  protocol: string;
  x: number[];
  series: (Series | NoSeries)[];
  tuner: TunerChoices[] | null;
}

export type Parts = Record<string, number>;

export interface StepPart {
  name: string;
  family: string;
  count: number;
  start_us: number;
  duration_us: number;
  each_us: number;
  bound: string;
  basis: string;
  kernels: number;
}

export interface StepDetail {
  total_us: number;
  low_us: number;
  high_us: number;
  requests: number;
  tokens: number;
  parts: StepPart[];
}

export interface ServeAnswer extends Answer {
  model: string;
  gpu: string;
  engine: string;
  gpus: number;
  prefill_ms: number;
  prefill_ms_low: number;
  prefill_ms_high: number;
  tpot_ms: number;
  tpot_ms_low: number;
  tpot_ms_high: number;
  e2e_ms: number;
  e2e_ms_low: number;
  e2e_ms_high: number;
  output_tokens_per_s: number;
  power_w: number;
  power_w_low: number;
  power_w_high: number;
  energy_j_per_output_token: number;
  energy_j_per_output_token_low: number;
  energy_j_per_output_token_high: number;
  memory_gib: Parts;
  breakdown: { prefill_ms: Parts; decode_step_ms: Parts };
  basis: Parts;
  notes: string[];
  pipes: { prefill: Parts; decode: Parts };
  timeline: { prefill: StepDetail; decode: StepDetail };
}

/** Means over equal stretches of a run; `time_s` is the end of each. */
export interface RunOverTime {
  time_s: number[];
  running: number[];
  waiting: number[];
  kv_share: number[];
  output_tokens_per_s: number[];
  power_w: number[];
}

/** Percentiles stand beside under names such as `ttft_p99_ms` and `ttft_p99_ms_low`. */
export interface TrafficAnswer extends Answer {
  model: string;
  gpu: string;
  engine: string;
  gpus: number;
  kv_tokens: number;
  requests: number;
  figures_of: number;
  requests_per_s: number;
  output_tokens_per_s: number;
  output_tokens_per_s_per_gpu: number;
  goodput_per_s: number;
  good_share: number;
  preemptions: number;
  steps: number;
  busy_share: number;
  power_w: number;
  energy_j_per_output_token: number;
  where: { ttft_ms: Parts; tpot_ms?: Parts };
  timeline: RunOverTime;
  basis: Parts;
  notes: string[];
}

/** A kernel over two fields: tables by row (y) and column (x). */
export interface GridAnswer extends Answer {
  kernel: string;
  gpu: string;
  protocol: string;
  x_field: string;
  y_field: string;
  x: number[];
  y: number[];
  latency_us: number[][];
  low_us: number[][];
  high_us: number[][];
  floor_us: number[][];
  ceiling_us: number[][];
  bound: string[][];
  basis: string[][];
  notes: string[];
}

export interface Design {
  gpu: string;
  gpus: number;
  /** `one`, or how many of which split where prompts have engines of their own: `3 tp1 + 1 tp1`. */
  engines: string;
  tp: number;
  pp: number;
  ep: number;
  /** `none`, or how tokens are drafted. */
  drafts: string;
  engine: string;
  kv_dtype: string;
  max_num_seqs: number;
  max_num_batched_tokens: number;
  dp: number;
  replicas: number;
  requests: number;
  requests_per_s: number;
  ttft_ms: number;
  ttft_ms_low: number;
  ttft_ms_high: number;
  tpot_ms: number;
  tpot_ms_low: number;
  tpot_ms_high: number;
  e2e_ms: number;
  tokens_per_s_per_gpu: number;
  tokens_per_s_per_user: number;
  usd_per_million_tokens: number | null;
  /** Mean of one GPU's board, and joules of all boards for an output token. */
  power_w: number;
  energy_j_per_output_token: number;
  /** `perhaps` where the 90 % interval of a time straddles its limit. */
  sure: "yes" | "perhaps";
  meets?: boolean;
}

export interface Refusal {
  why: string;
  splits: string[];
}

export interface Price {
  gpu: string;
  usd_per_hour: number;
  provider: string;
  date: string;
  verified: boolean;
}

export interface Elasticity {
  more: string;
  ttft_ms_change_percent: number;
  tpot_ms_change_percent: number;
  tokens_per_s_per_gpu_change_percent: number;
}

/** Replicas of the winner for the rate that is asked for. */
export interface Fleet {
  replicas: number;
  gpus: number;
  requests_per_s: number;
  requests_per_s_per_replica: number;
  usd_per_hour: number | null;
  usd_per_month: number | null;
  usd_per_million_output_tokens: number | null;
  usd_per_million_input_tokens: number | null;
  utilisation: number;
  headroom: number;
}

export interface PlanAnswer extends Answer {
  model: string;
  designs: number;
  meet_the_limits: number;
  winner: Design | null;
  fleet: Fleet | null;
  launch: string | null;
  launches: string[];
  elasticities: Elasticity[];
  front: Design[];
  best_by_gpu: Design[];
  all: Design[];
  does_not_fit: Refusal[];
  without_price: string[];
  prices: Price[];
  notes: string[];
}

export interface TraceCall {
  family: string;
  name: string;
  count: number;
  measured_us: number;
  latency_us: number;
  low_us: number;
  high_us: number;
  floor_us: number;
  ceiling_us: number;
  recoverable_us: number;
  total_measured_us: number;
  total_recoverable_us: number;
  bound: string;
  basis: string;
  shaped: boolean;
  note: string;
  counted: boolean;
  call: Record<string, unknown>;
  kernels: string[];
}

export interface LeftOver {
  family: string | null;
  name: string;
  count: number;
  total_measured_us: number;
}

/** GPU time of a leaf: kind of step, layer where known, operator and kernel from the outside in. */
export interface FlameRow {
  path: string[];
  family: string | null;
  count: number;
  measured_us: number;
  predicted_us: number | null;
  counted: boolean;
}

/** Time of calls put together by operator or by layer. */
export interface Grouped {
  name: string;
  calls: number;
  measured_us: number;
  predicted_us: number | null;
  recoverable_us: number;
}

export interface Idle {
  span_us: number;
  busy_us: number;
  idle_us: number;
  causes: Parts;
  gaps: { start_us: number; idle_us: number; cause: string; after: string; before: string }[];
}

export interface Loss {
  cause: string;
  us: number;
  share: number;
  what: string;
  action: string;
}

export interface TraceAnswer extends Answer {
  headline: string[];
  losses: Loss[];
  source: string;
  gpu: string;
  protocol: string;
  gpu_us: number;
  recognized_share: number;
  shaped_share: number;
  close_share: number;
  recoverable_us: number;
  assumed_recoverable_us: number;
  calls: TraceCall[];
  unshaped: LeftOver[];
  unrecognized: LeftOver[];
  flame?: FlameRow[];
  by_operator?: Grouped[];
  by_layer?: Grouped[];
  idle?: Idle | null;
  notes: string[];
}

/** Two traces, call by call; times are of one step where the traces name their steps. */
export interface TraceComparison extends Answer {
  a: TraceAnswer;
  b: TraceAnswer;
  by_step: boolean;
  changes: { family: string; name: string; count_a: number; count_b: number; a_us: number; b_us: number; change_us: number; predicted_a_us: number | null; predicted_b_us: number | null }[];
}
