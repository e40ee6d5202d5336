/** A kernel over two fields: a heat map, its cells as a table, and both as CSV. */

import { useMemo, useState } from "preact/hooks";

import { Heat } from "../chart/heat";
import { percent, time, timeRange, whole, word } from "../core/format";
import { csv, save } from "../core/save";
import type { GridAnswer } from "../core/types";
import { Card } from "../ui/copy";
import { Segments } from "../ui/form";
import { Notes } from "../ui/notes";
import { Table } from "../ui/table";

type Shown = "latency" | "floor";

interface Cell {
  x: number;
  y: number;
  latency_us: number;
  low_us: number;
  high_us: number;
  floor_us: number;
  ceiling_us: number;
  bound: string;
  basis: string;
}

const NUMBERS = ["latency_us", "low_us", "high_us", "floor_us", "ceiling_us"] as const;

const cellsOf = (answer: GridAnswer): Cell[] =>
  answer.y.flatMap((y, row) =>
    answer.x.map((x, column) => ({
      ...(Object.fromEntries(NUMBERS.map((name) => [name, answer[name][row]?.[column] ?? 0])) as Record<(typeof NUMBERS)[number], number>),
      ...{ x, y, bound: answer.bound[row]?.[column] ?? "", basis: answer.basis[row]?.[column] ?? "" },
    })),
  );

export function KernelGrid({ answer }: { answer: GridAnswer }) {
  const [shown, set] = useState<Shown>("latency");
  const cells = useMemo(() => cellsOf(answer), [answer]);
  const { x_field: across, y_field: down } = answer;
  const title = `${word(answer.kernel)} over ${across} and ${down} on ${answer.gpu}`;
  const values = useMemo(() => (shown === "latency" ? answer.latency_us : answer.floor_us.map((row, i) => row.map((floor, j) => floor / (answer.latency_us[i]?.[j] || 1)))), [answer, shown]);
  return (
    <>
      <Card
        title={`Heat map: ${title}`}
        json={answer}
        command={answer.command}
        note="Use the arrow keys or the pointer to read a cell."
        tools={
          <>
            <Segments label="Shown" value={shown} set={set} options={[["latency", "Latency"], ["floor", "Share of floor speed"]]} />
            <button type="button" class="copy" onClick={() => save(csv(rowsOf(answer, cells)), `pipewave-${answer.kernel}-${across}-${down}.csv`, "text/csv")}>
              CSV
            </button>
          </>
        }
      >
        <Heat xs={answer.x} ys={answer.y} values={values} x={across} y={down} log={shown === "latency"} show={shown === "latency" ? time : percent} label={title} />
      </Card>
      <Card title="Cells" json={cells} command={answer.command}>
        <Table
          label={title}
          rows={cells}
          most={12}
          columns={[
            { key: "x", title: across, value: (cell: Cell) => cell.x, show: (cell) => whole(cell.x) },
            { key: "y", title: down, value: (cell) => cell.y, show: (cell) => whole(cell.y) },
            { key: "latency", title: "Latency", value: (cell) => cell.latency_us, show: (cell) => time(cell.latency_us) },
            { key: "range", title: "90 %", value: (cell) => cell.low_us, show: (cell) => timeRange(cell.low_us, cell.high_us) },
            { key: "floor", title: "Floor", value: (cell) => cell.floor_us, show: (cell) => time(cell.floor_us) },
            { key: "of", title: "Of floor speed", value: (cell) => cell.floor_us / cell.latency_us, show: (cell) => percent(cell.floor_us / cell.latency_us) },
            { key: "bound", title: "Bound", value: (cell) => word(cell.bound) },
            { key: "basis", title: "Evidence", value: (cell) => word(cell.basis) },
          ]}
        />
      </Card>
      <Notes title={`Notes on ${answer.gpu} over both fields`} notes={answer.notes} />
    </>
  );
}

const rowsOf = (answer: GridAnswer, cells: readonly Cell[]): (string | number)[][] => [
  ["gpu", "protocol", answer.x_field, answer.y_field, ...NUMBERS, "bound", "basis"],
  ...cells.map((cell) => [answer.gpu, answer.protocol, cell.x, cell.y, ...NUMBERS.map((name) => cell[name]), cell.bound, cell.basis]),
];
