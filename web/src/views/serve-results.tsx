import { Timeline } from "../chart/timeline";
import { familyColour, pipeColour } from "../core/colour";
import { digits, gib, milliseconds, percent, time, timeRange, whole, word } from "../core/format";
import type { Change } from "../core/query";
import type { Parts, ServeAnswer, StepPart } from "../core/types";
import { Interval, type Part, Stack } from "../ui/bars";
import { Card } from "../ui/copy";
import { Segments } from "../ui/form";
import { Table } from "../ui/table";
import { Evidence } from "./evidence";
import type { ServeInputs } from "./inputs";
import { ModelBlocks } from "./model-blocks";

interface Props {
  answer: ServeAnswer;
  inputs: ServeInputs;
  change: Change<ServeInputs>;
}

export function ServeResults({ answer, inputs, change }: Props) {
  return (
    <>
      <Headline answer={answer} inputs={inputs} />
      <Power answer={answer} />
      <Memory answer={answer} />
      <div class="columns">
        <Card title="Prefill by kernel family" json={answer.breakdown.prefill_ms} command={answer.command} note={adding(answer.breakdown.prefill_ms, answer.prefill_ms, "TTFT above: all prompts")}>
          <Stack label="Prefill" parts={families(answer.breakdown.prefill_ms)} show={milliseconds} />
        </Card>
        <Card title="Decode step by kernel family" json={answer.breakdown.decode_step_ms} command={answer.command} note={`${milliseconds(sum(answer.breakdown.decode_step_ms))} a step at full batch`}>
          <Stack label="Decode step" parts={families(answer.breakdown.decode_step_ms)} show={milliseconds} />
        </Card>
        <Pipes phase="Prefill" shares={answer.pipes.prefill} total_us={answer.timeline.prefill.total_us} />
        <Pipes phase="Decode" shares={answer.pipes.decode} total_us={answer.timeline.decode.total_us} />
      </div>
      <Step answer={answer} inputs={inputs} change={change} />
      <ModelBlocks inputs={inputs} />
      <Evidence basis={answer.basis} notes={answer.notes} command={answer.command} />
    </>
  );
}

/** What the parts make together: the figure shown, or, where a batch runs in turns, one full cache of it. */
function adding(parts: Parts, figure: number, says: string): string {
  const total = sum(parts);
  const same = Math.abs(total - figure) <= 0.005 * figure;
  return `adds up to ${milliseconds(total)}, ${same ? `the ${says}` : `one full cache of the ${milliseconds(figure)} above: the other requests wait their turn`}`;
}

const sum = (parts: Parts): number => Object.values(parts).reduce((total, value) => total + value, 0);
const families = (parts: Parts): Part[] => Object.entries(parts).map(([name, value]) => ({ name, value, colour: familyColour(name) }));

interface Tile {
  title: string;
  says: string;
  value: number;
  low: number;
  high: number;
  show: (value: number) => string;
  range: (low: number, high: number) => string;
  json: Record<string, number>;
}

function tiles(answer: ServeAnswer, batch: number): Tile[] {
  const { prefill_ms, prefill_ms_low, prefill_ms_high, tpot_ms, tpot_ms_low, tpot_ms_high, e2e_ms, e2e_ms_low, e2e_ms_high } = answer;
  const rate = answer.output_tokens_per_s;
  // The same tokens in the shortest and the longest time.
  const [slow, fast] = [(rate * e2e_ms) / e2e_ms_high, (rate * e2e_ms) / e2e_ms_low];
  const first = batch === 1 ? "until the first token" : `until all ${batch} requests have their first token`;
  const perSecond = (value: number): string => `${digits(value, 4)} tok/s`;
  const times = { show: milliseconds, range: (from: number, to: number) => timeRange(from * 1e3, to * 1e3) };
  const rates = { show: perSecond, range: (from: number, to: number) => `${digits(from)} – ${digits(to)} tok/s` };
  return [
    { title: "TTFT", says: first, value: prefill_ms, low: prefill_ms_low, high: prefill_ms_high, ...times, json: { prefill_ms, prefill_ms_low, prefill_ms_high } },
    { title: "TPOT", says: "a token, at full batch", value: tpot_ms, low: tpot_ms_low, high: tpot_ms_high, ...times, json: { tpot_ms, tpot_ms_low, tpot_ms_high } },
    { title: "End to end", says: "until the last token", value: e2e_ms, low: e2e_ms_low, high: e2e_ms_high, ...times, json: { e2e_ms, e2e_ms_low, e2e_ms_high } },
    { title: "Throughput", says: answer.gpus === 1 ? "output tokens" : `${digits(rate / answer.gpus)} a GPU`, value: rate, low: slow, high: fast, ...rates, json: { output_tokens_per_s: rate } },
  ];
}

function Power({ answer }: { answer: ServeAnswer }) {
  const range = (low: number, high: number): string => `90 %: ${digits(low)} – ${digits(high)}`;
  return (
    <p class="summary power">
      <b>{digits(answer.power_w)} W</b> a GPU ({range(answer.power_w_low, answer.power_w_high)}), <b>{digits(answer.energy_j_per_output_token)} J</b> an output token ({range(answer.energy_j_per_output_token_low, answer.energy_j_per_output_token_high)})
    </p>
  );
}

function Headline({ answer, inputs }: { answer: ServeAnswer; inputs: ServeInputs }) {
  return (
    <div class="tiles">
      {tiles(answer, inputs.batch).map((tile) => (
        <Card key={tile.title} title={tile.title} json={tile.json} command={answer.command} class="tile">
          <p class="big">{tile.show(tile.value)}</p>
          <Interval value={tile.value} low={tile.low} high={tile.high} most={tile.high * 1.15} />
          <p class="range">
            90 %: {tile.range(tile.low, tile.high)}
          </p>
          <p class="says">{tile.says}</p>
        </Card>
      ))}
    </div>
  );
}

function Memory({ answer }: { answer: ServeAnswer }) {
  const memory = answer.memory_gib;
  const at = (name: string): number => memory[name] ?? 0;
  const parts: Part[] = [
    { name: "weights", value: at("weights"), colour: "blue" },
    { name: "kv_used", value: at("kv_used"), colour: "vermillion" },
    { name: "KV cache left", value: Math.max(at("kv") - at("kv_used"), 0), colour: "green-soft" },
    { name: "activations", value: at("activations"), colour: "orange" },
    { name: "engine", value: at("engine"), colour: "purple" },
    { name: "kept free", value: at("free"), colour: "grey-3" },
  ];
  const note = `${gib(at("total"))} a GPU; room for ${whole(at("kv_tokens"))} tokens of KV cache`;
  return (
    <Card title="Memory of the fullest GPU" json={memory} command={answer.command} note={note}>
      <Stack label="Memory" parts={parts} show={gib} whole={at("total")} ordered />
    </Card>
  );
}

function Pipes({ phase, shares, total_us }: { phase: string; shares: Parts; total_us: number }) {
  const parts = Object.entries(shares).map(([name, value]) => ({ name, value, colour: pipeColour(name) }));
  return (
    <Card title={`${phase} step by busiest pipe`} json={shares} note={`what the kernels of one step of ${time(total_us)} wait for`}>
      <Stack label={`${phase} pipes`} parts={parts} show={(share) => time(share * total_us)} whole={1} />
    </Card>
  );
}

function Step({ answer, inputs, change }: Props) {
  const step = answer.timeline[inputs.step];
  const tokens = `${whole(step.tokens)} token${step.tokens === 1 ? "" : "s"} of ${whole(step.requests)} request${step.requests === 1 ? "" : "s"}`;
  return (
    <Card
      title="One engine step"
      json={step}
      command={answer.command}
      note={`${time(step.total_us)} (90 %: ${timeRange(step.low_us, step.high_us)}) for ${tokens}; equal kernels of all layers are drawn together.`}
      tools={<Segments label="Step" value={inputs.step} set={(chosen) => change({ step: chosen })} options={[["prefill", "Prefill"], ["decode", "Decode"]]} />}
    >
      <Timeline kernels={step.parts} label={`Timeline of a ${inputs.step} step`} />
      <details class="group">
        <summary>The {step.parts.length} parts as a table</summary>
        <Parts parts={step.parts} total={step.total_us} />
      </details>
    </Card>
  );
}

function Parts({ parts, total }: { parts: readonly StepPart[]; total: number }) {
  return (
    <Table
      label="Parts of the step"
      rows={parts}
      sort="-all"
      columns={[
        { key: "name", title: "Part", value: (one) => one.name },
        { key: "family", title: "Family", value: (one) => word(one.family) },
        { key: "count", title: "×", value: (one) => one.count },
        { key: "each", title: "Each", value: (one) => one.each_us, show: (one) => time(one.each_us) },
        { key: "all", title: "All", value: (one) => one.duration_us, show: (one) => time(one.duration_us) },
        { key: "share", title: "Share", value: (one) => one.duration_us / total, show: (one) => percent(one.duration_us / total) },
        { key: "bound", title: "Bound", value: (one) => word(one.bound) },
        { key: "basis", title: "Evidence", value: (one) => word(one.basis) },
      ]}
    />
  );
}
