import { useMemo } from "preact/hooks";

import { decades, extent } from "../chart/scales";
import { plotBox, spanX, spanY, useWidth } from "../chart/frame";
import { Scatter } from "../chart/scatter";
import { Mark } from "../chart/shapes";
import { fill, seriesColour } from "../core/colour";
import { digits, milliseconds, percent, tickTime, timeRange, usd, whole } from "../core/format";
import { type Own, useOwn } from "../core/own";
import { readQuery, writeQuery } from "../core/query";
import type { Design, Fleet, PlanAnswer } from "../core/types";
import { Card, CopyButton } from "../ui/copy";
import { type Fact, Facts } from "../ui/facts";
import { Segments } from "../ui/form";
import { Link } from "../ui/link";
import { Notes } from "../ui/notes";
import { type Column, Table } from "../ui/table";
import { type PlanInputs, SERVE } from "./inputs";
import { Elasticities, Prices, Refusals } from "./plan-reasons";

interface Props {
  answer: PlanAnswer;
  inputs: PlanInputs;
  change: (part: Partial<PlanInputs>) => void;
}

export function PlanResults({ answer, inputs, change }: Props) {
  const chosen = answer.front[inputs.pick ?? surest(answer)] ?? answer.front[0] ?? null;
  const pick = (design: Design): void => change({ pick: answer.front.indexOf(design) });
  return (
    <>
      <p class="summary">
        <b>{whole(answer.designs)}</b> designs of {answer.model}, <b>{whole(answer.meet_the_limits)}</b> within the limits,{" "}
        <b>{answer.front.length}</b> on the front.
      </p>
      {chosen ? <Chosen answer={answer} inputs={inputs} design={chosen} /> : <Nothing answer={answer} />}
      {answer.fleet && <FleetCard fleet={answer.fleet} command={answer.command} />}
      <Pareto answer={answer} inputs={inputs} change={change} chosen={chosen} pick={pick} />
      {chosen && <FrontTable answer={answer} chosen={chosen} pick={pick} />}
      {answer.best_by_gpu.length > 1 && <BestTable answer={answer} />}
      {answer.elasticities.length > 0 && <Elasticities answer={answer} />}
      <Refusals answer={answer} />
      <Prices answer={answer} />
      <Notes notes={answer.notes} />
    </>
  );
}

/** The place of the cheapest design whose whole interval is within the limits; of the cheapest where none is sure. */
const surest = (answer: PlanAnswer): number => Math.max(answer.front.findIndex((one) => one.sure === "yes"), 0);

function Nothing({ answer }: { answer: PlanAnswer }) {
  const why = answer.designs > 0 ? "Loosen the latency limits, or allow more GPUs a replica." : "See below what does not fit, and why.";
  return (
    <p class="empty" role="status">
      No design meets the limits. {why}
    </p>
  );
}

/** How many replicas of the winner the traffic takes, and what they cost. */
function FleetCard({ fleet, command }: { fleet: Fleet; command: string | null }) {
  return (
    <Card title="Fleet" json={fleet} command={command}>
      <Facts
        facts={[
          ["Replicas", whole(fleet.replicas), `${whole(fleet.gpus)} GPUs`],
          ["Requests a second", digits(fleet.requests_per_s, 4), `${digits(fleet.requests_per_s_per_replica, 4)} a replica within the limits`],
          ["In use", percent(fleet.utilisation), `${percent(fleet.headroom)} more until its limits`],
          ["An hour", usd(fleet.usd_per_hour)],
          ["A month of 730 hours", usd(fleet.usd_per_month)],
          ["A million tokens in, out", `${usd(fleet.usd_per_million_input_tokens)}, ${usd(fleet.usd_per_million_output_tokens)}`],
        ]}
      />
    </Card>
  );
}

const STRADDLES = "the 90 % interval of TTFT or TPOT straddles its limit";
const doubtful = (one: Design): boolean => one.sure === "perhaps";

export const describe = (one: Design): string =>
  `${one.gpus} × ${one.gpu}, tp ${one.tp}${one.pp > 1 ? `, pp ${one.pp}` : ""}${one.ep > 1 ? `, ep ${one.ep}` : ""}, ${one.max_num_seqs} at once: ` +
  `TPOT ${milliseconds(one.tpot_ms)}, TTFT ${milliseconds(one.ttft_ms)}${doubtful(one) ? ", perhaps within the limits" : ""}, ${digits(one.tokens_per_s_per_gpu, 4)} tokens/s/GPU, ${usd(one.usd_per_million_tokens)}/Mtok`;

function Chosen({ answer, inputs, design }: { answer: PlanAnswer; inputs: PlanInputs; design: Design }) {
  const place = answer.front.indexOf(design);
  const own = useOwn().gpus;
  const launch = answer.launches[place] ?? null;
  return (
    <Card title={place === surest(answer) ? "Cheapest design within the limits" : "Chosen design"} json={{ ...design, launch }} command={answer.command} class="chosen">
      <Facts
        facts={[
          ["GPUs", `${design.gpus} × ${design.gpu}`],
          ["Split", splitOf(design)],
          ["Cost per million tokens", usd(design.usd_per_million_tokens)],
          ["Throughput per GPU", `${digits(design.tokens_per_s_per_gpu, 4)} tok/s`],
          ["Energy", `${digits(design.energy_j_per_output_token, 3)} J an output token`, `${digits(design.power_w, 3)} W a GPU`],
          ["TPOT (90 %)", milliseconds(design.tpot_ms), timeRange(design.tpot_ms_low * 1e3, design.tpot_ms_high * 1e3)],
          ["TTFT (90 %)", milliseconds(design.ttft_ms), timeRange(design.ttft_ms_low * 1e3, design.ttft_ms_high * 1e3)],
          ...(doubtful(design) ? [["Within the limits", design.sure, STRADDLES] as Fact] : []),
          ["Requests at once", whole(design.max_num_seqs)],
          ["Tokens a step", whole(design.max_num_batched_tokens)],
        ]}
      />
      {launch && (
        <div class="launch">
          <code>{launch}</code>
          <CopyButton text={() => launch} label="Copy" what="the launch command" icon="command" />
        </div>
      )}
      {isPlain(design) && (
        <Link class="onward" path="/serve" query={serveQuery(inputs, design, own)}>
          See where its time goes in Serve →
        </Link>
      )}
    </Card>
  );
}

function serveQuery(inputs: PlanInputs, design: Design, own: Own["gpus"]): string {
  const { gpu: name, tp, pp, ep, engine, kv_dtype: kv_cache_dtype, dp, max_num_seqs, max_num_batched_tokens } = design;
  const { model, input_len, output_len, ttft_ms, tpot_ms } = inputs;
  const [rate, requests] = [design.requests_per_s / design.replicas, Math.max(Math.round(design.requests / design.replicas), FEWEST)];
  const gpu = own.find(({ numbers }) => numbers.name === name)?.key ?? name;
  const deployment = { gpu, tp, pp, ep, dp, engine, kv_cache_dtype, max_num_seqs, max_num_batched_tokens, batch: max_num_seqs };
  const steady = { load: "traffic", arrivals: "rate", rate, requests, spread: 0.5, settled: "yes" } as const;
  return writeQuery(SERVE, { ...readQuery(SERVE, ""), ...deployment, ...steady, model, input_len, output_len, ttft_ms, tpot_ms });
}

/** What a plan answers is a replica at its share of the rate, long under way, with lengths within half of their mean. */
const FEWEST = 300;

const X_NAMES = { tpot_ms: "TPOT, time per output token", ttft_ms: "TTFT, time to first token" };
const Y_NAMES = { tokens_per_s_per_gpu: "tokens/s per GPU", usd_per_million_tokens: "USD per million tokens" };

function Pareto({ answer, inputs, change, chosen, pick }: Props & { chosen: Design | null; pick: (design: Design) => void }) {
  const [holder, width] = useWidth();
  const gpus = useMemo(() => [...new Set(answer.all.map((one) => one.gpu))], [answer]);
  const colour = (gpu: string): string => seriesColour(gpus.indexOf(gpu));
  const points = { front: answer.front, all: answer.all, x: (one: Design) => one[inputs.x], y: (one: Design) => one[inputs.y] };
  const box = plotBox(width, Math.min(Math.max(width * 0.52, 260), 420));
  const values = (read: (one: Design) => number | null): number[] => answer.all.map((one) => read(one) ?? 0);
  const x = decades(extent(values(points.x)), spanX(box), X_NAMES[inputs.x], (ms) => tickTime(ms * 1e3));
  const y = decades(extent(values(points.y)), spanY(box), Y_NAMES[inputs.y], (value) => (inputs.y === "tokens_per_s_per_gpu" ? digits(value, 2) : usd(value)));
  return (
    <Card
      title="Designs"
      json={{ front: answer.front, all: answer.all }}
      command={answer.command}
      tools={
        <>
          <Segments label="Vertical axis" value={inputs.y} set={(chosenY) => change({ y: chosenY })} options={[["tokens_per_s_per_gpu", "tok/s/GPU"], ["usd_per_million_tokens", "$/Mtok"]]} />
          <Segments label="Horizontal axis" value={inputs.x} set={(chosenX) => change({ x: chosenX })} options={[["tpot_ms", "TPOT"], ["ttft_ms", "TTFT"]]} />
        </>
      }
    >
      <div ref={holder}>
        <Scatter points={points} gpus={gpus} colour={colour} box={box} x={x} y={y} limit={inputs[inputs.x]} selected={chosen} pick={pick} describe={describe} label={`${Y_NAMES[inputs.y]} against ${X_NAMES[inputs.x]} of ${answer.designs} designs`} />
      </div>
      <ul class="key">
        {gpus.map((gpu, index) => (
          <li key={gpu}>
            <Mark index={index} colour={fill(colour(gpu))} /> {gpu}
          </li>
        ))}
        <li class="key-note">large marks and line: the Pareto front; faint marks: the other designs</li>
      </ul>
    </Card>
  );
}

function FrontTable({ answer, chosen, pick }: { answer: PlanAnswer; chosen: Design; pick: (design: Design) => void }) {
  return (
    <Card title="Pareto front" json={answer.front} command={answer.command}>
      <Table label="Designs on the Pareto front" rows={answer.front} columns={columnsOf(answer.front)} sort="usd" selected={chosen} pick={pick} pickLabel={describe} most={12} />
    </Card>
  );
}

/** The front is often one GPU's; what each of the others can do stands here. */
function BestTable({ answer }: { answer: PlanAnswer }) {
  return (
    <Card title="Best of each GPU" json={answer.best_by_gpu} command={answer.command} note="Cheapest first.">
      <Table label="Best design of each GPU" rows={answer.best_by_gpu} columns={columnsOf(answer.best_by_gpu)} sort="usd" most={12} />
    </Card>
  );
}

function columnsOf(designs: readonly Design[]): Column<Design>[] {
  const columns: Column<Design>[] = [
    { key: "gpu", title: "GPU", value: (one) => one.gpu, show: (one) => `${one.gpus} × ${one.gpu}` },
    { key: "tp", title: "Split", value: (one) => one.tp * 1e4 + one.pp * 100 + one.ep, show: splitOf },
    { key: "seqs", title: "At once", value: (one) => one.max_num_seqs },
    { key: "usd", title: "Cost", unit: "$/Mtok", value: (one) => one.usd_per_million_tokens, show: (one) => usd(one.usd_per_million_tokens) },
    { key: "rate", title: "Throughput", unit: "tok/s/GPU", value: (one) => one.tokens_per_s_per_gpu, show: (one) => digits(one.tokens_per_s_per_gpu, 4, true) },
    { key: "user", title: "Speed", unit: "tok/s/user", value: (one) => one.tokens_per_s_per_user, show: (one) => digits(one.tokens_per_s_per_user, 3, true) },
    { key: "energy", title: "Energy", unit: "J/token", value: (one) => one.energy_j_per_output_token, show: (one) => digits(one.energy_j_per_output_token, 3) },
    { key: "tpot", title: "TPOT", value: (one) => one.tpot_ms, show: (one) => milliseconds(one.tpot_ms) },
    { key: "ttft", title: "TTFT", value: (one) => one.ttft_ms, show: (one) => milliseconds(one.ttft_ms) },
    { key: "budget", title: "Tokens a step", value: (one) => one.max_num_batched_tokens, show: (one) => whole(one.max_num_batched_tokens) },
  ];
  if (designs.some(doubtful)) columns.push({ key: "sure", title: "Within limits", value: (one) => Number(doubtful(one)), show: (one) => one.sure, hint: `perhaps: ${STRADDLES}` });
  return columns;
}

/** Whether a query of Serve says all of a design: engines of one kind, without drafts. */
const isPlain = (one: Design): boolean => one.engines === "one" && one.drafts === "none";

const splitOf = (one: Design): string => one.engines !== "one" ? `${one.engines}, prompts apart` : [`tp ${one.tp}`, one.pp > 1 ? `pp ${one.pp}` : "", one.ep > 1 ? `ep ${one.ep}` : ""].filter(Boolean).join(" · ");
