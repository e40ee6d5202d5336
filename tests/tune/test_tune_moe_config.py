"""Engines that take turns with fused-MoE files: what is compared, and which folders count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.vllm_engine import moe_config
from lab.vllm_engine.moe_config import LAYERS
from pipewave.tune import export
from pipewave.tune.export import Layer

LAYER = LAYERS["DeepSeek-V2-Lite"]


def test_variants_take_turns_and_are_compared_within_a_round() -> None:
    order = list(moe_config.in_turns(["default", "table"], 20))
    assert all({*order[i : i + 2]} == {"default", "table"} for i in range(0, 40, 2))
    assert len({tuple(order[i : i + 2]) for i in range(0, 40, 2)}) == 2
    drift = np.linspace(1.0, 2.0, 9)  # a clock that falls over time is no difference between variants
    found = moe_config.summary({"default": list(10 * drift), "table": list(8 * drift)})
    assert found["table"]["to_default"] == pytest.approx(0.8)
    assert found["table"]["to_default_high"] == pytest.approx(0.8)


def test_only_folders_with_the_layers_file_are_variants(tmp_path: Path) -> None:
    export.write({}, tmp_path / "default" / LAYER.file("vllm", "NVIDIA_H200"))
    assert set(moe_config.variants(tmp_path, LAYER)) == {"default"}
    assert set(moe_config.variants(tmp_path, LAYERS["Qwen3-30B-A3B"])) == {"own"}


@pytest.mark.parametrize("name", LAYERS)
def test_models_hold_the_experts_of_their_layer(name: str) -> None:
    config, layer = moe_config.config_of(name, 4), LAYERS[name]
    assert Layer(*(config[key] for key in ("num_experts", "num_experts_per_tok", "hidden_size", "moe_intermediate_size"))
                 ) == layer  # fmt: skip
    assert config["num_hidden_layers"] == 4
