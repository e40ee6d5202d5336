/** Plan: which GPU, which split, which settings; at what cost. */

import { useLatest, useList } from "../core/latest";
import { useOwn } from "../core/own";
import { useInputs } from "../core/query";
import type { Model, PlanAnswer } from "../core/types";
import { Choice, Form, Group, NumberField, TextField } from "../ui/form";
import { Gpus } from "../ui/gpus";
import { OwnFiles } from "../ui/own";
import { PricesField } from "../ui/prices";
import { Split } from "./layout";
import { ENGINES, PLAN, type PlanInputs, planBody } from "./inputs";
import { PlanResults } from "./plan-results";

const FIELDS = ["model", "gpus", "gpu", "input_len", "output_len", "ttft_ms", "tpot_ms", "rate", "prefix_share", "max_gpus", "tp", "pp", "engines", "kv_cache_dtypes", "prices", "price"];

export function PlanView() {
  const [inputs, change] = useInputs("/plan", PLAN);
  useOwn(); // a file opened again is another question
  const body = planBody(inputs);
  const state = useLatest<PlanAnswer>("/api/plan", body, 250);
  return (
    <Split
      state={state}
      question={{ path: "/api/plan", body }}
      waiting="Comparing designs…"
      inputs={
        <Form label="What to serve, and within which limits" error={state.error} known={FIELDS}>
          <Inputs inputs={inputs} change={change} />
        </Form>
      }
    >
      {state.answer && <PlanResults answer={state.answer} inputs={inputs} change={change} />}
    </Split>
  );
}

function Inputs({ inputs, change }: { inputs: PlanInputs; change: (part: Partial<PlanInputs>) => void }) {
  const models = [...useOwn().models, ...useList<Model>("/api/models").map((one) => one.name)];
  return (
    <>
      <Group title="Model and traffic">
        <TextField label="Model" name="model" value={inputs.model} set={(model) => change({ model, pick: null })} options={models} />
        <div class="pair">
          <NumberField label="Prompt" unit="tokens" name="input_len" value={inputs.input_len} set={(input_len) => change({ input_len })} />
          <NumberField label="Output" unit="tokens" name="output_len" value={inputs.output_len} set={(output_len) => change({ output_len })} />
        </div>
        <div class="pair">
          <NumberField label="Requests a second" name="rate" placeholder="one replica" value={inputs.rate} set={(rate) => change({ rate, pick: null })} clear={() => change({ rate: null, pick: null })} />
          <NumberField label="Prefix cached" name="prefix_share" value={inputs.prefix_share} set={(prefix_share) => change({ prefix_share, pick: null })} step={0.1} hint="share of a prompt" />
        </div>
      </Group>
      <Group title="Hardware">
        <Gpus value={inputs.gpus} most={16} set={(gpus) => change({ gpus, pick: null })} />
        <NumberField label="Most GPUs of a replica" name="max_gpus" value={inputs.max_gpus} set={(max_gpus) => change({ max_gpus })} />
      </Group>
      <OwnFiles model={(model) => change({ model, pick: null })} gpu={(gpu) => change({ gpus: [...inputs.gpus.filter((one) => one !== gpu), gpu], pick: null })} />
      <Group title="Own prices" open={Object.keys(inputs.prices).length > 0}>
        <PricesField value={inputs.prices} set={(prices) => change({ prices, pick: null })} />
      </Group>
      <Group title="Limits (mean latency)">
        <div class="pair">
          <NumberField label="TTFT" unit="ms" name="ttft_ms" placeholder="none" value={inputs.ttft_ms} set={(ttft_ms) => change({ ttft_ms })} clear={() => change({ ttft_ms: null })} />
          <NumberField label="TPOT" unit="ms" name="tpot_ms" placeholder="none" value={inputs.tpot_ms} set={(tpot_ms) => change({ tpot_ms })} clear={() => change({ tpot_ms: null })} />
        </div>
      </Group>
      <Group title="What to try" open={false}>
        <div class="pair">
          <TextField label="Tensor parallel" name="tp" value={inputs.tp} set={(tp) => change({ tp })} hint="such as 1,2,4,8; empty: searched" />
          <TextField label="Pipeline parallel" name="pp" value={inputs.pp} set={(pp) => change({ pp })} />
        </div>
        <Choice label="Engine" name="engines" value={inputs.engines} set={(engines) => change({ engines })} options={[["", "searched"], ...ENGINES, ["vllm,sglang", "vllm and sglang"], ["vllm,sglang,trtllm", "all"]]} />
        <Choice label="KV cache" name="kv_cache_dtypes" value={inputs.kv} set={(kv) => change({ kv })} options={[["auto", "the model's type"], ["fp8", "fp8"], ["auto,fp8", "both"]]} />
      </Group>
    </>
  );
}
