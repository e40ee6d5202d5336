/** The staircase of waves: how many times the GPU must be filled; the last wave is seldom full. */

import { curveStepBefore, line } from "d3-shape";
import { useMemo } from "preact/hooks";

import { fill } from "../core/colour";
import { digits } from "../core/format";
import type { Series } from "../core/types";
import { type Axis, type Box, Frame } from "./frame";
import { Cursor, type Reader } from "./read";

interface WavesProps {
  series: readonly Series[];
  colours: readonly string[];
  reader: Reader;
  box: Box;
  x: Axis;
  y: Axis;
  label: string;
}

export function WavesChart({ series, colours, reader, box, x, y, label }: WavesProps) {
  const { xs } = reader;
  const stairs = useMemo(() => series.map((one, i) => <path key={one.gpu} d={staircase(one, xs, x, y)} stroke={fill(colours[i] ?? "")} class="wave-line" fill="none" />), [series, colours, xs, x, y]);
  return (
    <Frame box={box} label={label} x={x} y={y} interactive>
      {stairs}
      <Cursor reader={reader} box={box} x={x} label="Read the waves chart" text={says(series, reader)} />
    </Frame>
  );
}

function staircase(one: Series, xs: readonly number[], x: Axis, y: Axis): string {
  const path = line<number>((_, i) => x.at(xs[i] ?? 1), (waves) => y.at(waves))
    .defined((waves) => waves > 0)
    .curve(curveStepBefore);
  return path((one.waves ?? []).map((waves) => Math.ceil(waves - 1e-9))) ?? "";
}

const says = (series: readonly Series[], reader: Reader): string =>
  `${reader.xs[reader.index]}: ${series.map((one) => `${one.gpu} ${digits(one.waves?.[reader.index] ?? 0)} waves`).join(", ")}`;
