/** Axes: logarithmic for sizes and times, linear for shares and counts. */

import { scaleLinear, scaleLog } from "d3-scale";

import type { Axis } from "./frame";

type Span = readonly [number, number];

export function extent(values: Iterable<number>): [number, number] {
  let [low, high] = [Infinity, 0];
  for (const value of values) {
    if (!(value > 0 && value < Infinity)) continue; // nothing else has a place on a logarithmic axis
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return high > 0 ? [low, high] : [1, 10];
}

const widen = ([low, high]: Span, by: number): [number, number] => (low === high ? [low / 2, high * 2] : [low / by, high * by]);

/** Powers of two, as kernel sizes are. */
export function sizes(domain: Span, range: Span, title: string): Axis {
  const [low, high] = domain[0] === domain[1] ? [domain[0] / 2, domain[1] * 2] : domain;
  const scale = scaleLog([low, high], range as [number, number]);
  const first = Math.ceil(Math.log2(low) - 1e-9);
  const last = Math.floor(Math.log2(high) + 1e-9);
  const ticks = Array.from({ length: Math.max(last - first + 1, 0) }, (_, i) => 2 ** (first + i));
  return { at: scale, ticks: ticks.length > 1 ? ticks : [low, high], show: short, title };
}

const STEPS = [[1, 2, 5], [1, 3], [1]];

/** Powers of ten, with steps between them as far as their labels have room. */
export function decades(domain: Span, range: Span, title: string, show: (value: number) => string): Axis {
  const [low, high] = widen(domain, 1.12);
  const scale = scaleLog([low, high], range as [number, number]);
  const decade = Math.abs(range[1] - range[0]) / Math.log10(high / low);
  const upright = range[1] < range[0];
  const steps = STEPS.find((some) => decade * Math.log10(some[1] ?? 10) >= (upright ? 22 : 64)) ?? [1];
  const ticks: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) ticks.push(...steps.map((step) => step * 10 ** power));
  return { at: scale, ticks: ticks.filter((tick) => tick >= low && tick <= high), show, title };
}

export function linear(domain: Span, range: Span, title: string, show: (value: number) => string, count = 6): Axis {
  const scale = scaleLinear(domain as [number, number], range as [number, number]);
  return { at: scale, ticks: scale.ticks(count), show, title };
}

export function short(value: number): string {
  if (value >= 1 << 20 && Number.isInteger(Math.log2(value))) return `${value / (1 << 20)}Mi`;
  return value >= 1e6 ? `${Number((value / 1e6).toPrecision(3))}M` : String(Number(value.toPrecision(6)));
}
