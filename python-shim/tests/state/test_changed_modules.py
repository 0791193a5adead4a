"""Modules of torch whose class changes."""

from __future__ import annotations

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
