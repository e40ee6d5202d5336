import { useMemo, useState } from "preact/hooks";

import { type Axis, type Box, plotBox, spanX, spanY, useWidth } from "../chart/frame";
import { LatencyChart, type Layers } from "../chart/latency";
import type { Reader } from "../chart/read";
import { decades, extent, linear, short, sizes } from "../chart/scales";
import { runs, Strip, stripHeight } from "../chart/strip";
import { WavesChart } from "../chart/waves";
import { pipeColour, seriesColour } from "../core/colour";
import { tickTime, word } from "../core/format";
import type { Change } from "../core/query";
import type { KernelAnswer, NoSeries, Series } from "../core/types";
import { Swatch } from "../ui/bars";
import { Card } from "../ui/copy";
import { Check } from "../ui/form";
import { Notes } from "../ui/notes";
import type { KernelInputs } from "./inputs";
import { Readings, Tuner } from "./kernel-tables";

interface Props {
  answer: KernelAnswer;
  inputs: KernelInputs;
  change: Change<KernelInputs>;
}

export const drawn = (answer: KernelAnswer): Series[] => answer.series.filter((one): one is Series => "latency_us" in one);
const refused = (answer: KernelAnswer): NoSeries[] => answer.series.filter((one): one is NoSeries => "error" in one);

export function KernelResults({ answer, inputs, change }: Props) {
  const [asked, set] = useState<number | null>(null);
  // A size of zero has no place on a logarithmic axis.
  const first = answer.x[0] === 0 ? 1 : 0;
  const xs = useMemo(() => answer.x.slice(first), [answer, first]);
  const series = useMemo(() => drawn(answer).map((one) => (first ? cut(one) : one)), [answer, first]);
  const place = (from: number | null): number => Math.min(from ?? Math.floor(xs.length * 0.6), xs.length - 1);
  const index = place(asked);
  const move = (step: (index: number) => number): void => set((old) => step(place(old)));
  return (
    <>
      {refused(answer).map((one) => (
        <p key={one.gpu} class="alert" role="status">
          {one.gpu}: {one.error.message}
        </p>
      ))}
      <Charts answer={answer} series={series} reader={{ xs, index, move }} inputs={inputs} change={change} />
      <Readings answer={answer} series={series} x={xs[index] ?? 0} index={index} />
      {answer.tuner && <Tuner answer={answer} choices={answer.tuner} />}
      {drawn(answer).map((one) => (
        <Notes key={one.gpu} title={`Notes on ${one.gpu}`} notes={one.notes} />
      ))}
    </>
  );
}

function cut(one: Series): Series {
  const lists = Object.entries(one).map(([name, value]) => [name, Array.isArray(value) && name !== "notes" ? value.slice(1) : value]);
  return Object.fromEntries(lists) as unknown as Series;
}

interface ChartsProps extends Props {
  series: readonly Series[];
  reader: Reader;
}

const LAYERS = [
  ["band", "90 % band"],
  ["floor", "floor"],
  ["ceiling", "ceiling"],
] as const;

/** Everything about the charts that does not move with the cursor, so that moving it costs nothing else. */
function usePicture(answer: KernelAnswer, series: readonly Series[], xs: readonly number[], inputs: KernelInputs, width: number) {
  const shown = inputs.layers.join();
  return useMemo(() => {
    const layers: Layers = { band: shown.includes("band"), floor: shown.includes("floor"), ceiling: shown.includes("ceiling") };
    const box = plotBox(width, Math.min(Math.max(width * 0.5, 260), 400), { left: width < 480 ? 56 : 68 });
    const heights = series.flatMap((one) => [one.low_us, one.high_us, layers.floor ? one.floor_us : [], layers.ceiling ? one.ceiling_us : []].flat());
    return {
      layers,
      box,
      colours: series.map((_, index) => seriesColour(index)),
      x: xAxis(xs, box, answer.field, inputs.scale),
      y: decades(extent(heights), spanY(box), "latency", tickTime),
      lanes: series.map((one) => ({ title: one.gpu.slice(0, 10), runs: runs(xs, one.bound) })),
    };
  }, [answer, series, xs, shown, inputs.scale, width]);
}

function Charts({ answer, series, reader, inputs, change }: ChartsProps) {
  const [holder, width] = useWidth();
  const { layers, box, colours, x, y, lanes } = usePicture(answer, series, reader.xs, inputs, width);
  const toggle = (name: string, on: boolean): void => change({ layers: LAYERS.map(([one]) => one).filter((one) => (one === name ? on : inputs.layers.includes(one))) });
  const label = `Latency of ${word(answer.kernel)} over ${answer.field} on ${series.map((one) => one.gpu).join(", ")}`;
  return (
    <Card
      title={`Latency of ${word(answer.kernel)} over ${answer.field}`}
      json={answer}
      command={answer.command}
      tools={LAYERS.map(([name, says]) => (
        <Check key={name} label={says} value={inputs.layers.includes(name)} set={(on) => toggle(name, on)} />
      ))}
    >
      <Key series={series} colours={colours} />
      <div ref={holder}>
        <LatencyChart {...{ series, colours, reader, layers, box, x, y, label }} />
        <Waves {...{ series, colours, reader, x, width }} left={box.left} field={answer.field} />
        <p class="chart-title">Busiest pipe</p>
        <Strip lanes={lanes} colour={pipeColour} show={word} x={x} box={{ ...box, height: stripHeight(lanes.length) }} label="Busiest pipe of each GPU" cursor={reader.xs[reader.index] ?? 1} />
      </div>
    </Card>
  );
}

const xAxis = (xs: readonly number[], box: Box, field: string, scale: "log" | "linear") => {
  const span: [number, number] = [xs[0] ?? 1, xs.at(-1) ?? 1];
  return scale === "log" ? sizes(span, spanX(box), field) : linear(span, spanX(box), field, short);
};

const LINES = [
  ["latency-line", "predicted"],
  ["ceiling-line", "ceiling: what a good kernel reaches"],
  ["floor-line", "floor: no kernel is faster"],
] as const;

/** The line styles in words: what is drawn solid, dashed and dotted. */
function Key({ series, colours }: { series: readonly Series[]; colours: readonly string[] }) {
  return (
    <ul class="key">
      {series.map((one, index) => (
        <li key={one.gpu}>
          <Swatch colour={colours[index] ?? ""} /> {one.gpu}
        </li>
      ))}
      {LINES.map(([kind, says]) => (
        <li key={kind} class="key-note">
          <Sample kind={kind} /> {says}
        </li>
      ))}
    </ul>
  );
}

const Sample = ({ kind }: { kind: string }) => (
  <svg width="26" height="8" aria-hidden="true">
    <line x1="1" x2="25" y1="4" y2="4" class={kind} stroke="currentColor" />
  </svg>
);

interface WavesProps {
  series: readonly Series[];
  colours: readonly string[];
  reader: Reader;
  x: Axis;
  width: number;
  left: number;
  field: string;
}

function Waves({ series, colours, reader, x, width, left, field }: WavesProps) {
  const { box, y, falls } = useMemo(() => wavesPicture(series, width, left), [series, width, left]);
  if (!y) return <p class="note">This family has no waves: it fills the GPU once, or runs on links.</p>;
  return (
    <>
      <WavesChart {...{ series, colours, reader, box, x, y }} label={`Waves over ${field}`} />
      <p class="note">How many times the tasks fill the GPU, rounded up.{falls && " It falls where another tile becomes the faster one."}</p>
    </>
  );
}

function wavesPicture(series: readonly Series[], width: number, left: number): { box: Box; y: Axis | null; falls: boolean } {
  const box = plotBox(width, 150, { left });
  const counts = series.map((one) => (one.waves ?? []).map((waves) => Math.ceil(waves)));
  const most = extent(counts.flat())[1];
  if (counts.flat().length === 0) return { box, y: null, falls: false };
  const y = most > 12 ? decades([1, most], spanY(box), "waves", short) : linear([0, Math.max(most, 2)], spanY(box), "waves", short, 4);
  const falls = counts.some((list) => list.some((waves, i) => waves < (list[i - 1] ?? 0)));
  return { box, y: { ...y, ticks: y.ticks.filter(Number.isInteger) }, falls };
}
