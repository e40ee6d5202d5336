"""Whose rows answer for software that is asked for."""

from __future__ import annotations

import pytest

from pipewave.nets.weights_metadata import (
    LEVELS,
    TrainingRow,
    TrainingRows,
    alike,
    from_nested,
    furthest,
    kind_of,
)
from pipewave.prediction.fallback import Query, fallback_chain
from pipewave.software.stacks import framework, nearest, version, version_text, versioned

ROWS = (
    TrainingRow("graph", "vllm-0.19.0", "bf16", "H200", "default"),
    TrainingRow("graph", "vllm-0.24.0", "bf16", "H200", "cublas"),
    TrainingRow("graph", "vllm-0.22.0", "bf16", "L40S", "cublas"),
    TrainingRow("graph", "vllm-0.22.0", "bf16,fp8", "L40S", "flashinfer"),
    TrainingRow("graph", "trtllm-1.2.0", "int4", "H200", "plugin"),
    TrainingRow("cold", "vllm-0.22.1", "fp8", "H200", "cutlass"),
    TrainingRow("graph", "sglang-0.5.9", "fp8", "H200", "cutlass"),
    TrainingRow("graph", "vllm-0.22.1", "bf16", "H200", "cublas"),
)
KNOWN = TrainingRows(frozenset(ROWS))


@pytest.mark.parametrize(
    ("stack", "gpu", "kind", "answered", "level"),
    [
        ("vllm-0.24.0", "H200", "bf16", "vllm-0.24.0", "measured"),
        ("vllm-0.24.0", "H200", "fp16", "vllm-0.24.0", "measured"),  # the same kernels take both
        ("vllm-0.24.0", "L40S", "bf16", "vllm-0.24.0", "other_gpu"),
        ("vllm-0.23.0", "L40S", "bf16", "vllm-0.22.0", "nearest_version"),
        ("vllm-0.10.0", "H200", "bf16", "vllm-0.19.0", "nearest_version"),
        ("vllm-0.24.0", "H200", "int4", "trtllm-1.2.0", "other_framework"),  # no 16-bit kernel stands in
        ("vllm-0.22.1", "H200", "fp8", "vllm-0.22.1", "measured"),  # cold rows of the type on this very GPU
        ("trtllm-1.2.0", "H200", "bf16", "trtllm-1.2.0", "other_framework"),  # its own kernels, of another type: told
        ("vllm-0.22.0", "L40S", "bf16,fp8", "vllm-0.22.0", "measured"),
        ("vllm-0.22.0", "H200", "bf16,fp8", "vllm-0.22.0", "other_gpu"),
    ],
)
def test_the_nearest_rows_answer_and_a_note_says_which(
    stack: str, gpu: str, kind: str, answered: str, level: str
) -> None:
    found = fallback_chain(KNOWN, Query(stack, gpu, kind, "graph"), None)[0]
    assert (found.stack, found.level) == (answered, level)
    assert (found.note == "") == (level == "measured")
    assert not found.note or found.note.startswith(f"no rows of {stack}")


def test_calls_that_name_no_stack_get_no_note() -> None:
    assert fallback_chain(KNOWN, Query(None, "A100", "bf16", "graph"), None)[0].note == ""


LIBRARY = TrainingRows(  # vLLM 0.22.1's 16-bit products are that torch's, which was measured on Hopper alone
    frozenset(
        TrainingRow("graph", stack, "bf16", gpu, "cublas")
        for stack, gpu in [
            ("torch-2.11", "H200"),
            ("vllm-0.22.0", "H200"),
            ("vllm-0.22.0", "L40S"),
            ("vllm-0.24.0", "RTX PRO 6000 Server"),
            ("vllm-0.14.0", "A100"),
        ]
    )
)


@pytest.mark.parametrize(
    ("gpu", "answered", "level"),
    [
        ("H200", "torch-2.11", "measured"),
        ("L40S", "vllm-0.22.0", "nearest_version"),
        ("RTX PRO 6000 Server", "vllm-0.24.0", "nearest_version"),
        ("A100", "torch-2.11", "other_gpu"),  # its own rows are four months older
        ("B300", "torch-2.11", "other_gpu"),  # nobody measured it
    ],
)
def test_a_near_version_measured_on_the_gpu_goes_before_the_library_measured_on_others(
    gpu: str, answered: str, level: str
) -> None:
    found = fallback_chain(LIBRARY, Query("vllm-0.22.1", gpu, "bf16", "graph"), None)[0]
    assert (found.measured_as, found.level) == (answered, level)


def test_a_card_is_read_row_by_row() -> None:
    of_l40s = {"vllm-0.22.0": {"bf16": {"L40S": ["cublas", "default"]}, "bf16,fp8": {"L40S": ["flashinfer"]}}}
    assert from_nested({"graph": of_l40s, "cold": {"vllm-0.22.1": {"fp8": {"H200": ["cutlass"]}}}}).rows == {
        TrainingRow("graph", "vllm-0.22.0", "bf16", "L40S", "cublas"),
        TrainingRow("graph", "vllm-0.22.0", "bf16", "L40S", "default"),
        TrainingRow("graph", "vllm-0.22.0", "bf16,fp8", "L40S", "flashinfer"),
        TrainingRow("cold", "vllm-0.22.1", "fp8", "H200", "cutlass"),
    }


def test_of_levels_the_furthest_counts() -> None:
    assert furthest("measured", "nearest_version", "other_gpu") == "nearest_version"
    assert [furthest(level) for level in LEVELS] == list(LEVELS)


def test_kinds_are_types_of_call_and_cache() -> None:
    assert kind_of("bf16") == kind_of("bf16", "bf16") == "bf16" and kind_of("bf16", "fp8") == "bf16,fp8"
    assert set(alike("fp16,fp8")) == {"fp16,fp8", "bf16,fp8"} and alike("fp8") == ("fp8",)


def test_a_release_comes_after_its_candidates_and_before_what_is_posted_after_it() -> None:
    order = [
        "trtllm-1.2.0",
        "trtllm-1.3.0rc10",
        "trtllm-1.3.0rc20",
        "trtllm-1.3.0",
        "trtllm-1.3.0.post1",
        "trtllm-1.3.1",
    ]
    assert sorted(order, key=version) == order
    assert nearest("trtllm-1.3.0", ["trtllm-1.2.0", "trtllm-1.3.0rc10", "trtllm-1.3.0rc20"]) == "trtllm-1.3.0rc20"
    assert version("vllm-0.24") == version("vllm-0.24.0") and version("vllm") == ()


SGLANG = ["sglang-0.5.6.post2", "sglang-0.5.9", "sglang-0.5.14"]
TRTLLM = ["trtllm-1.0.0", "trtllm-1.2.0rc5", "trtllm-1.3.0rc10", "trtllm-1.3.0rc20"]


@pytest.mark.parametrize(
    ("stack", "known", "found"),
    [
        ("sglang-0.6.0", SGLANG, "sglang-0.5.14"),  # its last number is nearer to that of 0.5.6
        ("sglang-0.4.9", SGLANG, "sglang-0.5.6.post2"),
        ("sglang-0.5.8", SGLANG, "sglang-0.5.9"),
        ("trtllm-2.0.0", TRTLLM, "trtllm-1.3.0rc20"),
        ("trtllm-1.4.0rc2", TRTLLM, "trtllm-1.3.0rc20"),
        ("trtllm-1.3.0rc1", TRTLLM, "trtllm-1.3.0rc10"),
        ("trtllm-1.2.0", TRTLLM, "trtllm-1.2.0rc5"),
        ("trtllm-0.21.0", TRTLLM, "trtllm-1.0.0"),
    ],
)
def test_the_nearest_version_is_a_neighbour_in_order(stack: str, known: list[str], found: str) -> None:
    assert nearest(stack, known) == nearest(stack, known[::-1]) == found


@pytest.mark.parametrize(
    ("written", "stack"),
    [
        ("vLLM==0.22.1", "vllm-0.22.1"),
        ("vllm:v0.22.1-cu130", "vllm-0.22.1"),
        ("vllm-0.22.1+cu130", "vllm-0.22.1"),
        ("vllm-0.22.1.post1", "vllm-0.22.1.post1"),  # a release of its own
        ("TensorRT-LLM 1.3.0rc20", "trtllm-1.3.0rc20"),
        ("tensorrt_llm-1.3.0-rc20", "trtllm-1.3.0-rc20"),
        ("vllm-latest", "vllm"),
        ("v0.22.1", "0.22.1"),
        ("llmservingsim-0", "llmservingsim-0"),
    ],
)
def test_a_stack_is_read_as_people_write_it(written: str, stack: str) -> None:
    assert "-".join(filter(None, (framework(written), version_text(written)))) == stack


@pytest.mark.parametrize(
    ("written", "stack"),
    [
        ("vllm-0.24", "vllm-0.24.0"),
        ("tensorrt_llm-1.3.0-rc20", "trtllm-1.3.0rc20"),
        ("0.5.14", "sglang-0.5.14"),  # which framework has such a version says whose it is
        ("0.31", "vllm-0.31"),
        ("latest", "vllm-0.24.0"),
        ("sglang-nightly", "sglang-0.5.14"),
        ("other-2", "other-2"),
    ],
)
def test_a_stack_goes_by_the_name_of_its_rows(written: str, stack: str) -> None:
    assert versioned(written, "graph", [*SGLANG, *TRTLLM, "vllm-0.24.0"]) == stack


def test_a_version_before_other_kernels_answers_where_no_other_can_and_a_note_says_so() -> None:
    rows = TrainingRows(frozenset({TrainingRow("graph", "vllm-0.22.0", "fp8", "H200", "a")}))
    later, earlier = (Query(f"vllm-{one}", "H200", "fp8", "graph", "fused_moe", 90) for one in ("0.24.0", "0.23.0"))
    found = [fallback_chain(rows, query, None)[0] for query in (later, earlier)]
    assert [one.stack for one in found] == ["vllm-0.22.0"] * 2
    assert ["which ran other kernels" in one.note for one in found] == [True, False]
    assert [query.changed("vllm-0.22.0") for query in (later, earlier)] == [True, False]


def test_the_chain_goes_from_the_nearest_version_to_another_framework_with_reasons() -> None:
    rows = TrainingRows(
        frozenset(
            TrainingRow("graph", stack, "bf16", gpu, "a")
            for stack, gpu in (("vllm-0.19.0", "H100"), ("vllm-0.24.0", "B200"), ("sglang-0.5.14", "H200"))
        )
    )
    query = Query("vllm-0.23.0", "H200", "bf16", "graph", "gemm", 90)
    chain = fallback_chain(rows, query, "sglang-0.5.14")
    assert [one.stack for one in chain] == ["vllm-0.19.0", "vllm-0.24.0", "sglang-0.5.14"]  # H100 runs H200's kernels
    assert [one.level for one in chain] == [LEVELS[2], LEVELS[2], LEVELS[3]]
    assert all("no rows of vllm-0.23.0 bf16 on H200" in one.note for one in chain)
