/** Where the GPU time of a trace went, as a flame, by operator and by layer, and the time it idled. */

import { useMemo } from "preact/hooks";

import { Flame, treeOf } from "../chart/flame";
import { digits, percent, time, whole, word } from "../core/format";
import type { FlameRow, Grouped, Idle, TraceAnswer } from "../core/types";
import { Stack } from "../ui/bars";
import { Card } from "../ui/copy";
import { Table } from "../ui/table";

export function FlameCard({ answer, flame }: { answer: TraceAnswer; flame: readonly FlameRow[] }) {
  const root = useMemo(() => treeOf(flame, "GPU time"), [flame]);
  if (!flame.length) return null;
  return (
    <Card title="Flame view" json={flame} command={answer.command} note="GPU time by kind of step, layer, operator and kernel; choose a part to make it the whole.">
      <Flame root={root} label="GPU time" />
    </Card>
  );
}

export function GroupedTime({ title, rows, answer }: { title: string; rows: readonly Grouped[]; answer: TraceAnswer }) {
  if (!rows.length) return null;
  return (
    <Card title={title} json={rows} command={answer.command}>
      <Table
        label={title}
        rows={rows}
        sort="-measured"
        most={12}
        columns={[
          { key: "name", title: "Name", value: (one: Grouped) => one.name },
          { key: "calls", title: "Calls", value: (one) => one.calls, show: (one) => whole(one.calls) },
          { key: "measured", title: "Measured", value: (one) => one.measured_us, show: (one) => time(one.measured_us) },
          { key: "share", title: "Share", value: (one) => one.measured_us / (answer.gpu_us || 1), show: (one) => percent(one.measured_us / (answer.gpu_us || 1)) },
          { key: "predicted", title: "Predicted", value: (one) => one.predicted_us, show: (one) => (one.predicted_us === null ? "–" : time(one.predicted_us)) },
          { key: "recoverable", title: "Recoverable", value: (one) => one.recoverable_us, show: (one) => time(one.recoverable_us) },
        ]}
      />
    </Card>
  );
}

const COLOURS: Record<string, string> = { launch: "orange", sync: "vermillion", cpu: "purple", host: "yellow", input: "green", device: "sky", unknown: "grey-2" };

export function IdleTime({ idle, command }: { idle: Idle; command: string | null }) {
  const parts = [{ name: "kernels", value: idle.busy_us, colour: "blue" }, ...Object.entries(idle.causes).map(([name, value]) => ({ name: `idle: ${word(name)}`, value, colour: COLOURS[name] ?? "grey-2" }))];
  return (
    <Card title="Time without a kernel" json={idle} command={command} note={`${time(idle.idle_us)} of ${time(idle.span_us)} from the first kernel to the last (${percent(idle.idle_us / (idle.span_us || 1))}), by what it waited for`}>
      <Stack label="Busy and idle" parts={parts} show={time} whole={idle.span_us} ordered />
      {idle.gaps.length > 0 && (
        <Table
          label="Longest gaps"
          rows={idle.gaps}
          sort="-idle"
          most={8}
          columns={[
            { key: "at", title: "At", unit: "ms", value: (one: Idle["gaps"][number]) => one.start_us, show: (one) => digits(one.start_us / 1e3, 4) },
            { key: "idle", title: "Idle", value: (one) => one.idle_us, show: (one) => time(one.idle_us) },
            { key: "cause", title: "Cause", value: (one) => word(one.cause) },
            { key: "after", title: "After", value: (one) => one.after },
            { key: "before", title: "Before", value: (one) => one.before },
          ]}
        />
      )}
    </Card>
  );
}
