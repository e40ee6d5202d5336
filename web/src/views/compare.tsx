/** Compare: two deployments side by side under one load. */

import { useLatest } from "../core/latest";
import { useOwn } from "../core/own";
import { type Change, useInputs } from "../core/query";
import type { ServeAnswer, TrafficAnswer } from "../core/types";
import { Choice, Form, Group, NumberField, Segments } from "../ui/form";
import { OwnFiles } from "../ui/own";
import { COMPARE, type CompareInputs, DEPLOYED, type Side, sideBody, sideOf } from "./compare-inputs";
import { CompareResults } from "./compare-results";
import { DeploymentFields } from "./deployment";
import { Split } from "./layout";

export type Compared = ServeAnswer | TrafficAnswer;
const SHARED = ["batch", "input_len", "output_len", "requests", "rate", "concurrency"];

/** The latest answer to either kind of load; what was asked under the other kind is kept out. */
function useSide(inputs: CompareInputs, side: Side) {
  const flows = inputs.load === "traffic";
  const body = sideBody(inputs, side);
  const batch = useLatest<ServeAnswer>("/api/serve", flows ? null : body);
  const flow = useLatest<TrafficAnswer>("/api/traffic", flows ? body : null, 200);
  return flows ? flow : batch;
}

export function CompareView() {
  const [inputs, change] = useInputs("/compare", COMPARE);
  useOwn();
  const [a, b] = [useSide(inputs, "a"), useSide(inputs, "b")];
  const both = a.answer && b.answer ? { a: a.answer, b: b.answer } : null;
  return (
    <Split
      state={{ answer: both, error: a.error ?? b.error, busy: a.busy || b.busy }}
      question={null}
      waiting="Estimating both…"
      inputs={
        <>
          {(["a", "b"] as const).map((side) => (
            <Form key={side} label={`Deployment ${side.toUpperCase()}`} error={side === "a" ? a.error : b.error} known={[...DEPLOYED, ...SHARED]}>
              <Deployment side={side} inputs={inputs} change={change} />
            </Form>
          ))}
          <Form label="Load of both" error={a.error ?? b.error} known={[...SHARED, ...DEPLOYED]}>
            <Load inputs={inputs} change={change} />
          </Form>
        </>
      }
    >
      {both && <CompareResults a={both.a} b={both.b} inputs={inputs} />}
    </Split>
  );
}

interface Props {
  inputs: CompareInputs;
  change: Change<CompareInputs>;
}

function Deployment({ side, inputs, change }: Props & { side: Side }) {
  const put = (name: (typeof DEPLOYED)[number], value: string | number): void => change({ [`${side}_${name}`]: value });
  return (
    <DeploymentFields title={`Deployment ${side.toUpperCase()}`} value={sideOf(inputs, side)} put={put}>
      <NumberField label="Tokens a step" name="max_num_batched_tokens" value={inputs[`${side}_max_num_batched_tokens`]} set={(most) => put("max_num_batched_tokens", most)} step={1} />
      <OwnFiles model={(model) => put("model", model)} gpu={(gpu) => put("gpu", gpu)} />
    </DeploymentFields>
  );
}

function Load({ inputs, change }: Props) {
  return (
    <Group title="Load of both">
      <Segments label="Load" value={inputs.load} set={(load) => change({ load })} options={[["batch", "Static"], ["traffic", "Traffic"]]} />
      <div class="pair">
        <NumberField label="Prompt" unit="tokens" name="input_len" value={inputs.input_len} set={(input_len) => change({ input_len })} step={1} />
        <NumberField label="Output" unit="tokens" name="output_len" value={inputs.output_len} set={(output_len) => change({ output_len })} step={1} />
      </div>
      {inputs.load === "batch" ? (
        <NumberField label="Batch" unit="requests" name="batch" value={inputs.batch} set={(batch) => change({ batch })} step={1} />
      ) : (
        <Arrivals inputs={inputs} change={change} />
      )}
    </Group>
  );
}

function Arrivals({ inputs, change }: Props) {
  return (
    <>
      <Choice label="Requests come" name="arrivals" value={inputs.arrivals} set={(said) => change({ arrivals: said === "concurrency" ? "concurrency" : "rate" })} options={[["rate", "at a rate (Poisson)"], ["concurrency", "at a concurrency"]]} />
      <div class="pair">
        {inputs.arrivals === "rate" ? (
          <NumberField label="Requests a second" name="rate" value={inputs.rate} set={(rate) => change({ rate })} />
        ) : (
          <NumberField label="Concurrency" name="concurrency" value={inputs.concurrency} set={(concurrency) => change({ concurrency })} step={1} />
        )}
        <NumberField label="Requests" name="requests" value={inputs.requests} set={(requests) => change({ requests })} step={1} />
      </div>
    </>
  );
}
