/** Serve: one deployment, under one batch (sliders redraw as they move) or under traffic. */

import { useLatest, useList } from "../core/latest";
import { type Change, useInputs } from "../core/query";
import { useOwn } from "../core/own";
import type { Gpu, ServeAnswer, TrafficAnswer } from "../core/types";
import { Form, Group, NumberField, Segments } from "../ui/form";
import { Link } from "../ui/link";
import { OwnFiles } from "../ui/own";
import { ladder, octaves, Slider } from "../ui/slider";
import { POOL_SPLITS, SERVE, type ServeInputs, WHAT_IF, serveBody } from "./inputs";
import { DeploymentFields } from "./deployment";
import { Split } from "./layout";
import { ServeResults } from "./serve-results";
import { compareQuery } from "./compare-inputs";
import { TrafficLoad } from "./traffic";
import { trafficBody } from "./traffic-inputs";
import { TrafficResults } from "./traffic-results";

const DEPLOYMENT = ["model", "gpu", "tp", "pp", "ep", "engine", "kv_cache_dtype", "max_num_batched_tokens", ...WHAT_IF];
const BATCH = [...DEPLOYMENT, "batch", "input_len", "output_len"];
const TRAFFIC = [...DEPLOYMENT, "dp", "prefill_engines", "decode_engines", "prefill", ...POOL_SPLITS, "speculative", "input_len", "output_len", "requests", "rate", "concurrency", "spread", "trace", "max_num_seqs", "ttft_ms", "tpot_ms", "e2e_ms"];

export function ServeView() {
  const [inputs, change] = useInputs("/serve", SERVE);
  useOwn(); // a file opened again is another question
  const flows = inputs.load === "traffic";
  const [batchBody, flowBody] = [serveBody(inputs), trafficBody(inputs)];
  const batch = useLatest<ServeAnswer>("/api/serve", flows ? null : batchBody);
  const flow = useLatest<TrafficAnswer>("/api/traffic", flows ? flowBody : null, 200);
  const question = flows ? flowBody && { path: "/api/traffic", body: flowBody } : { path: "/api/serve", body: batchBody };
  const state = flows ? flow : batch;
  return (
    <Split
      state={state}
      question={question}
      waiting={flows && !flowBody ? "Open a trace of requests: CSV or JSON lines with arrival times, prompt and output lengths." : "Estimating…"}
      inputs={
        <Form label="The deployment and its load" error={state.error} known={flows ? TRAFFIC : BATCH}>
          <DeploymentFields title="Deployment" value={inputs} put={(name, value) => change({ [name]: value, ...(name === "gpu" ? UNCHANGED : {}) })} />
          <OwnFiles model={(model) => change({ model })} gpu={(gpu) => change({ gpu, ...UNCHANGED })} />
          <Load inputs={inputs} change={change} />
          <WhatIf inputs={inputs} change={change} />
          <Link class="onward" path="/compare" query={compareQuery(inputs)}>
            Compare with another deployment →
          </Link>
        </Form>
      }
    >
      {flows
        ? flow.answer && <TrafficResults answer={flow.answer} inputs={inputs} />
        : batch.answer && <ServeResults answer={batch.answer} inputs={inputs} change={change} />}
    </Split>
  );
}

interface Props {
  inputs: ServeInputs;
  change: Change<ServeInputs>;
}

const UNCHANGED = { dram_gbps: null, sms: null, l2_mb: null, boost_clock_mhz: null };

const BATCHES = octaves(1, 1024);
const LENGTHS = octaves(16, 131072);

function Load({ inputs, change }: Props) {
  return (
    <Group title="Load">
      <Segments label="Load" value={inputs.load} set={(load) => change({ load })} options={[["batch", "Static"], ["traffic", "Traffic"]]} />
      {inputs.load === "traffic" ? <TrafficLoad inputs={inputs} change={change} /> : <BatchLoad inputs={inputs} change={change} />}
    </Group>
  );
}

function BatchLoad({ inputs, change }: Props) {
  const slide =
    (name: "batch" | "input_len" | "output_len") =>
    (value: number, passing: boolean): void =>
      change({ [name]: value }, { passing });
  return (
    <>
      <Slider label="Batch" unit="requests" name="batch" value={inputs.batch} set={slide("batch")} scale={BATCHES} />
      <Slider label="Context (prompt)" unit="tokens" name="input_len" value={inputs.input_len} set={slide("input_len")} scale={LENGTHS} />
      <Slider label="Output" unit="tokens" name="output_len" value={inputs.output_len} set={slide("output_len")} scale={LENGTHS} />
      <NumberField label="Tokens a step" name="max_num_batched_tokens" value={inputs.max_num_batched_tokens} set={(most) => change({ max_num_batched_tokens: most })} step={1} />
    </>
  );
}

const SLIDERS = {
  dram_gbps: { label: "DRAM bandwidth", unit: "GB/s", step: 50 },
  sms: { label: "SMs", unit: "", step: 1 },
  l2_mb: { label: "L2 cache", unit: "MB", step: 1 },
  boost_clock_mhz: { label: "Clock", unit: "MHz", step: 15 },
} as const;

/** A GPU that does not exist: the same card with other numbers. */
function WhatIf({ inputs, change }: Props) {
  const own = useOwn().gpus.find(({ key }) => key === inputs.gpu)?.numbers;
  const base = useList<Gpu>("/api/gpus").find((one) => one.name === inputs.gpu) ?? own;
  if (!base) return null;
  return (
    <Group title={`What if the ${base.name} had…`}>
      {WHAT_IF.map((name) => {
        const { label, unit, step } = SLIDERS[name];
        const actual = base[name];
        const scale = ladder(Math.max(Math.round((actual * 0.5) / step) * step, step), actual * 2, step);
        const set = (value: number, passing: boolean): void => change({ [name]: value === actual ? null : value }, { passing });
        return <Slider key={name} label={label} unit={unit} name={name} also={[`what_if.${name}`]} value={inputs[name] ?? actual} base={actual} set={set} scale={scale} reset={() => change({ [name]: null })} />;
      })}
    </Group>
  );
}
