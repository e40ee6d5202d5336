/** Latency over size, log-log: a line a GPU with its 90 % band, the floor nothing can beat and the reachable ceiling. */

import { area, line } from "d3-shape";
import { useMemo } from "preact/hooks";

import { fill } from "../core/colour";
import { time } from "../core/format";
import type { Series } from "../core/types";
import { type Axis, type Box, Frame } from "./frame";
import { Cursor, type Reader } from "./read";

export interface Layers {
  band: boolean;
  floor: boolean;
  ceiling: boolean;
}

interface LatencyProps {
  series: readonly Series[];
  colours: readonly string[];
  reader: Reader;
  layers: Layers;
  box: Box;
  x: Axis;
  y: Axis;
  label: string;
}

export function LatencyChart({ series, colours, reader, layers, box, x, y, label }: LatencyProps) {
  const { xs, index } = reader;
  const curves = useMemo(() => <Curves {...{ series, colours, layers, x, y, xs }} />, [series, colours, layers, x, y, xs]);
  return (
    <Frame box={box} label={label} x={x} y={y} interactive>
      {curves}
      <Cursor reader={reader} box={box} x={x} label="Read the latency chart" text={says(series, reader)} />
      {series.map((one, i) => (
        <circle key={one.gpu} class="cursor-dot" r="4" fill={fill(colours[i] ?? "")} cx={x.at(xs[index] ?? 1)} cy={y.at(one.latency_us[index] ?? 1)} />
      ))}
    </Frame>
  );
}

type CurvesProps = Pick<LatencyProps, "series" | "colours" | "layers" | "x" | "y"> & { xs: readonly number[] };

function Curves({ series, colours, layers, x, y, xs }: CurvesProps) {
  return (
    <g>
      {layers.band && series.map((one, i) => <path key={one.gpu} d={band(one, xs, x, y)} fill={fill(colours[i] ?? "")} class="band" />)}
      {series.map((one, i) => (
        <g key={one.gpu} stroke={fill(colours[i] ?? "")} fill="none">
          {layers.floor && <path d={curve(one.floor_us, xs, x, y)} class="floor-line" />}
          {layers.ceiling && <path d={curve(one.ceiling_us, xs, x, y)} class="ceiling-line" />}
          <path d={curve(one.latency_us, xs, x, y)} class="latency-line" />
        </g>
      ))}
    </g>
  );
}

function curve(values: readonly number[], xs: readonly number[], x: Axis, y: Axis): string {
  const path = line<number>((_, i) => x.at(xs[i] ?? 1), (value) => y.at(value)).defined((value) => value > 0);
  return path(values as number[]) ?? "";
}

function band(one: Series, xs: readonly number[], x: Axis, y: Axis): string {
  const shape = area<number>(
    (value) => x.at(value),
    (_, i) => y.at(one.low_us[i] ?? 1),
    (_, i) => y.at(one.high_us[i] ?? 1),
  );
  return shape(xs as number[]) ?? "";
}

const says = (series: readonly Series[], reader: Reader): string =>
  `${reader.xs[reader.index]}: ${series.map((one) => `${one.gpu} ${time(one.latency_us[reader.index] ?? 0)}`).join(", ")}`;
