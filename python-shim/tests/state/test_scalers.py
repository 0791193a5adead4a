"""torch's gradient scalers move at any point of an iteration."""

from __future__ import annotations

import pytest
import torch
from harness import Pair

if not hasattr(torch, "GradScaler"):
    pytest.skip("scales only on a GPU", allow_module_level=True)

_MODEL = """\
import torch
net = torch.nn.Linear(2, 2)
one, two = (torch.optim.SGD(net.parameters(), .1) for _ in range(2))
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
held = [scaler]
"""
_NAMES = ("torch", "net", "one", "two", "scaler", "held")
_HALF = "scaler.scale(net(torch.ones(3, 2)).sum()).backward(); scaler.unscale_(one)"
_REST = "scaler.step(one); stepped = net.bias.tolist(); scaler.update(); scale = scaler.get_scale()"
_UNCHANGED = "try: scaler.unscale_(one)\nexcept RuntimeError as error: text = str(error)"


@pytest.mark.parametrize("start", ["local", "remote"])
def test_it_moves_in_the_middle_of_an_iteration(pair: Pair, start: str) -> None:
    pair.local(_MODEL + "before = net.bias.tolist()")
    half, rest = (pair.local, pair.remote) if start == "local" else (pair.remote, pair.local)
    scaler = pair.namespace["scaler"]
    half(_HALF, *(_NAMES if start == "remote" else ()))
    rest(_UNCHANGED, *(_NAMES if start == "local" else ()))
    assert "already been called" in pair.namespace["text"]
    rest(_REST, *(_NAMES if start == "local" else ()))
    assert pair.namespace["scaler"] is pair.namespace["held"][0] is scaler
    assert pair.namespace["stepped"] == pytest.approx([value - 0.3 for value in pair.namespace["before"]], abs=1e-6)
    assert pair.namespace["scale"] == 16
    pair.remote("scale = held[0].get_scale(); stages = dict(scaler._per_optimizer_states)", *_NAMES)
    assert (pair.namespace["scale"], pair.namespace["stages"]) == (16, {})


def test_a_disabled_one_moves(pair: Pair) -> None:
    pair.local("import torch; scaler = torch.amp.GradScaler('cpu', enabled=False)")
    assert pair.remote("scaler.tag = scaler.is_enabled()", "scaler") == {"error": None}
    assert pair.namespace["scaler"].tag is False
