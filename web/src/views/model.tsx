/** Model: what a config.json says, as kinds of layers with their parts, bytes and work. */

import { useLatest, useList } from "../core/latest";
import { modelOf, useOwn } from "../core/own";
import { type Schema, number, text, useInputs } from "../core/query";
import type { Model, ModelAnswer } from "../core/types";
import { Form, Group, NumberField, TextField } from "../ui/form";
import { Notes } from "../ui/notes";
import { OwnFiles } from "../ui/own";
import { Split } from "./layout";
import { BlockTable, Blocks, Totals } from "./model-blocks";

export interface ModelInputs {
  model: string;
  tp: number;
  pp: number;
  ep: number;
}

const MODEL: Schema<ModelInputs> = { model: text("gpt-oss-20b"), tp: number(1), pp: number(1), ep: number(1) };

export function ModelView() {
  const [inputs, change] = useInputs("/model", MODEL);
  const own = useOwn();
  const names = [...own.models, ...useList<Model>("/api/models").map((one) => one.name)];
  const { tp, pp, ep } = inputs;
  const state = useLatest<ModelAnswer>("/api/model", { model: modelOf(inputs.model), tp, pp, ep });
  return (
    <Split
      state={state}
      question={null}
      waiting="Reading…"
      inputs={
        <Form label="The model and its split" error={state.error} known={["model", "tp", "pp", "ep"]}>
          <Group title="Model">
            <TextField label="Model" name="model" value={inputs.model} set={(model) => change({ model })} options={names} />
            <div class="triple">
              {(["tp", "pp", "ep"] as const).map((name) => (
                <NumberField key={name} label={name.toUpperCase()} name={name} value={inputs[name]} set={(degree) => change({ [name]: degree })} step={1} />
              ))}
            </div>
          </Group>
          <OwnFiles model={(model) => change({ model })} />
        </Form>
      }
    >
      {state.answer && (
        <>
          <Totals answer={state.answer} />
          <Blocks answer={state.answer} />
          <BlockTable answer={state.answer} />
          <Notes notes={state.answer.notes} />
        </>
      )}
    </Split>
  );
}
