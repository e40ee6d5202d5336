/** The question of Serve under traffic, from the inputs in the URL. */

import { gpuOf, modelOf, traceOf } from "../core/own";
import { POOL_SPLITS, type ServeInputs, whatIf } from "./inputs";

export function trafficBody(inputs: ServeInputs): Record<string, unknown> | null {
  const { tp, pp, ep, engine, kv_cache_dtype, input_len, output_len, max_num_batched_tokens, max_num_seqs } = inputs;
  const { requests, spread, ttft_ms, tpot_ms, e2e_ms } = inputs;
  const arriving = arrivals(inputs);
  return arriving && {
    ...{ model: modelOf(inputs.model), gpu: gpuOf(inputs.gpu), tp, pp, ep, engine, kv_cache_dtype },
    ...{ input_len, output_len, max_num_batched_tokens, max_num_seqs, requests, spread, ttft_ms, tpot_ms, e2e_ms },
    ...{ dp: inputs.dp, prefill_engines: inputs.prefill_engines, decode_engines: inputs.decode_engines, speculative: speculative(inputs) },
    ...pools(inputs),
    ...{ what_if: whatIf(inputs), settled: inputs.settled === "yes" },
    ...arriving,
  };
}

/** The splits of pools that have one of their own; without engines apart there are no pools. */
function pools(inputs: ServeInputs): Record<string, number | null> {
  if (!inputs.prefill_engines && !inputs.decode_engines) return {};
  return Object.fromEntries(POOL_SPLITS.map((name) => [name, inputs[name]]));
}

/** How tokens are drafted, in the words of `--speculative`; null where none are. */
function speculative({ drafts, draft_tokens, acceptance }: ServeInputs): string | null {
  if (drafts === "none") return null;
  const more = Object.entries({ tokens: draft_tokens, acceptance }).flatMap(([name, value]) => (value === null ? [] : [`${name}=${value}`]));
  return [`method=${drafts}`, ...more].join(",");
}

/** How requests come; null while a trace is asked for and none is open. */
function arrivals(inputs: ServeInputs): Record<string, unknown> | null {
  if (inputs.arrivals === "rate") return { rate: inputs.rate };
  if (inputs.arrivals === "concurrency") return { concurrency: inputs.concurrency };
  if (inputs.arrivals === "together") return {};
  const trace = traceOf(inputs.trace);
  return trace ? { trace } : null;
}
