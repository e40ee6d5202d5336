/** What is deployed: the inputs that Serve and each side of Compare have. */

import type { ComponentChildren } from "preact";

import { useList } from "../core/latest";
import { called, useOwn } from "../core/own";
import type { Gpu, Model } from "../core/types";
import { Choice, Group, NumberField, TextField } from "../ui/form";
import { ENGINES, type ServeInputs } from "./inputs";

type Deployed = Pick<ServeInputs, "model" | "gpu" | "tp" | "pp" | "ep" | "engine" | "kv_cache_dtype">;

interface Props {
  title: string;
  value: Deployed;
  put: (name: keyof Deployed, value: string | number) => void;
  children?: ComponentChildren;
}

export function DeploymentFields({ title, value, put, children }: Props) {
  const own = useOwn();
  const models = [...own.models, ...useList<Model>("/api/models").map((one) => one.name)];
  const gpus = [...own.gpus.map(({ key }) => [key, called(key)] as const), ...useList<Gpu>("/api/gpus").map((one) => one.name)];
  return (
    <Group title={title}>
      <TextField label="Model" name="model" value={value.model} set={(model) => put("model", model)} options={models} />
      <Choice label="GPU" name="gpu" value={value.gpu} set={(gpu) => put("gpu", gpu)} options={gpus} />
      <div class="triple">
        {(["tp", "pp", "ep"] as const).map((name) => (
          <NumberField key={name} label={name.toUpperCase()} name={name} value={value[name]} set={(degree) => put(name, degree)} step={1} />
        ))}
      </div>
      <div class="pair">
        <Choice label="Engine" name="engine" value={value.engine} set={(engine) => put("engine", engine)} options={ENGINES} />
        <Choice label="KV cache" name="kv_cache_dtype" value={value.kv_cache_dtype} set={(kv) => put("kv_cache_dtype", kv)} options={[["auto", "model's"], "fp8", "bf16"]} />
      </div>
      {children}
    </Group>
  );
}
