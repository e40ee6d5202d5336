"""Shipped tables and look-ups: choices are pure, equal by every path, refused when foreign, safe from threads."""

from __future__ import annotations

import json
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.own_kernels.recording import flat
from lab.own_kernels.shapes import draw
from lab.own_kernels.space import space
from pipewave.cli import build
from pipewave.errors import BadFile, BadInput, MissingField, PipewaveError, UnknownField, UnknownKernel
from pipewave.files import sealed
from pipewave.tune import load_table, store
from pipewave.tune.export import NAMES, SLACK, Layer, both, entries, sglang, steady, vllm
from pipewave.tune.shipped_kernels import SHAPE_FIELDS, defaults, family
from pipewave.tune.store import TableMismatch, check_environment, locate, read_table, write_table
from pipewave.tune.tables import KERNELS, SHAPE, description, explain, reachable
from pipewave.tune.user_kernels import device
from tests.command_line import CliRunner


def shapes(kernel: str, count: int = 60) -> list[dict[str, int]]:
    names = SHAPE_FIELDS[family(kernel)]
    return [{name: shape[name] for name in names} for shape in draw(kernel, 4242, count)]


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_ships_a_table_whose_choices_are_members_of_its_space(kernel: str) -> None:
    table, of = load_table(kernel), space(kernel)
    for shape in shapes(kernel):
        assert tuple(table.select(**shape)[name] for name in of.names) in of.configs


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_short_list_loses_little_against_all_configurations(kernel: str) -> None:
    table = load_table(kernel)
    keys = {i: table.key(shape) for i, shape in enumerate(shapes(kernel))}
    inside = [shapes(kernel)[i] for i, (chooser, key) in keys.items() if chooser.listed(key) is not None]
    columns = {name: np.array([shape[name] for shape in inside]) for name in inside[0]}
    us, at = table.us(columns, sigmas=1.0), np.arange(len(inside))
    us[at, defaults(kernel, table.config, columns)] *= np.exp(-table.kinds[SHAPE].model.margin)
    chosen = us[at, [table.configs.index(table.select(**shape)) for shape in inside]]
    assert len(inside) > 50
    assert np.mean(chosen / us.min(axis=1) - 1) < 0.02


def test_fields_in_order_or_by_name_are_one_launch_and_wrong_ones_are_refused() -> None:
    table = load_table("gemm")
    assert table.select(300, 6144, 4096) == table.select(k=4096, m=300, n=6144) == table.select(300, k=4096, n=6144)
    decode = load_table("decode_64")
    assert decode.select(4, 900, 32, 8, None) == decode.select(4, 900, 32, 8)
    with pytest.raises(MissingField, match="needs 'k'"):
        table.select(300, 4096)
    with pytest.raises(UnknownField, match="batch"):
        table.select(300, 4096, 4096, batch=1)
    with pytest.raises(BadInput, match="takes 3"):
        table.select(300, 4096, 4096, 1)
    with pytest.raises(BadInput, match="longest must be at least kv_len"):
        decode.select(4, 900, 32, 8, longest=100)


def test_a_known_histogram_is_used() -> None:
    table = load_table("moe_w13")
    layer = {"m": 256, "e": 8, "top_k": 2, "hidden": 4096, "inter": 1792}
    even, lone = (64,) * 8, (256, 256, 0, 0, 0, 0, 0, 0)
    assert table.select(**layer, counts=even) in table.configs
    assert table.select(**layer, counts=even)["BLOCK_M"] <= table.select(**layer, counts=lone)["BLOCK_M"]


@pytest.mark.slow
def test_threads_agree() -> None:
    table, wanted = load_table("gemm"), [load_table("gemm").select(**shape) for shape in shapes("gemm")]
    found: dict[int, list[Any]] = {}
    workers = [
        threading.Thread(target=lambda i=i: found.update({i: [table.select(**s) for s in shapes("gemm")]}))
        for i in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(choices == wanted for choices in found.values())
    assert len(found) == 4


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(BadInput):
        load_table("gemm").select(m=0, n=1, k=1)
    with pytest.raises(BadInput, match="kv_len"):
        load_table("prefill_causal_64").select(batch=1, q_len=10, kv_len=5, heads=8, kv_heads=8)
    with pytest.raises(MissingField, match="needs 'k'"):
        explain(load_table("gemm"), {"m": 1, "n": 64})
    with pytest.raises(MissingField, match="needs 'k'"):
        reachable(load_table("gemm"), "m", range(1, 9), n=64)
    with pytest.raises(UnknownField, match="did you mean k"):  # by its own name, not by that of the one it stands for
        explain(load_table("gemm"), {"m": 1, "n": 64, "kk": 64})


def test_a_file_survives_a_round_trip_and_a_flipped_byte_is_found(tmp_path: Path) -> None:
    of = description("decode_64")
    meta, kinds = read_table(locate("decode_64", "H200"), of)
    path = write_table(tmp_path / "t", of, meta["env"], kinds)
    (said, arrays), (again, same) = (sealed.read(one, "table") for one in (locate("decode_64", "H200"), path))
    assert {name: said[name] for name in again} == again  # shipped files say more: launches that were timed again
    assert all(np.array_equal(arrays[name], same[name]) for name in arrays | same)
    body = bytearray(path.read_bytes())
    body[-1000] ^= 1
    path.write_bytes(body)
    with pytest.raises(BadFile, match="corrupted"):
        read_table(path, of)
    path.write_bytes(body[:500])
    with pytest.raises(BadFile):
        read_table(path, of)
    path.write_text("{}")
    with pytest.raises(BadFile):
        read_table(path, of)


def test_a_table_of_other_sources_is_refused() -> None:
    with pytest.raises(TableMismatch, match="measure anew"):
        read_table(locate("gemm", "H200"), replace(description("gemm"), source_sha256="another"))


def test_another_card_is_refused_and_another_driver_warned_of_once() -> None:
    meta = load_table("gemm", gpu="H200", env={}).meta
    store._warned.clear()
    with pytest.raises(TableMismatch, match="sm_count"):
        check_environment(meta, {**meta["env"], "sm_count": 108})
    recorded = flat({"gpu": meta["env"]["gpu"], "nvidia_smi": {"driver_version": "1.0"}})
    with pytest.warns(UserWarning, match="driver"):
        assert check_environment(meta, recorded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_environment(meta, {**meta["env"], "driver": "1.0"})


def machine_with(tmp_path: Path, *models: str) -> Path:
    for number, model in enumerate(models):
        file = tmp_path / "gpus" / f"0000:0{number}" / "information"
        file.parent.mkdir(parents=True)
        file.write_text(f"Model: \t\t {model}\nIRQ:   \t\t 137\n")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue\n")
    return tmp_path


def test_the_machine_is_known_from_the_drivers_files(tmp_path: Path) -> None:
    found = device.this_machine(machine_with(tmp_path, "NVIDIA H200", "NVIDIA H200"))
    assert (found["gpu"], found["driver"]) == ("NVIDIA H200", "580.159.04")
    assert device.this_machine(machine_with(tmp_path / "mixed", "NVIDIA H200", "NVIDIA L4")) == {}
    assert device.this_machine(tmp_path / "absent") == {}


def test_a_table_is_refused_on_another_card_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "this_machine", lambda: {"gpu": "NVIDIA A100-SXM4-80GB"})
    with pytest.raises(TableMismatch, match="A100"):
        load_table("gemm", gpu="H200")
    with pytest.raises(BadFile, match="transfer"):
        load_table("gemm")
    assert load_table("gemm", gpu="H200", env={}).select(300, 4096, 4096)
    monkeypatch.setattr(device, "this_machine", lambda: {"gpu": "NVIDIA H200"})
    assert load_table("gemm").select(300, 4096, 4096)


def test_a_file_of_another_kernel_is_refused() -> None:
    with pytest.raises(TableMismatch, match="gemm_fp8"):
        load_table("gemm", path=locate("gemm_fp8", "H200"))


def test_far_outside_the_domain_there_is_still_an_answer_that_says_so() -> None:
    shape = {"m": 10**7, "n": 3, "k": 10**6}
    assert load_table("gemm").select(**shape) in load_table("gemm").configs
    assert "extrapolated" in explain(load_table("gemm"), shape)["provenance"]


def test_a_ragged_cache_is_used_and_checked() -> None:
    table = load_table("decode_128")
    layer = {"batch": 4, "kv_len": 2000, "heads": 32, "kv_heads": 8}
    assert table.select(**layer, longest=7000)["SPLITS"] >= table.select(**layer, longest=2000)["SPLITS"]
    with pytest.raises(BadInput, match="longest"):
        table.select(**layer, longest=10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_choices_do_not_depend_on_what_was_asked_before(kernel: str) -> None:
    some = shapes(kernel, 30)
    one, other = load_table(kernel), load_table(kernel)
    forwards = [one.select(**shape) for shape in some]
    backwards = [other.select(**shape) for shape in reversed(some)][::-1]
    assert forwards == backwards == [one.select(**shape) for shape in some]
    one._memo.clear()
    assert [one.select(**shape) for shape in some] == forwards


def test_a_choice_cannot_be_altered_by_its_receiver() -> None:
    with pytest.raises(TypeError):
        load_table("gemm").select(300, 4096, 4096)["BLOCK_M"] = 1


def test_unknown_kernels_and_cards_are_named() -> None:
    with pytest.raises(UnknownKernel):
        load_table("gemmm")
    with pytest.raises(BadFile, match="transfer"):
        load_table("gemm", gpu="A100")


def test_a_card_without_a_table_is_offered_the_transfer() -> None:
    shape = {"m": 300, "n": 4096, "k": 4096}
    with pytest.raises(BadFile, match="transfer=True"):
        load_table("gemm", gpu="A100", env={})
    words = ["tune", "explain", "gemm", "m=300,n=4096,k=4096", "--gpu", "A100", "--rows", "2"]
    assert isinstance(CliRunner().invoke(build(), words).exception, BadFile)
    assert "NVIDIA H200 carried over to A100" in CliRunner().invoke(build(), [*words, "--transfer"]).output
    there, here = load_table("gemm", gpu="A100", env={}, transfer=True), load_table("gemm", env={})
    assert there.kinds[SHAPE].model.peaks.sms == 108
    assert there.select(**shape) in there.configs
    columns = {name: np.array([value]) for name, value in shape.items()}
    assert 1.5 < np.median(there.us(columns) / here.us(columns)) < 4.5  # 989 TFLOP/s on 132 SMs, 312 on 108
    assert load_table("gemm", gpu="H200", env={}, transfer=True).meta == here.meta
    with pytest.raises(PipewaveError, match="no such card"):
        load_table("gemm", gpu="no such card", env={}, transfer=True)


def test_explained_candidates_are_ranked_and_the_default_is_among_them() -> None:
    answer = explain(load_table("gemm"), {"m": 300, "n": 4096, "k": 4096})
    marks = [row["is"] for row in answer["candidates"]]
    assert marks[0] == "chosen"
    assert "default" in marks
    assert answer["regret_bound"] >= 0
    assert json.dumps(answer)


def test_reachable_configurations_cover_exactly_the_range() -> None:
    table = load_table("gemm")
    found = reachable(table, "m", range(1, 300), n=4096, k=4096)
    covered = sorted(m for spans in found.values() for a, b in spans for m in range(a, b + 1))
    assert covered == list(range(1, 300))
    assert all(
        dict(config) == dict(table.select(m=a, n=4096, k=4096)) for config, spans in found.items() for a, _ in spans
    )


LAYER = Layer(e=64, top_k=6, hidden=2048, inter=1408)


def test_file_names_are_those_the_engines_look_for() -> None:
    assert LAYER.file("vllm", "NVIDIA H200") == "E=64,N=1408,device_name=NVIDIA_H200.json"
    assert (
        LAYER.file("vllm", "NVIDIA A100-SXM4-80GB", "fp8")
        == "E=64,N=1408,device_name=NVIDIA_A100-SXM4-80GB,dtype=fp8_w8a8.json"
    )
    assert LAYER.file("sglang", "NVIDIA H200", down=True) == "E=64,N=1408,device_name=NVIDIA_H200_down.json"


def test_nearest_key_lookup_is_right_at_every_m() -> None:
    m = np.array([1, 2, 3, 4, 16, 32, 48, 64])
    picked = [(0, 1, 5), (2, 4, 9), (5, 7, 20)]
    of = space("moe_w13")
    body = entries(m, picked, description("moe_w13").configs)
    for tokens in range(1, 65):
        nearest = min((int(key) for key in body), key=lambda key: abs(key - tokens))
        granule = int(np.searchsorted(m, tokens))
        column = next(c for a, b, c in picked if a <= granule <= b)
        assert body[str(nearest)]["BLOCK_SIZE_N"] == of.as_dict(of.configs[column])["BLOCK_N"]


def test_runs_are_few_and_within_the_slack() -> None:
    us = np.random.default_rng(2).uniform(1.0, 1.5, (40, 6))
    found = steady(us, 0.2)
    assert [row for a, b, _ in found for row in range(a, b + 1)] == list(range(40))
    assert all((us[a : b + 1, c] <= 1.2 * us[a : b + 1].min(axis=1)).all() for a, b, c in found)


def test_exports_have_the_schema_and_share_block_m() -> None:
    up, down = (load_table(name, gpu="H200", env={}) for name in ("moe_w13", "moe_w2"))
    body = vllm(up, down, LAYER, 1024)
    names = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"}
    assert body.pop("triton_version") == "3.6.0"
    assert all(set(entry) == names and int(key) >= 1 for key, entry in body.items())
    first, second = sglang(up, down, LAYER, 1024)
    assert {k: v["BLOCK_SIZE_M"] for k, v in first.items()} == {k: v["BLOCK_SIZE_M"] for k, v in second.items()}


@pytest.mark.parametrize("layer", [(64, 6, 2048, 1408), (60, 4, 2048, 1408), (128, 8, 4096, 1536), (256, 8, 7168, 256)])
def test_an_exported_file_is_right_at_every_number_of_tokens(layer: tuple[int, int, int, int]) -> None:
    up, down = (load_table(name, gpu="H200", env={}) for name in ("moe_w13", "moe_w2"))
    of = space("moe_w13")
    named = Layer(*layer)
    body = vllm(up, down, named, 512)
    keys = [int(key) for key in body if key != "triton_version"]
    m, first, second = both(up, down, named, 512)
    number = {tuple(of.as_dict(config).values()): i for i, config in enumerate(of.configs)}
    names = [NAMES.get(name, name) for name in of.names]
    for tokens in range(1, 513):
        nearest = body[str(min(keys, key=lambda key: abs(key - tokens)))]
        us = (first + second)[np.searchsorted(m, tokens)]
        assert us[number[tuple(nearest[name] for name in names)]] <= (1 + SLACK) * us.min() * (1 + 1e-9)


def test_a_kernel_is_known_by_its_source() -> None:
    """The hash of a packaged file is the one that a kernel at hand has: comments and the place in a file do not count."""
    assert description("gemm").source_sha256 == description("gemm_fp8").source_sha256
    assert len({description(kernel).source_sha256 for kernel in KERNELS}) == 4
