"""vLLM's kernel under our tuner, without vLLM: what is caught of a launch, what a file says, how variants are compared."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab.vllm_engine import moe_config
from pipewave.tune import export, vllm_kernel
from pipewave.tune.export import Layer
from pipewave.tune.fitted import fit
from pipewave.tune.recording import Recording
from pipewave.tune.table import locate, read
from pipewave.tune.vllm_kernel import LAYERS

LAYER = LAYERS["DeepSeek-V2-Lite"]


@dataclass
class FakeKernel:
    """A Triton kernel as far as a launch goes; remembers what ran."""

    ran: list[Any] = field(default_factory=list)
    signature: inspect.Signature = field(default_factory=lambda: inspect.signature(lambda a, b, N, BLOCK: None))

    def __getitem__(self, grid: Any) -> Any:
        compiled = SimpleNamespace(metadata=SimpleNamespace(shared=1024), n_regs=64, n_spills=0, function="code",
                                   packed_metadata="packed", run=lambda *args: self.ran.append(args))  # fmt: skip
        return lambda *args, **named: compiled


def test_a_caught_launch_runs_again_with_its_grid_and_arguments_in_order() -> None:
    kernel = FakeKernel()
    caught = vllm_kernel._Caught(kernel, stream=7)
    caught[lambda meta: (meta["N"] // meta["BLOCK"],)](
        SimpleNamespace(data_ptr=lambda: 4096), None, 64, num_stages=3, BLOCK=16
    )
    caught.again()
    assert kernel.ran == [(4, 1, 1, 7, "code", "packed", None, None, None, 4096, None, 64, 16)]
    assert caught.built == (1024, 64, 0)


def engine_default(m: int, *_: Any) -> dict[str, int]:
    return {"BLOCK_SIZE_M": 16 if m <= 32 else 64, "num_warps": 4}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of vLLM as the default configuration needs."""
    names = ["vllm", "model_executor", "layers", "fused_moe", "fused_moe"]
    for end in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(names[end - 1]))
    sys.modules[".".join(names)].get_default_config = engine_default  # type: ignore[attr-defined]


@pytest.mark.usefixtures("engine")
def test_the_default_put_into_a_file_is_the_default_at_every_m() -> None:
    body = vllm_kernel.kept(LAYER, 100)
    for m in range(1, 101):
        nearest = min((int(key) for key in body), key=lambda key: abs(key - m))
        assert body[str(nearest)] == engine_default(m)


@pytest.mark.usefixtures("engine")
def test_few_tokens_keep_the_default_and_more_get_the_choice() -> None:
    up, down = (read(locate(name, "H200")).fitted for name in ("moe_w13", "moe_w2"))
    least = vllm_kernel.LEAST
    body = vllm_kernel.kept(LAYER) | export.body(up, down, LAYER, 256, least)
    whole = export.body(up, down, LAYER, 256)
    for m in range(1, 257):
        nearest = str(min((int(key) for key in body), key=lambda key: abs(key - m)))
        if m < least:
            assert body[nearest] == engine_default(m)
        else:
            assert set(body[nearest]) == set(next(iter(whole.values())))


def test_candidates_come_near_the_best_at_every_anchor_twice() -> None:
    up, down = (read(locate(name, "H200")) for name in ("moe_w13", "moe_w2"))
    chosen = vllm_kernel.candidates(up, down, [LAYER])
    of = [tuple(row) for row in np.stack(list(up.fitted.config.values()), axis=1).tolist()]
    m, first, second = export.both(up.fitted, down.fitted, LAYER, vllm_kernel.MOST)
    us = (first + second)[np.isin(m, vllm_kernel.ANCHORS)]
    near = us[:, [of.index(config) for config in chosen]] <= 1.2 * us.min(axis=1, keepdims=True)
    assert len(us) == len(vllm_kernel.ANCHORS)
    assert (near.sum(axis=1) >= 2).all()


def test_variants_take_turns_and_are_compared_within_a_round() -> None:
    order = list(moe_config.in_turns(["default", "table"], 20))
    assert all({*order[i : i + 2]} == {"default", "table"} for i in range(0, 40, 2))
    assert len({tuple(order[i : i + 2]) for i in range(0, 40, 2)}) == 2
    drift = np.linspace(1.0, 2.0, 9)  # a clock that falls over time is no difference between variants
    found = moe_config.summary({"default": list(10 * drift), "table": list(8 * drift)})
    assert found["table"]["to_default"] == pytest.approx(0.8)
    assert found["table"]["to_default_high"] == pytest.approx(0.8)


def test_only_folders_with_the_layers_file_are_variants(tmp_path: Path) -> None:
    export.write({}, tmp_path / "default" / export.vllm_name(LAYER, "NVIDIA_H200"))
    assert set(moe_config.variants(tmp_path, LAYER)) == {"default"}
    assert set(moe_config.variants(tmp_path, LAYERS["Qwen3-30B-A3B"])) == {"own"}


@pytest.mark.parametrize("name", LAYERS)
def test_models_hold_the_experts_of_their_layer(name: str) -> None:
    config, layer = moe_config.config_of(name, 4), LAYERS[name]
    assert Layer(*(config[key] for key in ("num_experts", "num_experts_per_tok", "hidden_size", "moe_intermediate_size"))
                 ) == layer  # fmt: skip
    assert config["num_hidden_layers"] == 4


RECORDED = Path(__file__).parents[2] / "data"


@pytest.mark.skipif(not (RECORDED / "vllm").exists(), reason="not in a checkout with recordings")
@pytest.mark.parametrize("name", LAYERS)
def test_kept_files_follow_from_the_recordings_of_vllms_kernel(name: str) -> None:
    up, down = (fit(Recording.load(RECORDED / f"recordings/h200/vllm_{kernel}.npz")) for kernel in vllm_kernel.KERNELS)
    layer, least = LAYERS[name], vllm_kernel.LEAST
    kept = json.loads((RECORDED / "vllm/h200" / export.vllm_name(layer, "NVIDIA_H200")).read_text())
    kept.pop("triton_version")
    made = export.body(up, down, layer, vllm_kernel.MOST, least)
    tokens = range(least, vllm_kernel.MOST, 37)
    same = [nearest(kept, m) == nearest(made, m) for m in tokens]
    assert np.mean(same) > 0.95  # equal but for rounding at switch points


def nearest(body: dict[str, Any], tokens: int) -> Any:
    return body[str(min((int(key) for key in body), key=lambda key: abs(key - tokens)))]
