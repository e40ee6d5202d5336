"""Mean TTFT and TPOT of a run by part: queueing, front end, cache transfer, kernel families and gaps of steps.

A request passes the front end and waits until the first step with a piece of its prompt begins; from there to its first
token it is in steps, of its own prompt and of others; where engines are disaggregated, its cache moves to the engine
that sends the first token. Its tokens pass the front end again. A later token takes a step; where tokens are drafted, a
step verifies several and drafts anew. A sample of the steps of each kind is priced kernel by kernel and its shares are
spread over the time, so that parts add up to the mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipewave.models.kernels import Batch
from pipewave.physics.demand import Array
from pipewave.simulate.engine_step import Step
from pipewave.simulate.pools import Pools
from pipewave.simulate.server import Server
from pipewave.simulate.simulation import Record
from pipewave.simulate.traffic import Traffic

SAMPLES = 12  # steps of a kind that are priced
FRONT, WAITING, DRAFTING, TRANSFER = "front_end", "waiting", "drafting", "cache_transfer"
Parts = dict[str, float]


def latency_breakdown(
    pools: Pools, record: Record, traffic: Traffic, kept: NDArray[np.bool_] | None = None
) -> dict[str, Parts]:
    """Parts in ms of the means over requests (those kept): `ttft_ms`, and `tpot_ms` where there are later tokens."""
    chosen = np.ones(len(traffic), bool) if kept is None else kept
    before, out = record.reached_s - record.arrival_s, record.first_s - record.first_made_s
    whole, passed = record.first_s - record.arrival_s, before + out
    known = (passed, _waited(record, len(traffic)), _moved(pools, traffic))
    ttft, *beside = (1e3 * float(one[chosen].mean()) for one in (whole, *known))
    prompts = [step for _, step in record.steps if step.pieces]
    named = dict(zip((FRONT, WAITING, TRANSFER), beside, strict=True))
    parts = {"ttft_ms": named | _spread(pools.servers[0], prompts, ttft - sum(beside))}
    later = chosen & (traffic.output_len > 1)
    if later.any():
        held = record.done_s - record.done_made_s - out
        whole = record.done_s - record.first_s
        tpot, front = (1e3 * float((s[later] / (traffic.output_len[later] - 1)).mean()) for s in (whole, held))
        decodes = [step for _, step in record.steps if step.decoding]
        parts["tpot_ms"] = {FRONT: front} | _spread(pools.decode, decodes, tpot - front)
    return {name: {part: round(ms, 4) for part, ms in found.items() if round(ms, 4)} for name, found in parts.items()}


def _waited(record: Record, count: int) -> Array:
    """Seconds from when a request reached an engine until the first step with a piece of it began, [request]."""
    began = np.full(count, np.nan)
    for _, step in record.steps:
        for request in {request for request, _, _ in step.pieces}:
            if np.isnan(began[request]):
                began[request] = step.start_s
    began = np.where(np.isnan(began), record.first_made_s, began)
    return began - record.reached_s


def _moved(pools: Pools, traffic: Traffic) -> Array:
    """Seconds that each request's cache takes from one engine to the other; a single token is sent by the first."""
    if not pools.disaggregated:
        return np.zeros(len(traffic))
    moved = np.array([pools.transfer_s(int(tokens)) for tokens in traffic.input_len])
    return np.where(traffic.output_len > 1, moved, 0.0)


def _spread(server: Server, steps: Sequence[Step], total_ms: float) -> Parts:
    """A time over the families and gaps of steps, by a sample that long steps are likelier to be in."""
    if not steps or total_ms <= 0:
        return {}
    reached = np.cumsum([step.seconds for step in steps])
    places = np.searchsorted(reached, reached[-1] * (np.arange(SAMPLES) + 0.5) / SAMPLES)
    sample = [steps[int(at)] for at in np.unique(places)]
    found = server.runner.steps([_batch(server, step) for step in sample])
    weight = np.unique(places, return_counts=True)[1] / SAMPLES
    drafting = np.array([_drafting(server, step) for step in sample])
    each = {name: (1.0 - drafting) * us / found.total_us for name, us in (found.families | found.gaps).items()}
    shares = {name: float(share @ weight) for name, share in (each | {DRAFTING: drafting}).items()}
    whole = sum(shares.values())
    return {name: total_ms * share / whole for name, share in shares.items()}


def _batch(server: Server, step: Step) -> Batch:
    """The step as it is priced: tokens that it verifies are those of one request."""
    verified = server.drafted.verifying.verify if server.drafted else 1
    if verified == 1 or step.pieces:
        mean = max(round(step.cached / step.decoding), 1) if step.decoding else 0  # decoding requests as equals
        pieces = [(tokens, before + tokens) for _, tokens, before in step.pieces]
        q_lens, kv_lens = zip(*[(1, mean)] * step.decoding, *pieces, strict=True)
        return server.runner.batch(q_lens, kv_lens)
    cached = max(round(step.cached / step.decoding), 1) + verified - 1
    return Batch((verified,) * step.decoding, (cached,) * step.decoding, verify=verified)


def _drafting(server: Server, step: Step) -> float:
    """Share of a step in which new tokens are drafted."""
    drafted = server.drafted
    if drafted is None or not step.decoding:
        return 0.0
    drafts = drafted.drafts.seconds(step.decoding, step.cached)
    pieces = [(tokens, before) for _, tokens, before in step.pieces]
    return drafts / (drafts + drafted.verifying.seconds(step.decoding, step.cached, pieces))
