/** Bars: parts of a whole stacked in a line with a legend that holds the numbers, and a number within an interval. */

import { scaleLinear } from "d3-scale";

import { fill, ink } from "../core/colour";
import { percent, word } from "../core/format";

export interface Part {
  name: string;
  value: number;
  colour: string;
}

interface StackProps {
  label: string;
  parts: readonly Part[];
  show: (value: number) => string;
  /** Length of the whole line when it is more than the sum of the parts. */
  whole?: number;
  /** The parts have an order of their own; otherwise the largest comes first. */
  ordered?: boolean;
}

/** Parts under this share are left out of the picture; the list below keeps them. */
const THIN = 0.004;

export function Stack({ label, parts, show, whole, ordered = false }: StackProps) {
  const some = parts.filter((part) => part.value !== 0);
  const seen = ordered ? some : some.sort((a, b) => b.value - a.value);
  const total = whole ?? sum(seen);
  const drawn = seen.filter((part) => part.value > 0); // what overlap saves is listed, and has no length
  return (
    <div class="stack">
      <StackLine label={label} parts={drawn} total={whole ?? sum(drawn)} show={show} />
      <ul class="legend-list">
        {seen.map((part) => (
          <li key={part.name}>
            <Swatch colour={part.colour} />
            <span class="legend-name">{word(part.name)}</span>
            <span class="legend-value">{show(part.value)}</span>
            <span class="legend-share">{percent(part.value / total)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

const sum = (parts: readonly Part[]): number => parts.reduce((total, part) => total + part.value, 0);

function StackLine({ label, parts, total, show }: { label: string; parts: readonly Part[]; total: number; show: (value: number) => string }) {
  const visible = parts.filter((part) => part.value / total >= THIN);
  return (
    <div class="stack-line" role="img" aria-label={`${label}: ${visible.map((p) => `${word(p.name)} ${percent(p.value / total)}`).join(", ")}`}>
      {visible.map((part) => (
        <span
          key={part.name}
          style={{ flexGrow: String(part.value / total), background: fill(part.colour), color: ink(part.colour) }}
          title={`${word(part.name)}: ${show(part.value)}, ${percent(part.value / total)}`}
        >
          {part.value / total > 0.14 && <b>{word(part.name)}</b>}
        </span>
      ))}
    </div>
  );
}

export const Swatch = ({ colour }: { colour: string }) => <i class="swatch" style={{ background: fill(colour) }} aria-hidden="true" />;

/** A point with its 90 % interval on a scale that starts at zero. */
export function Interval({ value, low, high, most }: { value: number; low: number; high: number; most: number }) {
  const x = scaleLinear([0, most], [0, 100]);
  return (
    <svg class="interval" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
      <rect x="0" y="3" width="100" height="2" class="interval-track" />
      <rect x={x(low)} y="1" width={Math.max(x(high) - x(low), 0.6)} height="6" class="interval-range" />
      <rect x={x(value) - 0.6} y="0" width="1.2" height="8" class="interval-point" />
    </svg>
  );
}

/** A share of a row's largest value, for ranked tables. */
export function Meter({ value, of, colour }: { value: number; of: number; colour: string }) {
  return (
    <span class="meter" aria-hidden="true">
      <i style={{ width: `${(100 * value) / (of || 1)}%`, background: fill(colour) }} />
    </span>
  );
}
