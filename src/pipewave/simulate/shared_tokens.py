"""Which tokens requests have in common: a tree of segments, through which each request is a path.

A segment holds tokens that follow the same tokens for every request that passes it. Sessions branch off what all of
them begin with and then go straight on: a turn's prompt is the last turn's prompt and answer, and more. Hashes of
blocks (Mooncake's `hash_ids`) make a tree of blocks, whose stretches without a branch are segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadInput

HASHED = 512  # tokens of a hashed block in Mooncake's traces
EXACT = 16  # tokens of a block where the trace says where requests part


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """Segments of the tree, and the path of each request."""

    paths: tuple[tuple[int, ...], ...]  # segments of each request, in order of its tokens
    known: tuple[int, ...]  # tokens of each request that its path tells; those behind them are its own
    begins: tuple[int, ...]  # tokens in front of each segment
    ends: tuple[int, ...]  # the same with the segment's own
    block_tokens: int = EXACT  # tokens by which requests are told apart

    def first(self, count: int) -> SharedTokens:
        """Those of the first so many requests."""
        return replace(self, paths=self.paths[:count], known=self.known[:count])

    def blocks(self, request: int, count: int) -> list[tuple[int, int]]:
        """The first so many blocks of a request as (segment, index): two requests that share a block have one name."""
        path, at, named = self.paths[request], 0, []
        for index in range(count):
            end = (index + 1) * self.block_tokens
            while at + 1 < len(path) and self.ends[path[at]] < end:
                at += 1
            named.append((path[at] if path else ~request, index))
        return named


def of_sessions(
    sessions: Sequence[int], turns: Sequence[tuple[int, int]], prefix: Sequence[int], where: Sequence[int]
) -> SharedTokens:
    """The tree of sessions. Of each request: its session from 0 up, its prompt and answer tokens (turns of a session in
    order), how many tokens at its start are the same in all sessions, and its row in a file, for messages.

    Raises BadInput for a prompt that is shorter than the turn before it with its answer, or than its shared prefix.
    """
    said, prefix_of = dict[int, int](), dict[int, int]()
    for session, (prompt, answer), shared, row in zip(sessions, turns, prefix, where, strict=True):
        if prompt < said.get(session, 0):
            raise BadInput(
                f"row {row}: prompt_tokens = {prompt}, but the turn before it had {said[session]} with its answer; "
                "prompt_tokens counts the whole prompt, which begins with them",
                field="prompt_tokens",
            )
        if shared > prompt:
            raise BadInput(f"row {row}: shared_prefix = {shared} exceeds the prompt of {prompt}", field="shared_prefix")
        said[session] = prompt + answer
        prefix_of[session] = max(shared, prefix_of.get(session, 0))
    lengths = sorted(set(prefix_of.values()) - {0})
    own = {session: len(lengths) + place for place, session in enumerate(said)}
    begins = [0, *lengths[:-1]] if lengths else []
    begins += [prefix_of[session] for session in said]
    common = {length: tuple(range(place + 1)) for place, length in enumerate(lengths)}
    route = {session: (*common.get(prefix_of[session], ()), own[session]) for session in said}
    return SharedTokens(
        tuple(route[session] for session in sessions),
        tuple(prompt + answer for prompt, answer in turns),
        tuple(begins),
        (*lengths, *said.values()),
    )


def of_hashes(
    hashes: Sequence[Sequence[int]],
    input_len: NDArray[np.int64],
    output_len: NDArray[np.int64],
    block_tokens: int = HASHED,
) -> SharedTokens:
    """The tree of hashed blocks of prompts. A hash stands for its block and all in front of it.

    Hashes say nothing of answers. Where one prompt alone goes on from another one's whole blocks, the answer is taken
    to be what follows there, as in the next turn of a conversation.
    """
    child: dict[tuple[int, int], int] = {}  # (node, hash) → node; 0 is the root
    parent, branches, prompt_ends = [0], [0], [False]
    goes_on: dict[int, int] = {}  # node → the whole block behind it, 0 where there are several
    paths = []
    for listed, prompt in zip(hashes, input_len, strict=True):
        node, path = 0, list[int]()
        for index, block in enumerate(listed):
            known = child.get((node, block))
            if known is None:
                known = child[node, block] = len(parent)
                branches[node] += 1
                if (index + 1) * block_tokens <= prompt:
                    goes_on[node] = 0 if node in goes_on else known
                parent.append(node)
                branches.append(0)
                prompt_ends.append(False)
            node = known
            path.append(node)
        prompt_ends[node] = True
        paths.append(path)
    walks = [
        _with_answer(path, int(prompt), int(prompt + answer), block_tokens, goes_on)
        for path, prompt, answer in zip(paths, input_len, output_len, strict=True)
    ]
    depth, segment = [0] * len(parent), [-1] * len(parent)
    begins, ends = list[int](), list[int]()
    for node in range(1, len(parent)):
        before = parent[node]
        depth[node] = depth[before] + 1
        if before and branches[before] == 1 and not prompt_ends[before]:
            segment[node] = segment[before]
        else:
            segment[node] = len(begins)
            begins.append(depth[before] * block_tokens)
            ends.append(0)
        ends[segment[node]] = depth[node] * block_tokens
    found = tuple(tuple(dict.fromkeys(segment[node] for node in nodes)) for nodes, _ in walks)
    told = tuple(tokens for _, tokens in walks)
    return SharedTokens(found, told, tuple(begins), tuple(ends), block_tokens)


def _with_answer(
    path: list[int], prompt: int, whole: int, block_tokens: int, goes_on: dict[int, int]
) -> tuple[list[int], int]:
    """A prompt's nodes, and those of its answer where one prompt goes on from it; and the tokens that they tell."""
    full = prompt // block_tokens
    node = path[full - 1] if 0 < full <= len(path) else 0
    nodes = path[:full]
    while node and goes_on.get(node) and len(nodes) * block_tokens < whole:
        node = goes_on[node]
        nodes.append(node)
    if len(nodes) * block_tokens <= prompt:
        return path, min(prompt, len(path) * block_tokens)
    return nodes, min(whole, len(nodes) * block_tokens)
