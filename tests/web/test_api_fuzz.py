"""No question, however odd, is the server's fault: generated requests to every endpoint never meet a 5xx.

`PIPEWAVE_FUZZ` sets the examples an endpoint (default 60, so that a test run stays short; `make test-web PIPEWAVE_FUZZ=1000`
asks 1,000). Beside what the schema generates, the case of a kernel and the numbers of a GPU are drawn here, since the schema
leaves them open.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

schemathesis = pytest.importorskip("schemathesis")

from schemathesis.checks import not_a_server_error  # noqa: E402

from pipewave.calls.families import CLASSES  # noqa: E402
from pipewave.calls.fields import rules  # noqa: E402
from pipewave.gpus.spec import LIMITS  # noqa: E402
from pipewave.models.load import FOLDER  # noqa: E402
from pipewave.web.kernel import sweepable  # noqa: E402

EXAMPLES = int(os.environ.get("PIPEWAVE_FUZZ", "60"))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 100,  # the short run is the same every time
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
ENDPOINTS = [("GET", f"/api/{name}") for name in ("health", "gpus", "models", "kernels")]
ENDPOINTS += [
    ("POST", f"/api/{name}") for name in ("kernel", "grid", "serve", "traffic", "plan", "trace", "model", "gpu")
]


@pytest.fixture(scope="session")
def schema(client: Any) -> Any:
    """The application's own schema, asked over the wire."""
    return schemathesis.openapi.from_url(f"{client.url}/api/openapi.json")


def test_every_endpoint_is_fuzzed(client: Any) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == set(ENDPOINTS)


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_generated_from_the_schema(schema: Any, client: Any, method: str, path: str) -> None:
    operation = schema[path][method]

    @FUZZ
    @given(case=operation.as_strategy() | operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    def run(case: Any) -> None:
        case.call_and_validate(base_url=client.url, checks=[not_a_server_error])

    run()


GPUS = st.sampled_from(["H200", "L40S", "V100", "B200", "RTX 5090", "h100", "nvidia", "x.yaml", ""])
ODD = st.sampled_from(
    [0, 1, -1, 3, 7, 64, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 50, 1 << 80, 1.5, 1e308, True, None, "", [], {}]
)
SIZES = st.sampled_from([1, 2, 8, 64, 128, 1000, 4096, 16384]) | st.integers(1, 1 << 17)
LISTS = st.lists(st.sampled_from([1, 16, 128, 4096, 100_000]) | ODD, max_size=6)
WHAT_IF = st.dictionaries(st.sampled_from(sorted(LIMITS)), st.floats(0, 1e7) | st.integers(0, 5000) | ODD, max_size=3)
CONFIGS = sorted(FOLDER.glob("*.json"))
MODELS = st.sampled_from(
    ["Llama-3.1-8B", "DeepSeek-V2-Lite", "Qwen3-30B-A3B", "gpt-oss-20b", "Gemma-3-1B", "../x", "a" * 300]
)


@st.composite
def kernel_questions(draw: Any) -> dict[str, Any]:
    """Cases near the valid ones: every field drawn from its rule; in every other case, something odd now and then."""
    kernel, odd = draw(st.sampled_from(sorted(CLASSES))), draw(st.booleans())
    fields = {name: rule for name, rule in rules(CLASSES[kernel]).items() if odd or not (rule.optional or rule.choices)}
    case = {name: draw(_value(rule) if odd else _plain(rule)) for name, rule in fields.items()
            if draw(st.integers(0, 9)) < 8 or not odd}  # fmt: skip
    if draw(st.integers(0, 9)) < 8:  # lists of equal length, cache not shorter than its new tokens
        lens = draw(st.lists(st.integers(1, 4096), min_size=1, max_size=8))
        case |= {"q_lens": [1] * len(lens), "kv_lens": lens} if "q_lens" in rules(CLASSES[kernel]) else {}
    if "heads" in case and draw(st.booleans()):
        case |= {"heads": 32, "kv_heads": draw(st.sampled_from([1, 8, 32])), "head_dim": 128}
        case = {name: value for name, value in case.items() if name in rules(CLASSES[kernel])}
    first, size = draw(st.integers(0, 5000)), draw(st.integers(0, 1 << 20))
    swept = [*sweepable(kernel), *(["dtype", "?"] if odd else [])]
    sweep = {"field": draw(st.sampled_from(swept)), "from": first, "to": first + size,
             "points": draw(st.integers(1, 40)), "scale": draw(st.sampled_from(["linear", "log"]))}  # fmt: skip
    asked = {"kernel": kernel, "case": case, "sweep": sweep, "gpus": ["H200"]}
    if not odd:
        return asked
    return asked | {"gpus": draw(st.lists(GPUS, min_size=1, max_size=2)), "what_if": draw(st.just({}) | WHAT_IF),
                    "protocol": draw(st.sampled_from(["cold", "serving", "graph", "profiler_warm", "?"]))}  # fmt: skip


def _plain(rule: Any) -> st.SearchStrategy[Any]:
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "int": SIZES,
        "float": st.floats(0, 100),
        "bool": st.booleans(),
        "str": st.sampled_from(rule.choices or ("vllm", "sglang-0.5.10", "trtllm", "x")),
        "ints": LISTS,
        "routing": st.sampled_from(["balanced", "random", "power_law_1.2", "power_law_1.2_eplb", "power_law_.", "?"]),
        "config": st.dictionaries(
            st.sampled_from(["BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps", "?"]), SIZES, max_size=3
        ),
    }
    return kinds[rule.kind]


def _value(rule: Any) -> st.SearchStrategy[Any]:
    plain = _plain(rule)
    return st.one_of(plain, plain, plain, st.none() if rule.optional else plain, ODD)


@st.composite
def configs(draw: Any) -> dict[str, Any]:
    """A built-in model's config.json with a few values replaced or gone."""
    config = json.loads(draw(st.sampled_from(CONFIGS)).read_text("utf-8"))
    for name in draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        if draw(st.integers(0, 9)):
            config[name] = draw(ODD)
        else:
            config.pop(name, None)
    return config


SERVE = st.fixed_dictionaries(
    {"model": MODELS | configs(), "gpu": GPUS, "batch": SIZES | ODD, "input_len": SIZES, "output_len": SIZES},
    optional={"tp": st.sampled_from([1, 2, 3, 8]), "pp": st.sampled_from([1, 2, 5]), "ep": st.sampled_from([1, 2]),
              "engine": st.sampled_from(["vllm", "sglang", "?"]), "max_num_batched_tokens": SIZES | ODD,
              "kv_cache_dtype": st.sampled_from(["auto", "fp8", None, "?"]), "what_if": WHAT_IF},
)  # fmt: skip
PLAN = st.fixed_dictionaries(
    {"model": MODELS, "gpus": st.lists(GPUS, min_size=1, max_size=2), "input_len": SIZES, "output_len": SIZES.map(lambda n: min(n, 1024))},  # minutes beyond
    optional={"tp": st.lists(st.sampled_from([1, 2, 3, 8]), max_size=2), "pp": st.lists(st.sampled_from([1, 2]), max_size=2),
              "ttft_ms": st.floats(0, 1e6), "tpot_ms": st.floats(0, 1e3) | ODD, "prices": st.dictionaries(GPUS, st.floats(0, 10)),
              "max_num_seqs": st.lists(SIZES, max_size=3), "max_num_batched_tokens": st.lists(SIZES, max_size=3)},
)  # fmt: skip
SPEC = st.dictionaries(
    st.sampled_from(["name", "base", "sources", "traits", *sorted(LIMITS)]),
    st.sampled_from(["H200", "Mine", "measured"]) | st.floats(0, 1e7) | st.integers(0, 5000) | ODD,
    max_size=5,
)
SPEC_FILE = (
    st.builds(lambda base, more: {**base, **more}, st.just({"name": "Mine", "base": "H200"}), SPEC) | SPEC
).map(lambda spec: {"gpu": {"file": "mine.json", "text": json.dumps(spec)}})
ROW = st.dictionaries(st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]), SIZES | ODD | LISTS)
ROWS = st.lists(st.fixed_dictionaries({"input_length": SIZES, "output_length": st.integers(1, 64)}) | ROW, max_size=5)
TRAFFIC = st.fixed_dictionaries(
    {"model": MODELS, "gpu": GPUS, "input_len": SIZES, "output_len": st.integers(1, 64), "requests": st.integers(1, 40)},
    optional={"rate": st.floats(0, 1e6) | ODD, "concurrency": SIZES | ODD, "settled": st.booleans(), "spread": st.floats(0, 1),
              "tp": st.sampled_from([1, 2, 3]), "max_num_seqs": SIZES, "max_num_batched_tokens": SIZES | ODD, "ttft_ms": ODD,
              "dp": st.sampled_from([1, 2, 0]), "prefill_engines": st.integers(-1, 3), "decode_engines": st.integers(0, 3) | ODD,
              "prefill_tp": st.sampled_from([1, 2, 3, None]), "decode_dp": st.sampled_from([1, 2, 0, None]),
              "speculative": st.sampled_from(["mtp", "ngram", "method=eagle3,tokens=3,acceptance=0.7", "method=draft,model=/etc",
                                              "tokens=1e9", "acceptance=2", ""]) | ODD,
              "trace": ROWS.map(lambda rows: {"file": "a.jsonl", "text": "\n".join(map(json.dumps, rows))})},
)  # fmt: skip


@st.composite
def grid_questions(draw: Any) -> dict[str, Any]:
    """A product over two sizes, or any kernel's question with a second sweep and its first GPU alone."""
    if draw(st.booleans()):
        x, y = ({"field": name, "from": 1, "to": draw(SIZES | ODD), "points": 3} for name in ("m", "n"))
        return {"kernel": "gemm", "case": {"k": draw(SIZES)}, "x": x, "y": y, "gpu": draw(GPUS)}
    question = draw(kernel_questions())
    other = draw(st.sampled_from([*sweepable(question["kernel"]), "?"]))
    sweep = {"field": other, "from": draw(st.integers(0, 64)), "to": draw(st.integers(0, 5000)), "points": 3}
    first, gpu = question.pop("sweep") | {"points": 4}, question.pop("gpus")[0]
    return question | {"x": first, "y": sweep, "gpu": gpu}


KERNEL_EVENT = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime"]), "ts": st.floats(0, 1e9) | ODD, "dur": st.floats(0, 1e6) | ODD,
     "name": st.sampled_from(["gemm", "sm90_xmma_gemm_bf16bf16_bf16f32", "flash_fwd_kernel", "aten::mm", "ncclKernel_AllReduce", "\ud800"])},
    optional={"args": st.dictionaries(st.sampled_from(["External id", "correlation", "stream", "grid", "Input Dims", "Concrete Inputs"]),
                                      ODD | LISTS | st.lists(LISTS, max_size=3), max_size=4), "pid": ODD, "tid": ODD},
)  # fmt: skip
TRACE = st.fixed_dictionaries(
    {"traceEvents": st.lists(KERNEL_EVENT | ODD, max_size=5)}, optional={"deviceProperties": LISTS}
)


@pytest.mark.parametrize(
    ("path", "questions"),
    [
        ("kernel", kernel_questions()),
        ("grid", grid_questions()),
        ("serve", SERVE),
        ("traffic", TRAFFIC),
        ("plan", PLAN),
        ("gpu", SPEC_FILE),
        ("trace?gpu=H200", TRACE),
    ],
)
def test_questions_near_the_valid_ones(client: Any, path: str, questions: Any) -> None:
    """The answer is 2xx or 4xx, and an error has the one shape of all errors."""
    answered = []

    @FUZZ
    @given(questions)
    def run(question: Any) -> None:
        reply = client.post(f"/api/{path}", question)
        assert reply.status in (200, 422), (reply.status, json.dumps(question))
        answered.append(reply.status)
        if reply.status != 200:
            assert set(reply.json()["error"]) == {"code", "field", "message"}

    run()
    assert {200, 422} <= set(answered)
