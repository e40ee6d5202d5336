/** Kernel: one kernel over a range of sizes, on several GPUs. */

import { useEffect } from "preact/hooks";

import type { ApiError } from "../core/api";
import { useLatest, useList } from "../core/latest";
import { type Change, useInputs } from "../core/query";
import { called, useOwn } from "../core/own";
import type { GridAnswer, KernelAnswer, KernelFamily, KernelField } from "../core/types";
import { Choice, Form, Group, NumberField, TextField } from "../ui/form";
import { Gpus } from "../ui/gpus";
import { OwnFiles } from "../ui/own";
import { KERNEL, type KernelInputs, PROTOCOLS, exampleInputs, gridBody, kernelBody, swept } from "./inputs";
import { KernelGrid } from "./kernel-grid";
import { KernelResults } from "./kernel-results";
import { Split } from "./layout";
import { word } from "../core/format";

export function KernelView() {
  const [inputs, change] = useInputs("/kernel", KERNEL);
  useOwn(); // a file opened again is another question
  const families = useList<KernelFamily>("/api/kernels");
  const family = families.find((one) => one.kernel === inputs.kernel);
  useEffect(() => {
    if (family && inputs.field === "") change(exampleInputs(family), { replace: true });
  }, [family, inputs.field, change]);
  const body = kernelBody(inputs, family);
  const state = useLatest<KernelAnswer>("/api/kernel", body);
  const table = gridBody(inputs, family);
  const grid = useLatest<GridAnswer>("/api/grid", table, 100);
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
          <Second inputs={inputs} family={family} change={change} error={table ? grid.error : null} />
          <CaseFields inputs={inputs} fields={fields} change={change} />
          <Group title="Where">
            <Gpus value={inputs.gpus} most={8} set={(gpus) => change({ gpus })} />
            <Choice label="Protocol" name="protocol" value={inputs.protocol} set={(protocol) => change({ protocol })} options={PROTOCOLS.map((one) => [one, word(one)] as const)} />
          </Group>
          <OwnFiles gpu={(gpu) => change({ gpus: [...inputs.gpus.filter((one) => one !== gpu), gpu] })} />
        </Form>
      }
    >
      {table && grid.answer && !grid.error && <KernelGrid answer={grid.answer} />}
      {state.answer && <KernelResults answer={state.answer} inputs={inputs} change={change} />}
    </Split>
  );
}

interface Props {
  inputs: KernelInputs;
  change: Change<KernelInputs>;
}

/** A configuration table has no place in one input. */
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

/** A second field: the sweep becomes a table. */
function Second({ inputs, family, change, error }: Props & { family: KernelFamily | undefined; error: ApiError | null }) {
  const others = (family?.sweeps ?? []).filter((name) => name !== inputs.field);
  const trouble = error && (
    <p class="field-error" role="alert">
      {error.message}
    </p>
  );
  return (
    <Group title="Second field: heat map" open={inputs.y !== ""}>
      <div class="pair">
        <Choice label="Vary also" name="y.field" value={inputs.y} set={(y) => change({ y })} options={[["", "nothing"], ...others]} />
        <Choice label="Its spacing" name="y.scale" value={inputs.y_scale} set={(scale) => change({ y_scale: scale === "linear" ? "linear" : "log" })} options={["log", "linear"]} />
      </div>
      {inputs.y !== "" && (
        <>
          <div class="triple">
            <NumberField label="Its from" name="y.from" value={inputs.y_from} set={(from) => change({ y_from: from })} step={1} />
            <NumberField label="Its to" name="y.to" value={inputs.y_to} set={(to) => change({ y_to: to })} step={1} />
            <NumberField label="Rows" name="y.points" value={inputs.y_points} set={(points) => change({ y_points: points })} step={1} />
          </div>
          <Choice label="On" name="y.gpu" value={inputs.gpus.includes(inputs.y_gpu) ? inputs.y_gpu : (inputs.gpus[0] ?? "")} set={(gpu) => change({ y_gpu: gpu })} options={inputs.gpus.map((gpu) => [gpu, called(gpu)] as const)} />
        </>
      )}
      {trouble}
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
