"""The loaders: contract columns, cleaning rules and quirks, on real files where the corpus is present."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from corpus import aiconfigurator, cache, collectives, llmservingsim, pipeweave, rules, select, vidur  # noqa: E402
from corpus.frame import COMMON, SHAPES, finish, gpu_name, stacked  # noqa: E402
from corpus.sources import TABLES  # noqa: E402
from pipewave.gpus import find  # noqa: E402

AIC = "aiconfigurator"


def rule_book(folder: Path, *entries: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    book = {"rules": list(entries), "moe_nongated_shapes": {"shapes": [[2688, 1856, 6, 128]]}}
    (folder / "CLEAN_RULES.json").write_text(json.dumps(book))
    return folder


def test_rules_drop_flag_and_leave_alone(tmp_path: Path) -> None:
    selective = {"table": "gemm", "gpu": ["l40s"], "fw": "vllm", "ver": ["1.0"], "where": {"m": [0]}, "action": "drop"}
    flagging = {"table": "gemm", "where": {"dtype": ["fp8_block"]}, "action": "flag"}
    folder = rule_book(tmp_path, selective, flagging)
    rows = pd.DataFrame({"m": [0, 1, 2], "dtype": ["bf16", "fp8_block", "bf16"], "latency": 0.1})
    met = rules.apply(rows, folder, table="gemm", gpu="l40s", framework="vllm", version="1.0")
    assert met["m"].tolist() == [1, 2]
    assert met["flagged"].tolist() == [True, False]
    for unmet in ({"gpu": "h200_sxm"}, {"framework": "sglang"}, {"version": "2.0"}, {"table": "moe"}):
        arguments = {"table": "gemm", "gpu": "l40s", "framework": "vllm", "version": "1.0"} | unmet
        assert len(rules.apply(rows, folder, **arguments)) == 3


@pytest.mark.parametrize(
    ("older", "newer"), [("1.3.0rc9", "1.3.0rc20"), ("0.5.6.post2", "0.5.10"), ("0.9.0", "0.14.0"), ("2.23", "2.27.3")]
)
def test_versions_are_ordered_as_numbers(older: str, newer: str) -> None:
    assert select.version_key(older) < select.version_key(newer)


def frame(**columns: list[object]) -> pd.DataFrame:
    size = len(next(iter(columns.values())))
    base = {"m": 1, "n": 2, "k": 3, "raw_gpu": "h200", "impl": "x", "protocol": "graph", "dtype": "bf16"}
    base |= {"framework": "vllm", "version": "1.0", "latency_us": 1.0, "flagged": False}
    rows = pd.DataFrame({**{name: [value] * size for name, value in base.items()}, **columns})
    return finish(rows, "gemm", "test").assign(gpu="H200")


def test_newest_is_chosen_for_each_framework_and_dtype() -> None:
    rows = frame(
        framework=["vllm", "vllm", "vllm", "sglang"],
        version=["0.9.0", "0.14.0", "0.9.0", "0.5.9"],
        dtype=["bf16", "bf16", "fp8", "bf16"],
    )
    kept = select.newest(rows)
    assert sorted(zip(kept["stack"], kept["dtype"], strict=True)) == [
        ("sglang-0.5.9", "bf16"),
        ("vllm-0.14.0", "bf16"),
        ("vllm-0.9.0", "fp8"),
    ]


def test_newest_skips_flagged_versions_and_falls_back() -> None:
    rows = frame(version=["0.9.0", "0.14.0"], flagged=[False, True])
    assert select.newest(rows)["version"].tolist() == ["0.9.0"]


def test_cap_draws_the_same_rows_whatever_else_is_there() -> None:
    one = frame(m=list(range(1, 101)))
    two = stacked([one, frame(m=list(range(1, 101)), dtype=["fp8"] * 100)])
    alone = select.capped(one, max_rows=10)
    beside = select.capped(two, max_rows=10)
    assert len(alone) == 10
    assert len(beside) == 20
    assert set(alone["m"]) == set(beside.loc[beside["dtype"] == "bf16", "m"])


def test_own_rows_do_not_move_the_public_draw() -> None:
    public = frame(m=list(range(1, 101)))
    both = stacked([public, public.assign(m=public["m"] + 1000, source="h200").astype({"source": "category"})])
    drawn = select.capped(both, max_rows=10)
    assert len(drawn) == 20
    assert set(drawn.loc[drawn["source"] == "test", "m"]) == set(select.capped(public, max_rows=10)["m"])


def test_finish_drops_times_that_are_not_positive() -> None:
    assert frame(latency_us=[1.0, 0.0, -1.0, float("nan"), float("inf")])["latency_us"].tolist() == [1.0]


def test_equal_shapes_share_a_group_and_others_do_not() -> None:
    rows = frame(m=[1, 2, 3], n=[8, 8, 9], k=[4, 4, 4], dtype=["bf16", "fp8", "bf16"])
    assert rows["group"].tolist() == ["8,4", "8,4", "9,4"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.source}-{table.family}-{table.patterns[0]}")
def test_a_real_file_of_each_table_has_every_column(corpus: Path, table: object) -> None:
    files = table.files(corpus)
    if not files:
        pytest.skip("no such file here")
    rows = finish(table.read(files[0], corpus), table.family, table.source)
    assert set(COMMON) | set(SHAPES[table.family]) | {"raw_gpu", "source"} == set(rows)
    assert len(rows)
    holes = [name for name in rows if name != "noise" and rows[name].isna().any()]
    assert not holes
    assert all(find(gpu_name(str(raw))) for raw in rows["raw_gpu"].unique())


def test_gemm_types_and_quantisation(corpus: Path) -> None:
    file = corpus / AIC / "b200_sxm/gemm/trtllm/1.2.0rc5/gemm_perf.parquet"
    rows = aiconfigurator.gemm(file, corpus)
    seen = {(d, bool(q), bool(f)) for d, q, f in zip(rows["dtype"], rows["quantize"], rows["flagged"], strict=True)}
    assert ("bf16", False, False) in seen
    assert ("fp8", True, False) in seen
    assert ("nvfp4", True, False) in seen
    assert ("fp8", False, True) in seen  # its fp8_static has the floor of its dynamic fp8
    floor = rows.groupby("gemm_dtype")["latency_us"].min()
    assert floor["fp8_static"] == pytest.approx(floor["fp8"], rel=0.05)
    assert floor["fp8"] > 4 * floor["bfloat16"]


def test_eager_block_scaled_gemm_is_flagged_and_empty_gemm_dropped(corpus: Path) -> None:
    eager = aiconfigurator.gemm(corpus / AIC / "h200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", corpus)
    assert eager.loc[eager["dtype"] == "fp8_block", "flagged"].all()
    assert not eager.loc[eager["dtype"] == "bf16", "flagged"].any()
    empty = corpus / AIC / "h100_sxm/gemm/trtllm/1.2.0rc5/gemm_perf.parquet"
    assert (pd.read_parquet(empty)["m"] == 0).any()
    assert (aiconfigurator.gemm(empty, corpus)["m"] > 0).all()


def test_decode_reads_one_key_more_than_its_step(corpus: Path) -> None:
    file = corpus / AIC / "h200_sxm/attention/vllm/0.24.0/generation_attention_perf.parquet"
    rows = aiconfigurator.attention("decode")(file, corpus)
    assert (rows["kv_len"] == rows["step"] + 1).all()
    assert (rows["q_len"] == 1).all()
    assert set(rows["kv_dtype"]) == {"bf16", "fp8"}


def test_decode_that_read_only_k_is_dropped(corpus: Path) -> None:
    file = corpus / AIC / "h200_sxm/attention/trtllm/1.3.0rc10/generation_attention_perf.parquet"
    assert aiconfigurator.attention("decode")(file, corpus).empty


def test_absent_window_means_none_and_trtllm_head_64_has_sinks(corpus: Path) -> None:
    folder = corpus / AIC / "a100_sxm/attention"
    files = sorted(folder.glob("*/*/context_attention_perf.parquet"))
    assert files
    for file in files:
        rows = aiconfigurator.attention("prefill")(file, corpus)
        assert (rows["window"] >= 0).all()
        expected = (rows["head_dim"] == 64) & (rows["framework"] == "trtllm")
        assert (rows["sinks"] == expected).all()


def test_two_matrix_experts_are_not_gated(corpus: Path) -> None:
    rows = aiconfigurator.moe(corpus / AIC / "h200_sxm/moe/trtllm/1.3.0rc20/moe_perf.parquet", corpus)
    nemotron = (rows["hidden"] == 8192) & (rows["topk"] == 22)
    assert nemotron.any()
    assert not rows.loc[nemotron, "gated"].any()
    assert rows.loc[(rows["hidden"] == 4096) & (rows["topk"] == 2), "gated"].all()


def test_no_collective_beats_its_link(corpus: Path) -> None:
    for folder in ("a100_sxm", "h200_sxm"):
        files = sorted((corpus / AIC / folder / "comm/nccl").glob("*/nccl_perf.parquet"))
        assert files
        for file in files:
            rows = collectives.nccl(file, corpus)
            ring = rows["op"].map({"all_reduce": 2.0}).fillna(1.0) * (rows["world"] - 1) / rows["world"]
            bus_gbps = ring * rows["bytes"] / rows["latency_us"] * 1e-3
            link = find(folder).link_gbps
            assert bus_gbps.max() < 1.15 * link  # in-switch reduction may save a little
            assert bus_gbps.max() > 0.6 * link


def test_eager_all_reduce_is_flagged(corpus: Path) -> None:
    rows = collectives.custom(corpus / AIC / "h200_sxm/comm/vllm/0.24.0/custom_allreduce_perf.parquet", corpus)
    assert (rows["flagged"] == rows["kernel_source"].str.endswith("eager")).all()
    assert rows["flagged"].any()
    assert (rows["bytes"] == 2 * rows["message_size"]).all()


def test_pipeweave_moe_is_the_complete_test_set(corpus: Path) -> None:
    rows = pipeweave.moe(corpus / "pipeweave/quantile_kernel_reports/moe.parquet", corpus)
    assert len(rows) == 33_264
    assert rows["raw_gpu"].nunique() == 11
    shape = rows[["raw_gpu", "tokens", "hidden", "inter", "topk", "experts"]]
    assert not shape.duplicated().any()


def test_pipeweave_fp8_counts(corpus: Path) -> None:
    sizes = [len(pipeweave.gemm_fp8(file, corpus)) for file in pipeweave.TABLES[0].files(corpus)]
    assert sorted(sizes) == [8_410, 16_818]


@pytest.mark.parametrize("source", [vidur, llmservingsim])
def test_projections_stay_below_peak_and_bandwidth(corpus: Path, source: object) -> None:
    """Wrong (n, k) of a projection would show as a rate no GPU has; the l2-warm small ones may beat DRAM."""
    tables = [table for table in source.TABLES if table.family == "gemm"]
    assert tables
    for table in tables:
        files = table.files(corpus)[:6]
        assert files
        for file in files:
            rows = table.read(file, corpus)
            gpu = find(str(rows["raw_gpu"].iloc[0]))
            seconds = rows["latency_us"].to_numpy() * 1e-6
            flops = 2.0 * rows["m"].to_numpy() * rows["n"].to_numpy() * rows["k"].to_numpy()
            assert np.quantile(flops / seconds, 0.999) < 1.02 * gpu.peak_flops("fp16")
            weights = 2.0 * rows["n"].to_numpy() * rows["k"].to_numpy()
            large = weights > 4 * gpu.l2_mb * 2**20
            rate = np.append(weights[large] / seconds[large], 0.0)
            assert np.quantile(rate, 0.999) < 1.05e9 * gpu.dram_gbps


def test_layernorm_of_phi_and_ungated_activations_stay_out(corpus: Path) -> None:
    file = corpus / "vidur/profiling/compute/a100/microsoft/phi-2/mlp.parquet"
    assert vidur.rmsnorm(file, corpus).empty
    assert vidur.silu_and_mul(file, corpus).empty
    assert len(vidur.gemm(file, corpus)) == 4 * len(pd.read_parquet(file))


def test_as_many_rows_of_every_version_and_every_group() -> None:
    rows = frame(version=["1.0"] * 6 + ["2.0"] * 2, n=[1, 1, 1, 1, 2, 3, 1, 2])
    drawn = select.versions(rows, max_rows=3)
    assert drawn["version"].value_counts().to_dict() == {"1.0": 3, "2.0": 2}
    assert set(drawn.loc[drawn["version"] == "1.0", "n"]) == {1, 2, 3}
    assert select.versions(rows.assign(flagged=True), max_rows=3).empty
    assert len(select.versions(rows.assign(flagged=True, partial=True), max_rows=3)) == 5


def test_our_own_rules_are_bounded_and_say_their_evidence() -> None:
    own = json.loads(rules.OWN.read_text())
    assert len({rule["id"] for rule in own}) == len(own) and all(rule["evidence"] for rule in own)
    slow = next(rule for rule in own if "below_us" in rule)
    rows = pd.DataFrame({"gemm_dtype": ["fp8_block", "fp8_block", "fp8"], "latency": [0.01, 9.0, 0.01]})
    assert rules.dropped(rows, slow) == 1


def test_a_rule_of_rates_drops_what_reaches_neither() -> None:
    late = next(rule for rule in json.loads(rules.OWN.read_text()) if "slower_than" in rule)
    shapes = {"m": [8, 8, 16384], "n": [1024, 65536, 8192], "k": [1024, 16384, 8192], "latency": [0.2, 0.5, 2.0]}
    rows = pd.DataFrame(shapes | {"gemm_dtype": "fp8_block"})  # small; reads a GB from DRAM; 1.1 PFLOP/s
    assert rules.dropped(rows, late) == 1


def test_of_a_cleared_series_the_slow_rows_are_partial(tmp_path: Path) -> None:
    flagging = {
        "table": "gemm",
        "fw": "vllm",
        "ver": ["0.22.0"],
        "where": {"gemm_dtype": ["fp8_block"]},
        "action": "flag",
    }
    rows = pd.DataFrame({"gemm_dtype": ["fp8_block", "fp8_block", "bfloat16"], "latency": [0.06, 0.5, 0.06]})
    rows = rows.assign(m=4096, n=7168, k=16384)
    where = {"table": "gemm", "gpu": "h200_sxm", "framework": "vllm", "version": "0.22.0"}
    kept = rules.apply(rows, rule_book(tmp_path, flagging), **where)
    assert kept["latency"].tolist() == [0.5, 0.06]
    assert kept["partial"].tolist() == [True, False] and kept["flagged"].tolist() == [True, False]


def test_of_no_kernel_is_every_row_held_out(corpus: Path) -> None:
    """Weights that never saw a row of a kernel know nothing of it, however many were measured."""
    rows = cache.load("fused_moe", corpus)
    rows = rows[~rows["flagged"]]
    groups = rows["group"].astype(str)
    held = groups.map({name: select.fold(name) == select.HELD_OUT for name in groups.unique()})
    whole = held.groupby([rows["impl"].astype(str), rows["dtype"].astype(str)]).all()
    assert not list(whole[whole].index)
