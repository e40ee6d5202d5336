/** What happens while requests come: how many run and wait, how full the cache is, how many tokens come out, what a GPU draws. */

import { useMemo, useState } from "preact/hooks";

import { type Box, plotBox, spanX, spanY, useWidth } from "../chart/frame";
import { type Line, Lines } from "../chart/lines";
import type { Reader } from "../chart/read";
import { linear, short } from "../chart/scales";
import { digits, percent } from "../core/format";
import type { RunOverTime, TrafficAnswer } from "../core/types";
import { Swatch } from "../ui/bars";
import { Card } from "../ui/copy";

interface Panel {
  title: string;
  lines: Line[];
  most: number;
  show: (value: number) => string;
}

const panelsOf = (line: RunOverTime): Panel[] => [
  {
    title: "requests",
    lines: [
      { name: "in a step (batch)", values: line.running, colour: "blue" },
      { name: "waiting (queue)", values: line.waiting, colour: "vermillion" },
    ],
    most: Math.max(...line.running, ...line.waiting, 1),
    show: (value) => digits(value),
  },
  { title: "KV cache in use", lines: [{ name: "KV cache in use", values: line.kv_share, colour: "green" }], most: 1, show: percent },
  {
    title: "output tokens/s",
    lines: [{ name: "output tokens/s", values: line.output_tokens_per_s, colour: "purple" }],
    most: Math.max(...line.output_tokens_per_s, 1),
    show: (value) => digits(value),
  },
  {
    title: "W of a GPU",
    lines: [{ name: "W of a GPU", values: line.power_w, colour: "orange" }],
    most: Math.max(...line.power_w, 1),
    show: (value) => digits(value),
  },
];

export function TrafficTimeline({ answer }: { answer: TrafficAnswer }) {
  const line = answer.timeline;
  const [holder, width] = useWidth();
  const [asked, set] = useState<number | null>(null);
  const panels = useMemo(() => panelsOf(line), [line]);
  const last = line.time_s.length - 1;
  const index = Math.min(asked ?? Math.floor(last / 2), last);
  const reader: Reader = { xs: line.time_s, index, move: (step) => set((old) => step(Math.min(old ?? Math.floor(last / 2), last))) };
  const box = plotBox(width, 150, { left: width < 480 ? 46 : 56 });
  return (
    <Card title="Over time" json={line} command={answer.command} note={`Means over ${line.time_s.length} equal stretches. At ${digits(line.time_s[index] ?? 0)} s:`}>
      <ul class="key">
        {panels.flatMap((panel) => panel.lines.map((one) => (
          <li key={one.name}>
            <Swatch colour={one.colour} /> {one.name} <b>{panel.show(one.values[index] ?? 0)}</b>
          </li>
        )))}
      </ul>
      <div ref={holder}>
        {panels.map((panel) => (
          <PanelChart key={panel.title} panel={panel} reader={reader} box={box} />
        ))}
      </div>
    </Card>
  );
}

function PanelChart({ panel, reader, box }: { panel: Panel; reader: Reader; box: Box }) {
  const { xs, index } = reader;
  const x = linear([0, xs.at(-1) ?? 1], spanX(box), "seconds", short);
  const y = linear([0, panel.most], spanY(box), panel.title, panel.title.startsWith("KV") ? (share) => `${Math.round(100 * share)} %` : short, 4);
  const says = `${digits(xs[index] ?? 0)} s: ${panel.lines.map((one) => `${one.name} ${panel.show(one.values[index] ?? 0)}`).join(", ")}`;
  return <Lines lines={panel.lines} reader={reader} box={box} x={x} y={y} label={`${panel.title} over time`} says={says} />;
}
