/** The model of a deployment as blocks: kinds of layers, their parts, and what each part costs. */

import { digits, gib, whole } from "../core/format";
import { useLatest } from "../core/latest";
import type { ModelAnswer, ModelPart } from "../core/types";
import { Card } from "../ui/copy";
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

export function ModelBlocks({ inputs }: { inputs: ServeInputs }) {
  const { model, tp, pp, ep } = inputs;
  const { answer } = useLatest<ModelAnswer>("/api/model", { model, tp, pp, ep });
  if (!answer) return null;
  const rows = answer.blocks.flatMap(({ letter, layers, count, parts }) => parts.map((part) => ({ letter, layers, count, part })));
  const active = answer.active_parameters === answer.parameters ? "" : `, ${digits(answer.active_parameters / 1e9)} B of them a token`;
  const note = `layers: ${answer.pattern}; ${digits(answer.parameters / 1e9)} B parameters${active}`;
  return (
    <Card title="The model" json={answer.blocks} command={answer.command} note={note}>
      <Table label="Parts of the model" rows={rows} columns={COLUMNS} />
    </Card>
  );
}
