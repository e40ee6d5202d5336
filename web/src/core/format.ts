/** Numbers as people read them: three digits that matter, a unit, and a real minus sign. */

const THIN = "\u202f";

/** At most three digits that matter (or as many as asked); `padded` keeps trailing zeros, so that columns line up. */
export function digits(value: number, significant = 3, padded = false): string {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  const places = Math.min(Math.max(significant - 1 - size, 0), 6);
  const shown = value.toLocaleString("en-US", { minimumFractionDigits: padded ? places : 0, maximumFractionDigits: places });
  return shown.replace("-", "−").replaceAll(",", THIN);
}

export const whole = (value: number): string => digits(value, 12);

type Unit = readonly [factor: number, name: string];

function unitOf(us: number): Unit {
  if (Math.abs(us) >= 999_500) return [1e6, "s"];
  return Math.abs(us) >= 999.5 ? [1e3, "ms"] : [1, "µs"];
}

/** Microseconds in the unit that keeps the number short. */
export function time(us: number): string {
  const [factor, unit] = unitOf(us);
  return `${digits(us / factor, 3, true)}${THIN}${unit}`;
}

/** The same for the ticks of an axis: "10 ms", not "10.0 ms". */
export function tickTime(us: number): string {
  const [factor, unit] = unitOf(us);
  return `${digits(us / factor)}${THIN}${unit}`;
}

export const milliseconds = (ms: number): string => time(ms * 1e3);

/** "6.80 – 7.92 ms": the unit once where both ends share it. */
export function timeRange(low_us: number, high_us: number): string {
  const [[factor, unit], [, other]] = [unitOf(low_us), unitOf(high_us)];
  return `${unit === other ? digits(low_us / factor, 3, true) : time(low_us)} – ${time(high_us)}`;
}

export function percent(share: number): string {
  const value = share * 100;
  if (value > 0 && value < 0.05) return `<${THIN}0.1${THIN}%`;
  return `${value >= 99.95 ? value.toFixed(0) : value.toFixed(1)}${THIN}%`;
}

export function signedPercent(value: number): string {
  return `${value > 0 ? "+" : ""}${value.toFixed(1).replace("-", "−")}${THIN}%`;
}

export const gib = (value: number): string => `${digits(value, 3, true)}${THIN}GiB`;

export const bytes = (count: number): string => (count < 1e6 ? `${digits(count / 1e3)}${THIN}kB` : `${digits(count / 1e6)}${THIN}MB`);

export const usd = (value: number | null): string => (value === null ? "no price" : `$${value.toFixed(value < 10 ? 3 : 2)}`);

/** "silu_and_mul" → "silu and mul": names of the library as words. */
const NAMES: Record<string, string> = {
  gemm: "GEMM",
  mla: "MLA",
  fused_moe: "fused MoE",
  rmsnorm: "RMSNorm",
  silu_and_mul: "SiLU · mul",
  all_reduce: "all-reduce",
  all_gather: "all-gather",
  all_to_all: "all-to-all",
  reduce_scatter: "reduce-scatter",
  send_recv: "send/recv",
  dram: "DRAM",
  l2: "L2",
  smem: "shared memory",
  kv: "KV cache",
  kv_used: "KV used by this batch",
  kv_tokens: "KV tokens",
  xu: "special functions",
  fma: "FMA",
  tensor: "tensor cores",
  measured_gpu: "measured GPU",
};

export const word = (name: string): string => NAMES[name] ?? name.replaceAll("_", " ");
