"""Drawn pairs, and training that brings them into order while all else stays."""

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pipewave.gpus import find  # noqa: E402
from pipewave.kernels import family_of  # noqa: E402
from pipewave.prediction.columns import group_key  # noqa: E402
from train import drawn as module  # noqa: E402
from train.descent import taught  # noqa: E402
from train.drawn import OTHER_KERNEL, OWN_ROWS, _allowed, drawn, told  # noqa: E402
from train.ensemble import Ensemble, Shape  # noqa: E402
from train.relearn import MARGIN, Calls, Known, Plan, shortfall, terms  # noqa: E402


@pytest.fixture(scope="module")
def products() -> Calls:
    return Calls.of(drawn("gemm", 12, seed=4)["gemm"], "cpu")


def test_pairs_are_calls_of_one_net_of_which_one_is_larger(products: Calls) -> None:
    assert len(products.small) > 500
    assert int(torch.maximum(products.small, products.large).max()) < len(products.base)
    grown = products.features[products.large] - products.features[products.small]
    assert float((grown.abs().amax(1) > 0).float().mean()) > 0.8  # one that quantises in a 16-bit type is the same
    assert bool((products.allowed <= 0).all())


def test_pairs_close_to_being_out_of_order_are_kept_and_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for others in (1.0, 0.0):
        monkeypatch.setattr(module, "OTHERS", others)
        found = drawn("gemm", 12, seed=4)["gemm"]
        log, pairs = np.concatenate([one.log for one in found.contexts]), np.concatenate(found.pairs)
        small, large = pairs[:, :2].astype(int).T
        assert set(range(len(log))) == {*small.tolist(), *large.tolist()}  # no call without a pair
        shares.append((pairs[:, 2] - log[large] + log[small] > -module.CLOSE).mean())
    assert shares[0] < 0.2 and shares[1] == 1.0


def test_families_have_pairs_of_their_own_nets() -> None:
    for family, nets in {"mla": {"mla_context", "mla_generation"}, "rmsnorm": {"rmsnorm"}}.items():
        found = drawn(family, 8, seed=1)
        assert set(found) <= nets
        assert all(len(np.concatenate(one.pairs)) for one in found.values())
    assert set(drawn("gemm", 12, seed=4, net="gemm_fp8")) == {"gemm_fp8"}


def test_training_brings_pairs_into_order_and_keeps_the_answers() -> None:
    """A net that answers a little less for more, of one feature."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 400)[:, None]
    codes = torch.zeros(400, 0, dtype=torch.long)
    one = torch.zeros(1, 1)
    teacher = Ensemble(Shape(1, (), (16, 16), "silu"), (0,), one, one + 1, torch.zeros(1, 2))
    with torch.no_grad():
        teacher.weights[-1].mul_(0.2)
    base, numbers, none = torch.zeros(400), torch.arange(200), torch.zeros(0, 0, dtype=torch.long)
    calls = Calls(x, codes, base, base - 9, base + 0.15, numbers, numbers + 200, torch.zeros(200), none)
    if float(shortfall(teacher, calls).mean()) < MARGIN:  # it happens to answer more: the other way round
        calls = Calls(x.flip(0), codes, base, base - 9, base + 0.15, numbers, numbers + 200, torch.zeros(200), none)
    student = copy.deepcopy(teacher)
    rows = Known(x[:1].repeat(64, 1), codes[:64], torch.zeros(64), torch.ones(64), torch.zeros(64, dtype=torch.bool))
    plan = Plan(batch=128, kept=1e3)
    taught(student, terms(student, teacher, rows, calls, plan), 150, 1e-2)
    assert float(shortfall(student, calls).mean()) < 0.2 * float(shortfall(teacher, calls).mean())
    with torch.no_grad():
        moved = student(x[None, :1], codes[None, :1]) - teacher(x[None, :1], codes[None, :1])
    assert float(moved[..., 0].abs().max()) < 0.1


@pytest.mark.parametrize("off", [0.05, 0.2])
def test_rows_grant_another_kernel_and_no_noise_and_a_version_without_rows_nothing(off: float) -> None:
    """vLLM 0.22.1 in FP8: rows on Hopper, none on B200, where 0.22.0 and 0.24.0 have some."""
    case = {"kernel": "gemm", "dtype": "fp8", "quantize": True, "m": 1, "n": 8896, "k": 3264}
    family, small, large = family_of("gemm"), [case], [case | {"m": 2}]
    for gpu, stack, granted in (("B200", "vllm-0.22.1", False), ("B200", "vllm-0.24.0", True)):
        key = group_key(family, case | {"stack": stack})
        one, two = (told(family, some, key, find(gpu), "graph") for some in (small, large))
        faster = replace(two, log=one.log - off)
        assert one.source.software in OWN_ROWS
        found = float(_allowed(family, small, large, key, one, faster, np.arange(1))[0])
        assert found == pytest.approx(-off if granted and off > OTHER_KERNEL else 0.0)
