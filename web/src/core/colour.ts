/** Okabe–Ito colours as CSS variables (style/theme.css gives each a light and a dark value). */

const SERIES = 8;

/** Colour of the n-th GPU of a picture. Shape, dash or a label says the same, so colour is never alone. */
export const seriesColour = (index: number): string => `series-${index % SERIES}`;

const FAMILY: Record<string, string> = {
  gemm: "blue",
  attention: "vermillion",
  mla: "vermillion",
  fused_moe: "purple",
  all_reduce: "green",
  all_gather: "green-soft",
  reduce_scatter: "green-soft",
  all_to_all: "green-soft",
  send_recv: "green-soft",
  rmsnorm: "sky",
  silu_and_mul: "orange",
  elementwise: "yellow",
  power_throttling: "grey-2",
  between_kernels: "grey-1",
  launch: "grey-3",
  host: "grey-4",
  gap: "grey-1",
};

const PIPE: Record<string, string> = {
  tensor: "blue",
  dram: "vermillion",
  l2: "orange",
  smem: "yellow",
  fma: "sky",
  xu: "purple",
  link: "green",
  launch: "grey-3",
  gap: "grey-1",
};

const FALLBACKS = ["sky", "orange", "green", "purple", "yellow"];

/** Names of colours; `fill` and `ink` turn them into CSS. */
export const familyColour = (name: string): string => named(FAMILY, name);
export const pipeColour = (name: string): string => named(PIPE, name);

export const fill = (colour: string): string => `var(--${colour})`;
/** Text that can be read on that colour. */
export const ink = (colour: string): string => `var(--on-${colour}, #111)`;

function named(table: Record<string, string>, name: string): string {
  const hashed = FALLBACKS[[...name].reduce((sum, letter) => sum + letter.charCodeAt(0), 0) % FALLBACKS.length];
  return table[name] ?? hashed ?? "grey-1";
}
