import { familyColour } from "../core/colour";
import { digits, gib, milliseconds, signedPercent, timeRange, usd, whole } from "../core/format";
import { useList } from "../core/latest";
import { useOwn } from "../core/own";
import type { Gpu, Parts, ServeAnswer, TrafficAnswer } from "../core/types";
import { type Part, Stack } from "../ui/bars";
import { Card } from "../ui/copy";
import { Link } from "../ui/link";
import { Notes } from "../ui/notes";
import { Table } from "../ui/table";
import type { Compared } from "./compare";
import { type CompareInputs, serveQuery, SIDES } from "./compare-inputs";

interface Figure {
  value: number;
  low?: number;
  high?: number;
}

interface Row {
  name: string;
  a: Figure | null;
  b: Figure | null;
  show: (value: number) => string;
  range?: (low: number, high: number) => string;
}

interface Props {
  a: Compared;
  b: Compared;
  inputs: CompareInputs;
}

const flows = (one: Compared): one is TrafficAnswer => "where" in one;

export function CompareResults({ a, b, inputs }: Props) {
  const cost = useCost();
  const rows = rowsOf(a, b, cost);
  const json = rows.map(({ name, a: left, b: right }) => ({ figure: name, a: left, b: right, change_percent: change(left, right) }));
  return (
    <>
      <Card title="Side by side" json={json} note="Differences are of B against A. Where both 90 % intervals overlap, the order is not settled.">
        <Table
          label="Figures of both deployments"
          rows={rows}
          columns={[
            { key: "name", title: "Figure", value: (row: Row) => row.name },
            { key: "a", title: "A", unit: titleOf(a, b), value: (row) => row.a?.value ?? null, show: (row) => <Shown figure={row.a} row={row} /> },
            { key: "b", title: "B", unit: titleOf(b, a), value: (row) => row.b?.value ?? null, show: (row) => <Shown figure={row.b} row={row} /> },
            { key: "change", title: "B against A", value: (row) => change(row.a, row.b), show: (row) => changeText(row) },
            { key: "apart", title: "Intervals", value: (row) => apart(row.a, row.b) },
          ]}
        />
      </Card>
      <div class="columns">
        {partsOf(a).map(([title, parts], index) => (
          <Card key={title} title={title} json={{ a: parts, b: partsOf(b)[index]?.[1] }}>
            {[parts, partsOf(b)[index]?.[1] ?? {}].map((one, side) => (
              <div key={side}>
                <h3>{`${"AB"[side]}: ${milliseconds(sum(one))}`}</h3>
                <Stack label={`${title} of ${"AB"[side]}`} parts={families(one)} show={milliseconds} />
              </div>
            ))}
          </Card>
        ))}
      </div>
      {SIDES.map((side) => (
        <Notes key={side} title={`Notes on ${side.toUpperCase()}`} notes={(side === "a" ? a : b).notes} />
      ))}
      <p class="summary links">
        {SIDES.map((side) => (
          <Link key={side} class="onward" path="/serve" query={serveQuery(inputs, side)}>
            {`${side.toUpperCase()} in Serve →`}
          </Link>
        ))}
      </p>
    </>
  );
}

const titleOf = (one: Compared, other: Compared): string => `${one.model === other.model ? "" : `${one.model}, `}${one.gpus} × ${one.gpu}${one.engine === other.engine ? "" : `, ${one.engine}`}`;

/** USD of a million output tokens, where the GPU has a price. */
function useCost(): (one: Compared) => Figure | null {
  const known = useList<Gpu>("/api/gpus");
  useOwn();
  return (one) => {
    const hourly = known.find((gpu) => gpu.name === one.gpu)?.usd_per_hour;
    return hourly && one.output_tokens_per_s > 0 ? { value: ((hourly * one.gpus) / 3600 / one.output_tokens_per_s) * 1e6 } : null;
  };
}

function rowsOf(a: Compared, b: Compared, cost: (one: Compared) => Figure | null): Row[] {
  const times = (flows(a) ? TRAFFIC_TIMES : BATCH_TIMES).map(([name, field]) => ({ name, a: timed(a, field), b: timed(b, field), show: milliseconds, range: (low: number, high: number) => timeRange(low * 1e3, high * 1e3) }));
  const plain = (name: string, read: (one: Compared) => Figure | null, show: (value: number) => string): Row => ({ name, a: read(a), b: read(b), show });
  return [
    ...times,
    plain("Output tokens/s", rate, (value) => digits(value, 4)),
    plain("Output tokens/s a GPU", (one) => over(rate(one), one.gpus), (value) => digits(value, 4)),
    plain("USD per million output tokens", cost, usd),
    plain("W of a GPU", (one) => timed(one, "power_w"), (value) => digits(value)),
    plain("J an output token", (one) => timed(one, "energy_j_per_output_token"), (value) => digits(value)),
    plain("Weights of a GPU", (one) => memory(one, "weights"), gib),
    plain("KV cache of a GPU", (one) => memory(one, "kv"), gib),
    plain("Tokens of KV cache", (one) => (flows(one) ? { value: one.kv_tokens } : memory(one, "kv_tokens")), whole),
    plain("GPUs", (one) => ({ value: one.gpus }), whole),
  ].filter((row) => row.a !== null || row.b !== null);
}

const BATCH_TIMES = [["TTFT of all requests", "prefill_ms"], ["TPOT", "tpot_ms"], ["End to end", "e2e_ms"]] as const;
const TRAFFIC_TIMES = [["TTFT, mean", "ttft_mean_ms"], ["TTFT, p99", "ttft_p99_ms"], ["TPOT, mean", "tpot_mean_ms"], ["TPOT, p99", "tpot_p99_ms"], ["End to end, mean", "e2e_mean_ms"], ["End to end, p99", "e2e_p99_ms"]] as const;

function timed(one: Compared, field: string): Figure | null {
  const found = one as unknown as Record<string, number | undefined>;
  const [value, low, high] = [found[field], found[`${field}_low`], found[`${field}_high`]];
  return value === undefined ? null : { value, ...(low !== undefined && high !== undefined ? { low, high } : {}) };
}

/** The same tokens in the shortest and the longest time of a batch. */
function rate(one: Compared): Figure {
  const value = one.output_tokens_per_s;
  return flows(one) ? { value } : { value, low: (value * one.e2e_ms) / one.e2e_ms_high, high: (value * one.e2e_ms) / one.e2e_ms_low };
}

const over = ({ value, low, high }: Figure, by: number): Figure => ({ value: value / by, ...(low !== undefined && high !== undefined ? { low: low / by, high: high / by } : {}) });
const memory = (one: Compared, part: string): Figure | null => (flows(one) ? null : { value: (one as ServeAnswer).memory_gib[part] ?? 0 });

function Shown({ figure, row }: { figure: Figure | null; row: Row }) {
  if (!figure) return <>–</>;
  const { low, high } = figure;
  const range = row.range ?? ((from: number, to: number) => `${row.show(from)} – ${row.show(to)}`);
  return (
    <span class="with-range">
      {row.show(figure.value)}
      {low !== undefined && high !== undefined && <small>{range(low, high)}</small>}
    </span>
  );
}

const change = (a: Figure | null, b: Figure | null): number | null => (a && b && a.value ? 100 * (b.value / a.value - 1) : null);

function changeText(row: Row): string {
  const percent = change(row.a, row.b);
  if (percent === null || !row.a || !row.b) return "–";
  const difference = row.b.value - row.a.value;
  const sign = difference < 0 ? "−" : "+";
  return difference === 0 ? "same" : `${sign}${row.show(Math.abs(difference))} (${signedPercent(percent)})`;
}

function apart(a: Figure | null, b: Figure | null): string {
  if (a?.low === undefined || a.high === undefined || b?.low === undefined || b.high === undefined) return "";
  return a.low > b.high || b.low > a.high ? "apart" : "overlap";
}

const partsOf = (one: Compared): [string, Parts][] =>
  flows(one)
    ? [["Where TTFT goes", one.where.ttft_ms], ["Where TPOT goes", one.where.tpot_ms ?? {}]]
    : [["Prefill by kernel family", one.breakdown.prefill_ms], ["Decode step by kernel family", one.breakdown.decode_step_ms]];

const sum = (parts: Parts): number => Object.values(parts).reduce((total, value) => total + value, 0);
const families = (parts: Parts): Part[] => Object.entries(parts).map(([name, value]) => ({ name, value, colour: name === "waiting" ? "grey-2" : familyColour(name) }));
