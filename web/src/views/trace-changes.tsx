import { digits, signedPercent, time, word } from "../core/format";
import type { TraceComparison } from "../core/types";
import { Card } from "../ui/copy";
import { Table } from "../ui/table";

type Change = TraceComparison["changes"][number];

const predicted = (one: Change): number | null => (one.predicted_a_us === null || one.predicted_b_us === null ? null : one.predicted_b_us - one.predicted_a_us);
const signed = (us: number): string => `${us < 0 ? "−" : "+"}${time(Math.abs(us))}`;

/** What takes longer or shorter in the second of two traces. */
export function TraceChanges({ answer }: { answer: TraceComparison }) {
  const [a, b] = [sum(answer, "a_us"), sum(answer, "b_us")];
  const unit = answer.by_step ? "of one step" : "of the whole traces";
  return (
    <Card title="B against A" json={answer.changes} command={answer.command} note={`A: ${answer.a.source} on ${answer.a.gpu}, ${time(a)}; B: ${answer.b.source} on ${answer.b.gpu}, ${time(b)} (${signedPercent(100 * (b / (a || 1) - 1))}); GPU time ${unit}`}>
      <Table
        label="Changes from A to B"
        rows={answer.changes}
        most={20}
        columns={[
          { key: "name", title: "Call", value: (one: Change) => one.name },
          { key: "family", title: "Family", value: (one) => word(one.family) },
          { key: "times", title: "×", value: (one) => one.count_b, show: (one) => (one.count_a === one.count_b ? digits(one.count_b) : `${digits(one.count_a)} → ${digits(one.count_b)}`) },
          { key: "a", title: "A", value: (one) => one.a_us, show: (one) => time(one.a_us) },
          { key: "b", title: "B", value: (one) => one.b_us, show: (one) => time(one.b_us) },
          { key: "change", title: "B − A", value: (one) => one.change_us, show: (one) => signed(one.change_us) },
          { key: "predicted", title: "Predicted B − A", value: predicted, show: (one) => shownOf(predicted(one)) },
        ]}
      />
    </Card>
  );
}

const shownOf = (us: number | null): string => (us === null ? "–" : signed(us));
const sum = (answer: TraceComparison, side: "a_us" | "b_us"): number => answer.changes.reduce((total, one) => total + one[side], 0);
