/** Trace: a profile, parsed by the server on this machine; what could be won back, largest first. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { ApiError, ask } from "../core/api";
import { bytes } from "../core/format";
import { useList } from "../core/latest";
import { type Change, type Schema, number, text, useInputs } from "../core/query";
import type { Gpu, Model, TraceAnswer, TraceComparison } from "../core/types";
import { Choice, Form, Group, NumberField, TextField } from "../ui/form";
import { ENGINES, PROTOCOLS } from "./inputs";
import { Split } from "./layout";
import { TraceChanges } from "./trace-changes";
import { TraceResults } from "./trace-results";

interface TraceInputs {
  gpu: string;
  model: string;
  tp: number;
  ep: number;
  q_lens: string;
  kv_lens: string;
  engine: string;
  protocol: string;
}

const TRACE: Schema<TraceInputs> = { gpu: text(""), model: text(""), tp: number(1), ep: number(1), q_lens: text(""), kv_lens: text(""), engine: text("vllm"), protocol: text("") };
const FIELDS = [...Object.keys(TRACE), "file"];

type Found = TraceAnswer | TraceComparison;

interface State {
  answer: Found | null;
  error: ApiError | null;
  busy: boolean;
}

export function TraceView() {
  const [inputs, change] = useInputs("/trace", TRACE);
  const [file, setFile] = useState<File | null>(null);
  const [other, setOther] = useState<File | null>(null);
  const path = file ? `/api/trace?${traceQuery(file, other, inputs)}` : "";
  const body = useMemo(() => (file && other ? new Blob([file, other]) : file), [file, other]);
  const state = useTrace(body, path);
  return (
    <Split
      state={{ ...state, answer: state.answer ?? (file === null && state.error === null ? {} : null) }}
      question={body && { path, body }}
      waiting={file ? `Reading ${file.name}…` : ""}
      inputs={
        <Form label="The trace and what it may not say" error={state.error} known={FIELDS}>
          <Drop file={file} set={setFile} busy={state.busy} error={state.error} />
          {file && <Second file={other} set={setOther} />}
          <Facts inputs={inputs} change={change} />
        </Form>
      }
    >
      {state.answer ? <Shown answer={state.answer} /> : <Welcome open={() => void example().then((found) => (setFile(found), change(EXAMPLE_SAYS)))} />}
    </Split>
  );
}

/** One trace, or what changed between two and then the first of them. */
function Shown({ answer }: { answer: Found }) {
  if (!("changes" in answer)) return <TraceResults answer={answer} />;
  return (
    <>
      <TraceChanges answer={answer} />
      <TraceResults answer={{ ...answer.a, command: null }} />
    </>
  );
}

/** A second trace to compare with. */
function Second({ file, set }: { file: File | null; set: (file: File | null) => void }) {
  return (
    <div class="opener" data-opener="second">
      <input id="trace-second" class="hidden" type="file" accept={ACCEPT} onChange={(event) => set(event.currentTarget.files?.[0] ?? null)} />
      <label for="trace-second" class="open-button">
        Compare with a second trace
      </label>
      {file && (
        <button type="button" class="more" onClick={() => set(null)}>
          {`Without ${file.name}`}
        </button>
      )}
    </div>
  );
}

const ACCEPT = ".json,.gz,.csv,.sqlite";

function traceQuery(file: File, other: File | null, inputs: TraceInputs): string {
  const given = Object.entries(inputs).filter(([, value]) => value !== "" && value !== 1);
  const second = other ? [["other", other.name], ["first_bytes", String(file.size)]] : [];
  return new URLSearchParams([["name", file.name], ...second, ...given.map(([name, value]) => [name, String(value)])]).toString();
}

function useTrace(file: Blob | null, path: string): State {
  const [state, set] = useState<State>({ answer: null, error: null, busy: false });
  useEffect(() => {
    if (!file) return;
    const abort = new AbortController();
    set((old) => ({ ...old, busy: true }));
    ask<Found>(path, file, abort.signal).then(
      (answer) => set({ answer, error: null, busy: false }),
      (problem: unknown) => {
        if (problem instanceof ApiError) set((old) => ({ ...old, error: problem, busy: false }));
        else if (!(problem instanceof DOMException)) throw problem;
      },
    );
    return () => abort.abort();
  }, [file, path]);
  return state;
}

interface DropProps {
  file: File | null;
  set: (file: File) => void;
  busy: boolean;
  error: ApiError | null;
}

function Drop({ file, set, busy, error }: DropProps) {
  const [over, setOver] = useState(false);
  const picker = useRef<HTMLInputElement>(null);
  const take = (files: FileList | null | undefined): void => void (files?.[0] && set(files[0]));
  const drop = (event: DragEvent): void => {
    event.preventDefault();
    setOver(false);
    take(event.dataTransfer?.files);
  };
  return (
    <div
      class={`drop${over ? " over" : ""}`}
      data-field="file"
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={drop}
    >
      <input ref={picker} id="trace-file" class="hidden" type="file" accept={ACCEPT} onChange={(event) => take(event.currentTarget.files)} />
      <label for="trace-file" class="drop-button">
        {busy ? "Reading…" : file ? "Choose another trace" : "Choose a trace"}
      </label>
      {error?.field === "file" && (
        <p class="field-error" role="alert">
          {error.message}
        </p>
      )}
      <p>{file ? `${file.name}, ${bytes(file.size)}` : "or drop it here"}</p>
    </div>
  );
}

function Facts({ inputs, change }: { inputs: TraceInputs; change: Change<TraceInputs> }) {
  const gpus = useList<Gpu>("/api/gpus").map((one) => one.name);
  const models = useList<Model>("/api/models").map((one) => one.name);
  return (
    <>
      <Group title="What the trace may not say">
        <Choice label="GPU" name="gpu" value={inputs.gpu} set={(gpu) => change({ gpu })} options={[["", "the one the trace names"], ...gpus]} />
        <TextField label="Model" name="model" value={inputs.model} set={(model) => change({ model })} options={models} placeholder="for CUDA graphs" />
        <div class="pair">
          <NumberField label="TP" name="tp" value={inputs.tp} set={(tp) => change({ tp })} step={1} />
          <NumberField label="EP" name="ep" value={inputs.ep} set={(ep) => change({ ep })} step={1} />
        </div>
        <div class="pair">
          <TextField label="New tokens" name="q_lens" value={inputs.q_lens} set={(q_lens) => change({ q_lens })} placeholder="1*32" />
          <TextField label="Cache lengths" name="kv_lens" value={inputs.kv_lens} set={(kv_lens) => change({ kv_lens })} placeholder="2048" />
        </div>
        <div class="pair">
          <Choice label="Engine" name="engine" value={inputs.engine} set={(engine) => change({ engine })} options={ENGINES} />
          <Choice label="Protocol" name="protocol" value={inputs.protocol} set={(protocol) => change({ protocol })} options={[["", "by the trace"], ...PROTOCOLS]} />
        </div>
      </Group>
    </>
  );
}

/** A decode step of Llama-3.1-8B on an H200 under vLLM, recorded as a CUDA graph; what it does not say is filled in. */
const EXAMPLE = "example-trace.json.gz";
const EXAMPLE_SAYS = { model: "Llama-3.1-8B", kv_lens: "1025" };

const example = async (): Promise<File> => new File([await (await fetch(`/${EXAMPLE}`)).blob()], EXAMPLE);

function Welcome({ open }: { open: () => void }) {
  return (
    <div class="empty">
      <p>
        Choose or drop a profile: a Chrome trace of <code>torch.profiler</code> (<code>.json</code>, <code>.json.gz</code>) the output of <code>ncu --csv</code>, or of Nsight Systems (<code>.sqlite</code>, or CSV of <code>nsys stats</code>).
      </p>
      <p>It is read by the server on this machine and sent nowhere else. The result ranks every kernel call by the time that a good kernel would win back.</p>
      <button type="button" class="more" onClick={open}>
        Open an example: one decode step of Llama-3.1-8B on an H200
      </button>
    </div>
  );
}
