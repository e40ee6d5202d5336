/** What holds along x, as named stretches: the busiest pipe of each GPU, or the tuner's choice. */

import { fill, ink } from "../core/colour";
import { type Axis, type Box, Frame, spanX } from "./frame";

export interface Run {
  from: number;
  to: number;
  name: string;
}

/** Neighbouring points with the same name as one stretch; borders lie half way between points, on a log axis. */
export function runs(xs: readonly number[], names: readonly string[]): Run[] {
  const out: Run[] = [];
  xs.forEach((x, i) => {
    const last = out.at(-1);
    const name = names[i] ?? "";
    const before = xs[i - 1];
    const border = before === undefined ? x : Math.sqrt(before * x);
    if (last?.name === name) last.to = x;
    else {
      if (last) last.to = border;
      out.push({ from: border, to: x, name });
    }
  });
  return out;
}

const ROW = 22;

export interface Lane {
  title: string;
  runs: readonly Run[];
}

interface StripProps {
  lanes: readonly Lane[];
  colour: (name: string) => string;
  show: (name: string) => string;
  x: Axis;
  box: Box;
  label: string;
  cursor: number;
}

export const stripHeight = (lanes: number): number => lanes * ROW + 4;

export function Strip({ lanes, colour, show, x, box, label, cursor }: StripProps) {
  const [left, right] = spanX(box);
  return (
    <Frame box={box} label={label}>
      {lanes.map((lane, row) => (
        <g key={lane.title}>
          <text x={left - 6} y={row * ROW + 16} text-anchor="end" class="lane-title">
            {lane.title}
          </text>
          {lane.runs.map((run) => (
            <Stretch key={run.from} run={run} row={row} x={x} colour={colour(run.name)} says={show(run.name)} />
          ))}
        </g>
      ))}
      <line x1={x.at(cursor)} x2={x.at(cursor)} y1={0} y2={lanes.length * ROW} class="cursor" />
      <rect x={left} y={0} width={right - left} height={lanes.length * ROW} fill="none" />
    </Frame>
  );
}

function Stretch({ run, row, x, colour, says }: { run: Run; row: number; x: Axis; colour: string; says: string }) {
  const from = x.at(run.from);
  const width = Math.max(x.at(run.to) - from, 1);
  return (
    <g>
      <rect x={from} y={row * ROW + 2} width={width} height={ROW - 4} fill={fill(colour)} class="stretch">
        <title>{says}</title>
      </rect>
      {width > says.length * 6.6 + 8 && (
        <text x={from + width / 2} y={row * ROW + 15} text-anchor="middle" fill={ink(colour)} class="stretch-name">
          {says}
        </text>
      )}
    </g>
  );
}
