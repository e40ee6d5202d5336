import { familyColour } from "../core/colour";
import { digits, milliseconds, percent, timeRange, whole, word } from "../core/format";
import type { Parts, TrafficAnswer } from "../core/types";
import { Interval, type Part, Stack } from "../ui/bars";
import { Card } from "../ui/copy";
import { Facts } from "../ui/facts";
import { Table } from "../ui/table";
import type { ServeInputs } from "./inputs";
import { ModelBlocks } from "./model-blocks";
import { Evidence } from "./evidence";
import { TrafficTimeline } from "./traffic-timeline";

export function TrafficResults({ answer, inputs }: { answer: TrafficAnswer; inputs: ServeInputs }) {
  return (
    <>
      <p class="summary">
        Figures of <b>{whole(answer.figures_of)}</b> requests
        {answer.figures_of < answer.requests || inputs.settled === "yes" ? " from the middle of a long run, as Plan means them." : ", the first and the last ones too."}
      </p>
      <Headline answer={answer} />
      <Percentiles answer={answer} />
      <div class="columns">
        <Where answer={answer} name="ttft" title="Where TTFT goes" says="waiting: until the first step with a piece of the prompt begins" />
        <Where answer={answer} name="tpot" title="Where TPOT goes" says="steps that also hold prompts of others are part of it" />
      </div>
      <TrafficTimeline answer={answer} />
      <Rates answer={answer} />
      <ModelBlocks inputs={inputs} />
      <Evidence basis={answer.basis} notes={answer.notes} command={answer.command} />
    </>
  );
}

const NAMES = { ttft: "TTFT", tpot: "TPOT", itl: "Between tokens", e2e: "End to end" } as const;
type Name = keyof typeof NAMES;
const POINTS = ["mean", "p50", "p90", "p95", "p99"] as const;

const at = (answer: TrafficAnswer, name: Name, point: string, side = ""): number | undefined => answer[`${name}_${point}_ms${side}` as keyof TrafficAnswer] as number | undefined;

function Headline({ answer }: { answer: TrafficAnswer }) {
  const shown = (["ttft", "tpot", "e2e"] as const).filter((name) => at(answer, name, "mean") !== undefined);
  return (
    <div class="tiles">
      {shown.map((name) => (
        <Tile key={name} answer={answer} name={name} />
      ))}
      <Card title="Throughput" json={{ output_tokens_per_s: answer.output_tokens_per_s }} command={answer.command} class="tile">
        <p class="big">{digits(answer.output_tokens_per_s, 4)} tok/s</p>
        <p class="says">{`${digits(answer.requests_per_s)} requests/s, ${digits(answer.output_tokens_per_s_per_gpu)} tok/s a GPU`}</p>
      </Card>
    </div>
  );
}

function Tile({ answer, name }: { answer: TrafficAnswer; name: Name }) {
  const [value, low, high] = ["", "_low", "_high"].map((side) => at(answer, name, "mean", side) ?? 0) as [number, number, number];
  return (
    <Card title={NAMES[name]} json={{ mean_ms: value, low_ms: low, high_ms: high }} command={answer.command} class="tile">
      <p class="big">{milliseconds(value)}</p>
      <Interval value={value} low={low} high={high} most={high * 1.15} />
      <p class="range">90 %: {timeRange(low * 1e3, high * 1e3)}</p>
      <p class="says">mean over requests; 99 % below {milliseconds(at(answer, name, "p99") ?? 0)}</p>
    </Card>
  );
}

function Percentiles({ answer }: { answer: TrafficAnswer }) {
  const rows = (Object.keys(NAMES) as Name[]).filter((name) => at(answer, name, "mean") !== undefined);
  return (
    <Card title="Percentiles" json={Object.fromEntries(Object.entries(answer).filter(([name]) => name.includes("_ms")))} command={answer.command} note="Over requests (between tokens: over tokens), each with its 90 % interval.">
      <Table
        label="Percentiles of latencies"
        rows={rows}
        columns={[
          { key: "name", title: "Latency", value: (name: Name) => NAMES[name] },
          ...POINTS.map((point) => ({ key: point, title: point, value: (name: Name) => at(answer, name, point) ?? null, show: (name: Name) => <Cell answer={answer} name={name} point={point} /> })),
        ]}
      />
    </Card>
  );
}

function Cell({ answer, name, point }: { answer: TrafficAnswer; name: Name; point: string }) {
  const [low, high] = [at(answer, name, point, "_low"), at(answer, name, point, "_high")];
  return (
    <span class="with-range">
      {milliseconds(at(answer, name, point) ?? 0)}
      {low !== undefined && high !== undefined && <small>{timeRange(low * 1e3, high * 1e3)}</small>}
    </span>
  );
}

function Where({ answer, name, title, says }: { answer: TrafficAnswer; name: "ttft" | "tpot"; title: string; says: string }) {
  const parts: Parts | undefined = answer.where[`${name}_ms`];
  if (!parts) return null;
  const list: Part[] = Object.entries(parts).map(([part, value]) => ({ name: part, value, colour: part === "waiting" ? "grey-2" : familyColour(part) }));
  const sum = list.reduce((total, part) => total + part.value, 0);
  return (
    <Card title={title} json={parts} command={answer.command} note={`adds up to ${milliseconds(sum)}, the mean above; ${says}`}>
      <Stack label={NAMES[name]} parts={list} show={milliseconds} />
    </Card>
  );
}

function Rates({ answer }: { answer: TrafficAnswer }) {
  const facts: [string, string][] = [
    ["Requests within the limits", percent(answer.good_share)],
    ["Goodput", `${digits(answer.goodput_per_s)} requests/s`],
    ["Time with a step running", percent(answer.busy_share)],
    ["Preempted", whole(answer.preemptions)],
    ["Engine steps", whole(answer.steps)],
    ["Power", `${digits(answer.power_w)} W a GPU, ${digits(answer.energy_j_per_output_token)} J an output token`],
    ["KV cache", `${whole(answer.kv_tokens)} tokens a rank`],
  ];
  return (
    <Card title="The run" json={Object.fromEntries(facts.map(([name, value]) => [word(name), value]))} command={answer.command}>
      <Facts facts={facts} />
    </Card>
  );
}
