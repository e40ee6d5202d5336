import { familyColour, fill } from "../core/colour";
import { percent, signedPercent, time, whole, word } from "../core/format";
import type { LeftOver, TraceAnswer, TraceCall } from "../core/types";
import { Meter } from "../ui/bars";
import { Card } from "../ui/copy";
import { Notes } from "../ui/notes";
import { type Column, Table } from "../ui/table";
import { FlameCard, GroupedTime, IdleTime } from "./trace-time";

export function TraceResults({ answer }: { answer: TraceAnswer }) {
  const counted = answer.calls.filter((one) => one.counted);
  const assumed = answer.calls.filter((one) => !one.counted);
  return (
    <>
      <WallClock answer={answer} />
      <Totals answer={answer} />
      {counted.length > 0 && <Ranked title="Recoverable time, call by call" answer={answer} calls={counted} />}
      {assumed.length > 0 && <Ranked title="Resting on an assumption or a stand-in, not counted" answer={answer} calls={assumed} />}
      {answer.calls.length === 0 && <NoCalls answer={answer} />}
      {answer.flame && <FlameCard answer={answer} flame={answer.flame} />}
      {answer.idle && <IdleTime idle={answer.idle} command={answer.command} />}
      <GroupedTime title="By operator" rows={answer.by_operator ?? []} answer={answer} />
      <GroupedTime title="By layer" rows={answer.by_layer ?? []} answer={answer} />
      <Notes notes={[...answer.calls.map((one) => one.note), ...answer.notes]} />
      <Unpredicted title="Shape unknown" rows={answer.unshaped} answer={answer} />
      <Unpredicted title="Not recognised" rows={answer.unrecognized} answer={answer} />
    </>
  );
}

/** What the wall clock went to, and what wins it back. */
function WallClock({ answer }: { answer: TraceAnswer }) {
  if (!answer.headline.length) return null;
  return (
    <Card title="Wall clock" json={answer.losses} command={answer.command}>
      {answer.headline.map((line) => (
        <p key={line}>{line}</p>
      ))}
    </Card>
  );
}

function Totals({ answer }: { answer: TraceAnswer }) {
  const { source, gpu, protocol, gpu_us, recoverable_us, recognized_share, shaped_share, close_share } = answer;
  const assumed = answer.assumed_recoverable_us;
  const json = { source, gpu, protocol, gpu_us, recoverable_us, assumed_recoverable_us: assumed, recognized_share, shaped_share, close_share };
  return (
    <Card title="Totals" json={json} command={answer.command} note={`${source} on ${gpu}, predicted as ${word(protocol)}`}>
      <div class="totals">
        <p class="big">
          {time(recoverable_us)} <small>could be won back of {time(gpu_us)} GPU time ({percent(recoverable_us / (gpu_us || 1))})</small>
        </p>
        {assumed > 0 && <p class="aside">{time(assumed)} more if what is assumed holds: see the calls that are not counted.</p>}
        <ul class="shares">
          <Share name="recognised" value={recognized_share} says="of GPU time is of a known kernel family" />
          <Share name="shapes read" value={shaped_share} says="of GPU time has shapes read, not assumed" />
          <Share name="within 10 %" value={close_share} says="of recognised time is predicted within 10 %" />
        </ul>
      </div>
    </Card>
  );
}

function Share({ name, value, says }: { name: string; value: number; says: string }) {
  return (
    <li title={says}>
      <span>{name}</span>
      <span class="meter wide" aria-hidden="true">
        <i style={{ width: `${100 * value}%`, background: fill("blue") }} />
      </span>
      <b>{percent(value)}</b>
    </li>
  );
}

function Ranked({ title, answer, calls }: { title: string; answer: TraceAnswer; calls: readonly TraceCall[] }) {
  const most = Math.max(...calls.map((one) => one.total_recoverable_us), 1e-9);
  const columns: Column<TraceCall>[] = [
    { key: "name", title: "Call", value: (one) => one.name, show: (one) => <CallName call={one} /> },
    { key: "recoverable", title: "Recoverable", value: (one) => one.total_recoverable_us, show: (one) => <Recoverable call={one} most={most} of={answer.gpu_us || 1} />, hint: "measured − ceiling, of all these calls; and its share of GPU time" },
    { key: "count", title: "×", value: (one) => one.count, show: (one) => whole(one.count) },
    { key: "measured", title: "Measured", value: (one) => one.measured_us, show: (one) => time(one.measured_us) },
    { key: "predicted", title: "Predicted", value: (one) => one.latency_us, show: (one) => time(one.latency_us) },
    { key: "error", title: "Off by", value: (one) => one.latency_us / one.measured_us - 1, show: (one) => signedPercent(100 * (one.latency_us / one.measured_us - 1)), hint: "predicted against measured" },
    { key: "ceiling", title: "Ceiling", value: (one) => one.ceiling_us, show: (one) => time(one.ceiling_us), hint: "what a good kernel reaches" },
    { key: "floor", title: "Floor", value: (one) => one.floor_us, show: (one) => time(one.floor_us), hint: "no kernel can be faster" },
  ];
  return (
    <Card title={title} json={calls} command={answer.command}>
      <Table label={`${title}: calls ranked by recoverable time`} rows={calls} columns={columns} sort="-recoverable" most={25} />
    </Card>
  );
}

/** Nothing to rank: say why, and what to do about it. */
function NoCalls({ answer }: { answer: TraceAnswer }) {
  const shapeless = answer.unshaped.length > 0;
  return (
    <div class="empty">
      <p>{shapeless ? "No call could be predicted: the trace holds no shapes." : "No kernel of this trace is of a family that has a prediction."}</p>
      {shapeless && (
        <p>Inside CUDA graphs shapes come from the model: name it and the lengths of the requests beside. In eager mode profile with record_shapes=True.</p>
      )}
    </div>
  );
}

function CallName({ call }: { call: TraceCall }) {
  const said = Object.entries(call.call).filter(([, value]) => value !== false && value !== 0 && value !== null);
  const shape = said.map(([name, value]) => `${name} ${Array.isArray(value) ? `[${value.length}]` : String(value)}`);
  return (
    <span class="call" title={[call.kernels.join("\n"), call.note].filter(Boolean).join("\n")}>
      <b>{call.name}</b> <span class="tag">{word(call.family)}</span> <span class="tag">bound: {word(call.bound)}</span>
      {!call.shaped && <span class="tag warn">shape assumed</span>}
      <small>{shape.join(" · ")}</small>
    </span>
  );
}

function Recoverable({ call, most, of }: { call: TraceCall; most: number; of: number }) {
  return (
    <span class="metered">
      <Meter value={call.total_recoverable_us} of={most} colour={familyColour(call.family)} /> <span>{time(call.total_recoverable_us)}</span>
      <small>{percent(call.total_recoverable_us / of)}</small>
    </span>
  );
}

function Unpredicted({ title, rows, answer }: { title: string; rows: readonly LeftOver[]; answer: TraceAnswer }) {
  if (!rows.length) return null;
  const share = rows.reduce((sum, one) => sum + one.total_measured_us, 0) / (answer.gpu_us || 1);
  return (
    <Card title={title} json={rows} command={answer.command} note={`${percent(share)} of GPU time: without a prediction`}>
      <Table
        label={title}
        rows={rows}
        sort="-time"
        most={10}
        columns={[
          { key: "name", title: "Kernel", value: (one: LeftOver) => one.name },
          { key: "family", title: "Family", value: (one) => (one.family ? word(one.family) : "–") },
          { key: "count", title: "×", value: (one) => one.count },
          { key: "time", title: "Time", value: (one) => one.total_measured_us, show: (one) => time(one.total_measured_us) },
        ]}
      />
    </Card>
  );
}
