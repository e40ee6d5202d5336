"""Features that are one number for all calls go into the biases: the answers are those of the features spread out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipewave.errors import BadFile
from pipewave.nets.layers import inputs_of
from pipewave.nets.nets import trained

CALLS = 700  # more than one part of the layers


@pytest.mark.parametrize("name", ["gemm", "attention_decode"])
def test_one_number_for_all_calls_answers_as_the_same_number_in_each(name: str) -> None:
    known = trained(name)
    assert known is not None
    rng = np.random.default_rng(1)
    spread = {feature: rng.normal(size=CALLS) for feature in known.net.features}
    same = known.net.features[::3]
    spread |= {feature: np.full(CALLS, 0.1 * i) for i, feature in enumerate(same)}
    held = spread | {feature: np.broadcast_to(0.1 * i, CALLS) for i, feature in enumerate(same)}
    assert len(known.net.inputs(held).constant) == len(same)
    assert not known.net.inputs(spread).constant
    before, after = known.net(spread, {}), known.net(held, {})
    assert np.allclose(after.mean, before.mean, rtol=1e-4, atol=1e-4)
    assert np.allclose(after.scale, before.scale, rtol=1e-3)


def test_a_feature_that_nobody_computes_is_an_error_of_the_weights() -> None:
    known = trained("gemm")
    assert known is not None
    wants_more = replace(known.net, features=("no_such_feature", *known.net.features[1:]))
    with pytest.raises(BadFile, match="no_such_feature"):
        wants_more.inputs({feature: np.zeros(2) for feature in known.net.features})
    with pytest.raises(BadFile, match="no_such_feature"):
        inputs_of({}, ("no_such_feature",))
