/** Numbers as people read them: three digits that matter, a unit, and a real minus sign. */

const THIN = "\u202f";

export function digits(value: number, significant = 3): string {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  const places = Math.min(Math.max(significant - 1 - size, 0), 6);
  const shown = value.toLocaleString("en-US", { minimumFractionDigits: 0, maximumFractionDigits: places });
  return shown.replace("-", "−").replaceAll(",", THIN);
}

export const whole = (value: number): string => digits(value, 12);

/** Microseconds in the unit that keeps the number short. */
export function time(us: number, significant = 3): string {
  const size = Math.abs(us);
  if (size >= 999_500) return `${digits(us / 1e6, significant)}${THIN}s`;
  if (size >= 999.5) return `${digits(us / 1e3, significant)}${THIN}ms`;
  return `${digits(us, significant)}${THIN}µs`;
}

export const milliseconds = (ms: number, significant = 3): string => time(ms * 1e3, significant);

export function percent(share: number): string {
  const value = share * 100;
  return `${digits(value, Math.abs(value) < 10 ? 2 : 3)}${THIN}%`;
}

export function signedPercent(value: number): string {
  return `${value > 0 ? "+" : ""}${value.toFixed(1).replace("-", "−")}${THIN}%`;
}

export const gib = (value: number): string => `${digits(value)}${THIN}GiB`;

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
