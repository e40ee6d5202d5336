/** Kernel: one kernel over a range of sizes, on several GPUs. */

import { useEffect } from "preact/hooks";

import { useLatest, useList } from "../core/latest";
import { type Change, useInputs } from "../core/query";
import type { KernelAnswer, KernelFamily, KernelField } from "../core/types";
import { Choice, Form, Group, NumberField, TextField } from "../ui/form";
import { Gpus } from "../ui/gpus";
import { KERNEL, type KernelInputs, PROTOCOLS, exampleInputs, kernelBody, swept } from "./inputs";
import { KernelResults } from "./kernel-results";
import { Split } from "./layout";
import { word } from "../core/format";

export function KernelView() {
  const [inputs, change] = useInputs("/kernel", KERNEL);
  const families = useList<KernelFamily>("/api/kernels");
  const family = families.find((one) => one.kernel === inputs.kernel);
  useEffect(() => {
    if (family && inputs.field === "") change(exampleInputs(family), { replace: true });
  }, [family, inputs.field, change]);
  const body = kernelBody(inputs, family);
  const state = useLatest<KernelAnswer>("/api/kernel", body);
  const fields = family?.fields.filter((field) => asked(field) && !swept(field, inputs.field)) ?? [];
  const known = ["kernel", "gpus", "gpu", "protocol", "sweep.field", "sweep.from", "sweep.to", "sweep.points", ...fields.flatMap(({ name }) => [name, `case.${name}`])];
  return (
    <Split
      state={state}
      question={body && { path: "/api/kernel", body }}
      waiting="Predicting…"
      inputs={
        <Form label="The kernel and the sizes" error={state.error} known={known}>
          <Family inputs={inputs} families={families} change={change} />
          <Range inputs={inputs} family={family} change={change} />
          <CaseFields inputs={inputs} fields={fields} change={change} />
          <Group title="Where">
            <Gpus value={inputs.gpus} most={8} set={(gpus) => change({ gpus })} />
            <Choice label="Protocol" name="protocol" value={inputs.protocol} set={(protocol) => change({ protocol })} options={PROTOCOLS.map((one) => [one, word(one)] as const)} />
          </Group>
        </Form>
      }
    >
      {state.answer && <KernelResults answer={state.answer} inputs={inputs} change={change} />}
    </Split>
  );
}

interface Props {
  inputs: KernelInputs;
  change: Change<KernelInputs>;
}

/** A configuration table has no place in one input; the command line takes it. */
const asked = (field: KernelField): boolean => field.type !== "config";

function Family({ inputs, families, change }: Props & { families: readonly KernelFamily[] }) {
  const choose = (kernel: string): void => {
    const family = families.find((one) => one.kernel === kernel);
    if (family) change(exampleInputs(family));
  };
  const help = families.find((one) => one.kernel === inputs.kernel)?.help;
  return (
    <Group title="Kernel">
      <Choice label="Family" name="kernel" value={inputs.kernel} set={choose} options={families.map((one) => [one.kernel, word(one.kernel)] as const)} hint={help?.split(". ")[0]?.replaceAll("`", "")} />
    </Group>
  );
}

function Range({ inputs, family, change }: Props & { family: KernelFamily | undefined }) {
  return (
    <Group title="Range of sizes">
      <div class="pair">
        <Choice label="Vary" name="sweep.field" value={inputs.field} set={(field) => change({ field })} options={family?.sweeps ?? []} />
        <Choice label="Spacing" name="sweep.scale" value={inputs.scale} set={(scale) => change({ scale: scale === "linear" ? "linear" : "log" })} options={["log", "linear"]} />
      </div>
      <div class="triple">
        <NumberField label="From" name="sweep.from" also={["from"]} value={inputs.from} set={(from) => change({ from })} step={1} />
        <NumberField label="To" name="sweep.to" also={["to"]} value={inputs.to} set={(to) => change({ to })} step={1} />
        <NumberField label="Points" name="sweep.points" also={["points"]} value={inputs.points} set={(points) => change({ points })} step={1} />
      </div>
    </Group>
  );
}

function CaseFields({ inputs, fields, change }: Props & { fields: readonly KernelField[] }) {
  const set =
    (name: string) =>
    (value: string): void =>
      change({ case: { ...inputs.case, [name]: value } });
  const needed = fields.filter((field) => field.required || field.name === "dtype");
  const others = fields.filter((field) => !needed.includes(field));
  const draw = (field: KernelField) => <CaseField key={field.name} field={field} value={inputs.case[field.name]} varied={field.name === inputs.field} set={set(field.name)} />;
  return (
    <>
      <Group title="Fixed sizes">
        <div class="grid-2">{needed.map(draw)}</div>
      </Group>
      {others.length > 0 && (
        <Group title="More fields" open={false}>
          <div class="grid-2">{others.map(draw)}</div>
        </Group>
      )}
    </>
  );
}

function CaseField({ field, value, set, varied }: { field: KernelField; value: string | undefined; varied: boolean; set: (value: string) => void }) {
  const frame = { label: word(field.name), name: field.name, also: [`case.${field.name}`] };
  const fallback = field.default === null || field.default === undefined ? "" : String(field.default);
  const choices = field.type === "bool" ? ["true", "false"] : field.choices;
  if (choices) {
    const options = fallback === "" && !field.required ? [["", "default"] as const, ...choices] : choices;
    return <Choice {...frame} value={value ?? fallback} set={set} options={options} />;
  }
  const hint = field.type !== "ints" ? undefined : varied ? "varied: only how many counts" : "such as 2048*32";
  return <TextField {...frame} value={value ?? fallback} set={set} hint={hint} placeholder={field.required ? "required" : "default"} />;
}
