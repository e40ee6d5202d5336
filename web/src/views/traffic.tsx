/** How requests come to a deployment. */

import { openTrace } from "../core/own";
import type { Change } from "../core/query";
import { Check, Choice, NumberField } from "../ui/form";
import { Opener } from "../ui/own";
import { type Arrivals, ARRIVALS, type Drafts, DRAFTS, type POOL_SPLITS, type ServeInputs } from "./inputs";

interface Props {
  inputs: ServeInputs;
  change: Change<ServeInputs>;
}

const SAYS: Record<Arrivals, string> = { rate: "at a rate (Poisson)", concurrency: "at a concurrency", together: "all at once", trace: "as a trace says" };
const TRACE_CHARACTERS = 4_500_000;

export function TrafficLoad({ inputs, change }: Props) {
  const { arrivals } = inputs;
  return (
    <>
      <Choice label="Requests come" name="arrivals" value={arrivals} set={(said) => change({ arrivals: ARRIVALS.find((one) => one === said) ?? "rate" })} options={ARRIVALS.map((one) => [one, SAYS[one]] as const)} />
      {arrivals === "trace" && (
        <Opener label="Open a trace of requests" accept=".csv,.json,.jsonl" pasted="pasted.csv" most={TRACE_CHARACTERS} open={openTrace} set={(trace) => change({ trace })} />
      )}
      <div class="pair">
        {arrivals === "rate" && <NumberField label="Requests a second" name="rate" value={inputs.rate} set={(rate) => change({ rate })} />}
        {arrivals === "concurrency" && <NumberField label="Concurrency" name="concurrency" value={inputs.concurrency} set={(concurrency) => change({ concurrency })} step={1} />}
        <NumberField label={arrivals === "trace" ? "Requests at most" : "Requests"} name="requests" also={["trace"]} value={inputs.requests} set={(requests) => change({ requests })} step={1} />
      </div>
      {arrivals !== "trace" && (
        <div class="triple">
          <NumberField label="Prompt" unit="tokens" name="input_len" value={inputs.input_len} set={(input_len) => change({ input_len })} step={1} />
          <NumberField label="Output" unit="tokens" name="output_len" value={inputs.output_len} set={(output_len) => change({ output_len })} step={1} />
          <NumberField label="Spread" unit="±" name="spread" value={inputs.spread} set={(spread) => change({ spread })} hint="of lengths, 0 to 1" />
        </div>
      )}
      <Limits inputs={inputs} change={change} />
      <Engines inputs={inputs} change={change} />
      <Drafting inputs={inputs} change={change} />
      <Check label="Leave out start and end" value={inputs.settled === "yes"} set={(on) => change({ settled: on ? "yes" : "no" })} />
    </>
  );
}

function Limits({ inputs, change }: Props) {
  return (
    <>
      <div class="pair">
        <NumberField label="Requests at once" name="max_num_seqs" placeholder="engine's" value={inputs.max_num_seqs} set={(most) => change({ max_num_seqs: most })} clear={() => change({ max_num_seqs: null })} step={1} />
        <NumberField label="Tokens a step" name="max_num_batched_tokens" value={inputs.max_num_batched_tokens} set={(most) => change({ max_num_batched_tokens: most })} step={1} />
      </div>
      <div class="triple">
        {(["ttft_ms", "tpot_ms", "e2e_ms"] as const).map((name) => (
          <NumberField key={name} label={LIMITS[name]} unit="ms" name={name} placeholder="none" value={inputs[name]} set={(most) => change({ [name]: most })} clear={() => change({ [name]: null })} />
        ))}
      </div>
    </>
  );
}

/** More ranks of attention than one, and engines that share the work between prompts and tokens. */
function Engines({ inputs, change }: Props) {
  return (
    <>
      <div class="pair">
        <NumberField label="Prefill engines" name="prefill_engines" also={["prefill"]} value={inputs.prefill_engines} set={(prefill_engines) => change({ prefill_engines })} step={1} hint="0: not apart" />
        <NumberField label="Decode engines" name="decode_engines" value={inputs.decode_engines} set={(decode_engines) => change({ decode_engines })} step={1} hint="0: not apart" />
      </div>
      {inputs.prefill_engines > 0 && inputs.decode_engines > 0 && (
        <>
          <Pool label="Prefill" names={["prefill_tp", "prefill_ep", "prefill_dp"]} inputs={inputs} change={change} />
          <Pool label="Decode" names={["decode_tp", "decode_ep", "decode_dp"]} inputs={inputs} change={change} />
        </>
      )}
    </>
  );
}

const DEGREES = ["TP", "EP", "DP"] as const;

interface PoolProps extends Props {
  label: string;
  names: readonly (typeof POOL_SPLITS)[number][];
}

/** How the engines of one pool are split where that differs from the deployment's. */
function Pool({ label, names, inputs, change }: PoolProps) {
  return (
    <div class="triple">
      {names.map((name, at) => (
        <NumberField key={name} label={`${label} ${DEGREES[at]}`} name={name} placeholder="as above" value={inputs[name]} set={(value) => change({ [name]: value })} clear={() => change({ [name]: null })} step={1} />
      ))}
    </div>
  );
}

const DRAFTERS: Record<Drafts, string> = { none: "none", mtp: "MTP", eagle3: "EAGLE-3", ngram: "n-gram" };

function Drafting({ inputs, change }: Props) {
  return (
    <>
      <div class="pair">
        <NumberField label="Attention DP" unit="ranks" name="dp" value={inputs.dp} set={(dp) => change({ dp })} step={1} />
        <Choice label="Drafting" name="speculative" value={inputs.drafts} set={(said) => change({ drafts: DRAFTS.find((one) => one === said) ?? "none" })} options={DRAFTS.map((one) => [one, DRAFTERS[one]] as const)} />
      </div>
      {inputs.drafts !== "none" && (
        <div class="pair">
          <NumberField label="Drafts a step" name="draft_tokens" placeholder="usual" value={inputs.draft_tokens} set={(draft_tokens) => change({ draft_tokens })} clear={() => change({ draft_tokens: null })} step={1} />
          <NumberField label="Accepted" unit="share" name="acceptance" placeholder="usual" value={inputs.acceptance} set={(acceptance) => change({ acceptance })} clear={() => change({ acceptance: null })} />
        </div>
      )}
    </>
  );
}

const LIMITS = { ttft_ms: "TTFT ≤", tpot_ms: "TPOT ≤", e2e_ms: "E2E ≤" } as const;
