"""Modules of torch whose class changes, and functions that torch has compiled."""

from __future__ import annotations

import pytest
from baton_shim.state import Refused
from harness import Pair

_NET = "import torch; from torch import nn; net = nn.Sequential(nn.Linear(2, 3)); head = net[0]"
_SAME = (
    "found = head is net[0], type(head).__name__, hasattr(head, 'parametrizations'), list(vars(head)['_parameters'])"
)


def test_a_module_gets_and_loses_parametrizations_in_place(pair: Pair) -> None:
    pair.local(_NET)
    pair.remote("nn.utils.parametrizations.weight_norm(net[0])", "nn", "net")
    pair.local(_SAME)
    assert pair.namespace["found"] == (True, "ParametrizedLinear", True, ["bias"])
    pair.local("weight = head.weight.tolist(); nn.utils.parametrize.remove_parametrizations(head, 'weight')")
    pair.remote(f"{_SAME}; same = weight == head.weight.tolist()", "head", "net", "weight")
    assert pair.namespace["found"] == (True, "Linear", False, ["bias", "weight"])
    assert pair.namespace["same"] is True


def test_a_compiled_function_names_the_way_out(pair: Pair) -> None:
    pair.local("import torch\ntwice = torch.jit.trace(lambda x: x * 2, torch.ones(1)); held = [twice]")
    with pytest.raises(Refused, match=r"'twice' is a function that torch.jit compiled and cannot move"):
        pair.remote("pass", "twice")
    pair.remote("kept = held; text = repr(kept[0])", "held")
    assert pair.namespace["text"] == "<'held[0]' is a function that torch.jit compiled and stayed in your notebook>"
    assert pair.namespace["kept"][0] is pair.namespace["twice"]
