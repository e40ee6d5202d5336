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
    """The tree of hashed blocks of prompts.

    Hashes say nothing of answers. Where one prompt alone goes on from another one's whole blocks, the answer is taken
    to be what follows there, as in the next turn of a conversation.
    """
    tree, prompts = BlockTree(block_tokens), input_len.tolist()
    paths = [tree.add(listed, prompt) for listed, prompt in zip(hashes, prompts, strict=True)]
    whole = (input_len + output_len).tolist()
    walks = [tree.with_answer(*one) for one in zip(paths, prompts, whole, strict=True)]
    segment, begins, ends = tree.segments()
    found = tuple(tuple(dict.fromkeys(segment[node] for node in nodes)) for nodes, _ in walks)
    return SharedTokens(found, tuple(tokens for _, tokens in walks), tuple(begins), tuple(ends), block_tokens)


class BlockTree:
    """Hashed blocks as nodes, each behind its parent; a hash stands for its block and all in front of it."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.child: dict[tuple[int, int], int] = {}  # (node, hash) → node; 0 is the root
        self.parent, self.depth, self.branches, self.prompt_ends = [0], [0], [0], [False]  # [node]
        self.goes_on: dict[int, int] = {}  # node → the whole block behind it, 0 where there are several

    def add(self, hashes: Sequence[int], prompt: int) -> list[int]:
        """The nodes of a prompt of so many tokens."""
        node, path = 0, list[int]()
        for block in hashes:
            known = self.child.setdefault((node, block), len(self.parent))
            if known == len(self.parent):
                self.parent.append(node)
                self.depth.append(len(path) + 1)
                self.branches.append(0)
                self.prompt_ends.append(False)
                self.branches[node] += 1
                if self.depth[known] * self.block_tokens <= prompt:
                    self.goes_on[node] = 0 if node in self.goes_on else known
            node = known
            path.append(node)
        self.prompt_ends[node] = True
        return path

    def with_answer(self, path: list[int], prompt: int, whole: int) -> tuple[list[int], int]:
        """A prompt's nodes, and those of its answer where one prompt goes on from it; and the tokens that they tell.
        `whole`: tokens of both.
        """
        size = self.block_tokens
        full = prompt // size
        node = path[full - 1] if 0 < full <= len(path) else 0
        nodes = path[:full]
        while node and self.goes_on.get(node) and len(nodes) * size < whole:
            node = self.goes_on[node]
            nodes.append(node)
        if len(nodes) * size <= prompt:
            return path, min(prompt, len(path) * size)
        return nodes, min(whole, len(nodes) * size)

    def segments(self) -> tuple[list[int], list[int], list[int]]:
        """The segment of each node, stretches without a branch or an end; tokens in front of each, and to its end."""
        segment, begins, ends = [-1], list[int](), list[int]()
        for before, depth in zip(self.parent[1:], self.depth[1:], strict=True):
            if before and self.branches[before] == 1 and not self.prompt_ends[before]:
                segment.append(segment[before])
            else:
                segment.append(len(begins))
                begins.append((depth - 1) * self.block_tokens)
                ends.append(0)
            ends[segment[-1]] = depth * self.block_tokens
        return segment, begins, ends
