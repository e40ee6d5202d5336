/** A table of numbers as a heat map: one cell a pair of sizes, read with the pointer or the arrow keys. */

import { useMemo, useState } from "preact/hooks";

import { Frame, plotBox, spanX, spanY, useWidth } from "./frame";
import { extent, short } from "./scales";
import { Surface } from "./surface";

interface HeatProps {
  xs: readonly number[];
  ys: readonly number[];
  /** By row (y) and column (x). */
  values: readonly (readonly number[])[];
  x: string;
  y: string;
  /** Colours follow the logarithm. */
  log: boolean;
  show: (value: number) => string;
  label: string;
}

interface Place {
  row: number;
  column: number;
}

export function Heat({ xs, ys, values, x, y, log, show, label }: HeatProps) {
  const [holder, width] = useWidth();
  const [asked, set] = useState<Place>({ row: 0, column: 0 });
  const place = { row: Math.min(asked.row, ys.length - 1), column: Math.min(asked.column, xs.length - 1) };
  const box = plotBox(width, Math.min(Math.max(width * 0.55, 220), 420), { left: 62 });
  const [left, right] = spanX(box);
  const [bottom, top] = spanY(box);
  const [wide, high] = [(right - left) / xs.length, (bottom - top) / ys.length];
  const ends = useMemo(() => extent(values.flat()), [values]);
  const cells = useMemo(
    () => values.flatMap((row, i) => row.map((value, j) => <rect key={`${i} ${j}`} x={left + j * wide} y={bottom - (i + 1) * high} width={wide + 0.5} height={high + 0.5} fill={shade(value, ends, log)} />)),
    [values, ends, log, left, bottom, wide, high],
  );
  const value = values[place.row]?.[place.column] ?? 0;
  const said = `${x} ${short(xs[place.column] ?? 0)}, ${y} ${short(ys[place.row] ?? 0)}: ${show(value)}`;
  const point = (event: PointerEvent): void => {
    const frame = (event.currentTarget as SVGElement).getBoundingClientRect();
    const [column, row] = [Math.floor(((event.clientX - frame.left) / frame.width) * xs.length), Math.floor(((frame.bottom - event.clientY) / frame.height) * ys.length)];
    set({ row: clamp(row, ys.length), column: clamp(column, xs.length) });
  };
  const key = (event: KeyboardEvent): void => {
    const [down, across] = MOVES[event.key] ?? [0, 0];
    if (!down && !across) return;
    event.preventDefault();
    set({ row: clamp(place.row + down, ys.length), column: clamp(place.column + across, xs.length) });
  };
  const axisX = { at: (index: number) => left + (index + 0.5) * wide, ticks: xs.map((_, i) => i), show: (index: number) => short(xs[index] ?? 0), title: x };
  const axisY = { at: (index: number) => bottom - (index + 0.5) * high, ticks: ys.map((_, i) => i), show: (index: number) => short(ys[index] ?? 0), title: y };
  return (
    <div ref={holder}>
      <output class="heat-value">{said}</output>
      <Frame box={box} label={`Heat map of ${label}`} x={axisX} y={axisY} interactive>
        {cells}
        <rect class="heat-cell" x={left + place.column * wide} y={bottom - (place.row + 1) * high} width={wide} height={high} />
        <Surface
          box={box}
          label={`Read the heat map of ${label}`}
          text={said}
          index={place.row * xs.length + place.column}
          places={xs.length * ys.length}
          onPoint={point}
          onKey={key}
        />
      </Frame>
      <Ramp ends={ends} show={show} />
    </div>
  );
}

const clamp = (index: number, size: number): number => Math.min(Math.max(index, 0), size - 1);
const MOVES: Record<string, readonly [number, number]> = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };

/** From the card's own colour to the strongest: the larger, the darker (lighter in the dark theme). */
function shade(value: number, [low, high]: readonly [number, number], log: boolean): string {
  const span = log ? Math.log(high / low) : high - low;
  const share = span > 0 ? (log ? Math.log(Math.max(value, low) / low) : value - low) / span : 0;
  return mixed(Math.min(Math.max(share, 0), 1));
}

const mixed = (share: number): string => `color-mix(in oklab, var(--heat-high) ${(100 * share).toFixed(1)}%, var(--heat-low))`;
const STEPS = [0, 0.25, 0.5, 0.75, 1];

function Ramp({ ends, show }: { ends: readonly [number, number]; show: (value: number) => string }) {
  return (
    <p class="ramp">
      {show(ends[0])}
      <svg width="120" height="12" aria-hidden="true">
        {STEPS.map((share, i) => (
          <rect key={share} x={i * 24} width="24" height="12" fill={mixed(share)} />
        ))}
      </svg>
      {show(ends[1])}
    </p>
  );
}
