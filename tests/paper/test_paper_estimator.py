"""The paper's shipped networks: their arithmetic, their files, and the figures published for them here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import paper
from paper import collectives, estimator
from pipewave.errors import BadFile, BadInput, UnknownKernel

SHIPPED = Path(paper.__file__).parent / "weights"
NETS: list[tuple[str, estimator.Model]] = [
    *[(kernel, model) for kernel in ("gemm_fp8", "fused_moe") for model in ("mean", "p80")],
    *[(kernel, "public") for kernel in ("attention", "rmsnorm", "silu_and_mul")],
]
SHAPE = {
    "gemm_fp8": {"m": np.array([16, 4096]), "n": np.array([4096, 4096]), "k": np.array([7168, 4096])},
    "fused_moe": {
        "tokens": np.array([16, 4096]),
        "experts": np.array([128, 8]),
        "topk": np.array([8, 2]),
        "hidden": np.array([2048, 4096]),
        "inter": np.array([768, 3072]),
    },
    "attention": {"q_lens": [1, 1], "kv_lens": [700, 9], "heads": 32, "kv_heads": 8, "head_dim": 128},
    "rmsnorm": {"rows": np.array([1, 4096]), "dim": np.array([5120, 4096])},
    "silu_and_mul": {"rows": np.array([1, 4096]), "input_dim": np.array([28672, 4096])},
}


@pytest.mark.parametrize(("kernel", "model"), NETS)
def test_efficiency_is_the_written_out_network(kernel: str, model: estimator.Model) -> None:
    """Weights read straight from the file, layers written out one unit at a time, in float64."""
    tensors = {
        name: value.astype(np.float64) for name, value in load_file(SHIPPED / f"{kernel}_{model}.safetensors").items()
    }
    found = paper.features(kernel, "H200", **SHAPE[kernel])
    for row, predicted in enumerate(np.atleast_1d(paper.trained(kernel, model).efficiency(found))):
        units = [np.log1p(float(np.atleast_1d(found[name])[row])) for name in paper.KERNELS[kernel].order]
        for layer in range(4):
            weight, bias = tensors[f"weight.{layer}"], tensors[f"bias.{layer}"]
            units = [
                sum(u * w for u, w in zip(units, column, strict=True)) + b
                for column, b in zip(weight.T, bias, strict=True)
            ]
            units = units if layer == 3 else [max(unit, 0.0) for unit in units]
        assert predicted == pytest.approx(1 / (1 + np.exp(-units[0])), rel=1e-4)


@pytest.mark.parametrize(("kernel", "model"), NETS)
def test_latency_is_reference_cycles_over_efficiency(kernel: str, model: estimator.Model) -> None:
    found = paper.features(kernel, "H200", **SHAPE[kernel])
    perf = paper.trained(kernel, model).efficiency(found)
    assert np.all((perf > 0) & (perf < 1))
    cycles = np.sum([found[name] for name in paper.KERNELS[kernel].reference], axis=0)
    predicted = paper.predict(kernel, "H200", model=model, **SHAPE[kernel])
    assert predicted == pytest.approx(cycles / (perf * 1830))


def test_one_call_answers_one_number() -> None:
    one = paper.predict("gemm_fp8", "H200", m=16, n=4096, k=7168)
    assert np.ndim(one) == 0
    assert one == pytest.approx(paper.predict("gemm_fp8", "H200", **SHAPE["gemm_fp8"])[0], rel=1e-5)


def test_kernels_without_weights_say_so() -> None:
    with pytest.raises(UnknownKernel, match=r"no 'mean' weights.*rmsnorm_public"):
        paper.predict("rmsnorm", "H200", rows=1, dim=4096)


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    foreign, cut, absent = tmp_path / "foreign.safetensors", tmp_path / "cut.safetensors", tmp_path / "none"
    save_file({"x": np.zeros(3, dtype=np.float32)}, foreign)
    cut.write_bytes((SHIPPED / "gemm_fp8_mean.safetensors").read_bytes()[:5000])
    for path in (foreign, cut, absent):
        with pytest.raises(BadFile, match=path.name):
            estimator.load(path)


def test_every_weights_file_has_a_card_that_names_its_source() -> None:
    files = list(SHIPPED.glob("*.safetensors"))
    assert files
    for weights in files:
        card = json.loads(weights.with_name(weights.stem + ".card.json").read_text())
        assert "Apache-2.0" in card["source"]
        assert card["trained on"]


def test_collectives_answer_only_what_was_measured() -> None:
    sizes = np.array([2e6, 2e7, 2e8])
    latency = paper.predict_collective("all_reduce", "A100", size_bytes=sizes, workers=8)
    assert np.all(np.diff(latency) > 0)
    for primitive, gpu, workers in (("all_reduce", "H800", 4), ("send_recv", "L40", 2), ("all_gather", "A100", 8)):
        with pytest.raises(BadInput):
            paper.predict_collective(primitive, gpu, size_bytes=1e6, workers=workers)
    with pytest.raises(BadInput):
        paper.predict_collective("all_reduce", "A100", size_bytes=-1, workers=8)


def test_steps_include_their_upper_edge() -> None:
    steps = collectives.Steps(np.float32([10, 20]), np.float32([1, 2, 3]))
    assert steps.at([1, 10, 11, 20, 21]).tolist() == [1, 1, 2, 2, 3]


def test_shipped_fp8_weights_score_what_is_committed(corpus: Path) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pd.read_parquet(corpus / "pipeweave" / "dataset" / "gemm_fp8_test.parquet")
    committed = json.loads((SHIPPED / "gemm_fp8_mean.card.json").read_text())["scores"]
    for full_name, part in table.groupby("hardware"):
        hw = paper.find(full_name)
        shape = {name: part[name.upper()].to_numpy() for name in ("m", "n", "k")}
        error = np.abs(paper.predict("gemm_fp8", hw, **shape) / part["avg_duration"].to_numpy() - 1)
        assert 100 * error.mean() == pytest.approx(committed[hw.name]["latency_mape"], abs=0.02)


def test_weights_that_are_not_shipped_are_answered_by_those_that_are() -> None:
    with pytest.raises(UnknownKernel, match="rmsnorm_public") as caught:
        paper.predict("rmsnorm", "H100", rows=3, dim=128)
    assert "card" not in caught.value.message
