/** The model of a deployment as blocks: kinds of layers, their parts, and what each part costs. */

import { digits, gib, whole } from "../core/format";
import { useLatest } from "../core/latest";
import { modelOf } from "../core/own";
import type { ModelAnswer, ModelPart } from "../core/types";
import { type Part, Stack } from "../ui/bars";
import { Card } from "../ui/copy";
import { Facts } from "../ui/facts";
import { type Column, Table } from "../ui/table";
import type { ServeInputs } from "./inputs";

interface Row {
  letter: string;
  layers: string;
  count: number;
  part: ModelPart;
}

const GIB = 2 ** 30;

const COLUMNS: Column<Row>[] = [
  { key: "letter", title: "Block", value: (row) => row.letter },
  { key: "layers", title: "Layers", value: (row) => row.layers, show: (row) => `${row.count} (${row.layers})` },
  { key: "part", title: "Part", value: (row) => row.part.name },
  { key: "shape", title: "Shape", value: (row) => row.part.shape },
  { key: "precision", title: "Weights", value: (row) => row.part.precision },
  { key: "parameters", title: "Parameters", unit: "M", value: (row) => (row.count * row.part.parameters) / 1e6, show: (row) => digits((row.count * row.part.parameters) / 1e6) },
  { key: "gib", title: "On a GPU", value: (row) => row.count * row.part.weight_bytes, show: (row) => gib((row.count * row.part.weight_bytes) / GIB) },
  { key: "flops", title: "Work", unit: "MFLOP a token", value: (row) => row.count * row.part.flops, show: (row) => digits((row.count * row.part.flops) / 1e6) },
  { key: "kv", title: "Cache", unit: "bytes a token", value: (row) => row.count * row.part.kv_bytes, show: (row) => whole(Math.round(row.count * row.part.kv_bytes)) },
  { key: "state", title: "State", unit: "MiB a sequence", value: (row) => row.count * row.part.state_bytes, show: (row) => digits((row.count * row.part.state_bytes) / 2 ** 20) },
  { key: "detail", title: "What", value: (row) => row.part.detail },
];

/** The blocks of the model that a view's inputs name. */
export function ModelBlocks({ inputs }: { inputs: Pick<ServeInputs, "model" | "tp" | "pp" | "ep"> }) {
  const { model, tp, pp, ep } = inputs;
  const { answer } = useLatest<ModelAnswer>("/api/model", { model: modelOf(model), tp, pp, ep });
  return answer && <BlockTable answer={answer} />;
}

export function BlockTable({ answer }: { answer: ModelAnswer }) {
  const rows = answer.blocks.flatMap(({ letter, layers, count, parts }) => parts.map((part) => ({ letter, layers, count, part })));
  const active = answer.active_parameters === answer.parameters ? "" : `, ${digits(answer.active_parameters / 1e9)} B of them a token`;
  const note = `layers: ${answer.pattern}; ${digits(answer.parameters / 1e9)} B parameters${active}`;
  return (
    <Card title="The model" json={answer.blocks} command={answer.command} note={note}>
      <Table label="Parts of the model" rows={rows} columns={COLUMNS} />
    </Card>
  );
}

export function Totals({ answer }: { answer: ModelAnswer }) {
  const facts: [string, string][] = [
    ["Parameters", `${digits(answer.parameters / 1e9)} B`],
    ["Of a token", `${digits(answer.active_parameters / 1e9)} B`],
    ["Layers", `${answer.layers}: ${answer.pattern}`],
    ["Weights of a GPU", gib(answer.weights_gib_per_gpu)],
    ["KV cache a token", `${whole(Math.round(answer.kv_bytes_per_token_per_gpu))} bytes, ${answer.kv_dtype}`],
    ["State a sequence", `${digits(answer.state_bytes_per_sequence_per_gpu / 2 ** 20)} MiB`],
  ];
  return (
    <Card title={answer.model} json={Object.fromEntries(facts)} command={answer.command} note={`read as ${answer.model_type}`}>
      <Facts facts={facts} />
    </Card>
  );
}

const COLOURS = ["blue", "vermillion", "green", "purple", "orange", "sky", "yellow", "grey-1"];

/** Each kind of layer as a box of its parts, by bytes and by work. */
export function Blocks({ answer }: { answer: ModelAnswer }) {
  const names = [...new Set(answer.blocks.flatMap((block) => block.parts.map((part) => part.name)))];
  const colour = (name: string): string => COLOURS[names.indexOf(name) % COLOURS.length] ?? "grey-1";
  const of = (parts: readonly ModelPart[], read: (part: ModelPart) => number): Part[] => parts.map((part) => ({ name: part.name, value: read(part), colour: colour(part.name) }));
  return (
    <div class="columns">
      {answer.blocks.map((block) => (
        <Card key={block.letter} title={`Block ${block.letter}`} json={block} command={answer.command} note={`${block.count} × (layers ${block.layers}): ${block.parts.map((part) => `${part.name} ${part.shape}`.trim()).join(" → ")}`}>
          <h3>Bytes of weights, one layer on a GPU</h3>
          <Stack label={`Bytes of block ${block.letter}`} parts={of(block.parts, (part) => part.weight_bytes)} show={(value) => `${digits(value / 2 ** 20)} MiB`} ordered />
          <h3>Work of a token</h3>
          <Stack label={`Work of block ${block.letter}`} parts={of(block.parts, (part) => part.flops)} show={(value) => `${digits(value / 1e6)} MFLOP`} ordered />
        </Card>
      ))}
    </div>
  );
}
