/** Numbers under the curves: values at the cursor, and what the tuner would choose. */

import { digits, percent, time, timeRange, whole, word } from "../core/format";
import type { KernelAnswer, Series, TunerChoices } from "../core/types";
import { Swatch } from "../ui/bars";
import { Card } from "../ui/copy";
import { Table } from "../ui/table";
import { seriesColour } from "../core/colour";

interface ReadingsProps {
  answer: KernelAnswer;
  series: readonly Series[];
  x: number;
  index: number;
}

interface Reading {
  gpu: string;
  latency_us: number;
  low_us: number;
  high_us: number;
  floor_us: number;
  ceiling_us: number;
  waves: number | null;
  bound: string;
  basis: string;
  impl: string;
  colour: string;
}

const reading = (one: Series, index: number, place: number): Reading => ({
  gpu: one.gpu,
  latency_us: one.latency_us[index] ?? 0,
  low_us: one.low_us[index] ?? 0,
  high_us: one.high_us[index] ?? 0,
  floor_us: one.floor_us[index] ?? 0,
  ceiling_us: one.ceiling_us[index] ?? 0,
  waves: one.waves?.[index] ?? null,
  bound: one.bound[index] ?? "",
  basis: one.basis[index] ?? "",
  impl: one.impl[index] ?? "",
  colour: seriesColour(place),
});

export function Readings({ answer, series, x, index }: ReadingsProps) {
  const rows = series.map((one, place) => reading(one, index, place));
  const json = rows.map(({ colour: _, ...numbers }) => ({ [answer.field]: x, ...numbers }));
  return (
    <Card title={`At ${answer.field} = ${whole(x)}`} json={json} command={answer.command} note="Move over the chart, or focus it and use the arrow keys, to read another size.">
      <Table
        label="Values at the cursor"
        rows={rows}
        sort="latency"
        columns={[
          { key: "gpu", title: "GPU", value: (one) => one.gpu, show: (one) => <span class="named"><Swatch colour={one.colour} /> {one.gpu}</span> },
          { key: "latency", title: "Latency", value: (one) => one.latency_us, show: (one) => time(one.latency_us) },
          { key: "interval", title: "90 %", value: (one) => one.low_us, show: (one) => timeRange(one.low_us, one.high_us) },
          { key: "floor", title: "Floor", value: (one) => one.floor_us, show: (one) => time(one.floor_us) },
          { key: "ceiling", title: "Ceiling", value: (one) => one.ceiling_us, show: (one) => time(one.ceiling_us) },
          { key: "of", title: "Of floor speed", value: (one) => one.floor_us / one.latency_us, show: (one) => percent(one.floor_us / one.latency_us) },
          { key: "waves", title: "Waves", value: (one) => one.waves, show: (one) => (one.waves === null ? "–" : digits(one.waves)) },
          { key: "bound", title: "Bound", value: (one) => word(one.bound) },
          { key: "basis", title: "Evidence", value: (one) => word(one.basis) },
        ]}
      />
    </Card>
  );
}

type Run = TunerChoices["runs"][number];

export function Tuner({ answer, choices }: { answer: KernelAnswer; choices: readonly TunerChoices[] }) {
  return (
    <Card title="What the tuner would choose" json={choices} command={answer.command} note="Triton configurations of the tuned kernel along the range; the GPUs listed have a tuning table.">
      {choices.map((one) => (
        <div key={`${one.gpu} ${one.kernel}`}>
          <h3>
            {one.gpu} · {one.kernel}
          </h3>
          <Table
            label={`Configurations on ${one.gpu}`}
            rows={one.runs}
            most={10}
            columns={[
              { key: "from", title: answer.field, value: (run: Run) => run.from, show: (run) => between([run.from, run.to], whole) },
              { key: "waves", title: "Waves", value: (run) => run.waves[0], show: (run) => between(run.waves, digits) },
              ...names(one.runs).map((name) => ({ key: name, title: name, value: (run: Run) => run.config[name] ?? null })),
            ]}
          />
        </div>
      ))}
    </Card>
  );
}

const between = ([low, high]: readonly [number, number], show: (value: number) => string): string => (low === high ? show(low) : `${show(low)} – ${show(high)}`);

const names = (runs: readonly Run[]): string[] => [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
