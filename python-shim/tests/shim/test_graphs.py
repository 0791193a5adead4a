"""Tensors of computation graphs for a student: an operation that needs a graph elsewhere says so, in one frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Baton

MODEL = (
    "import torch\nfrom torch.autograd import grad as early\ntorch.manual_seed(0)\nnet = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())\n"
    "out = net(torch.ones(4, 3))\nheld = torch.nn.Linear(2, 1)"
)
WHERE = ("stayed in your notebook; continue with it in ordinary", "lives on the GPU machine; continue with it in %%gpu")
NO_GRADIENT = "The parameters behind it got no gradient from this backward(): their .grad is unchanged, or None"
NEEDS = {
    "backward": ("out.sum().backward()", NO_GRADIENT),
    "a layer more": ("held(out).mean().backward()", NO_GRADIENT),
    "gradients": ("torch.autograd.grad(out.sum() + held.weight.sum(), held.weight, allow_unused=True)", NO_GRADIENT),
    "backward to a layer": ("held(out).mean().backward(inputs=list(held.parameters()))", NO_GRADIENT),
    "of several to a layer": ("torch.autograd.backward([held(out).mean()], inputs=[held.weight])", NO_GRADIENT),
    "imported before": ("early(held(out).mean(), held.weight)", NO_GRADIENT),
    "a walk": ("def walk(node):\n    for below, _ in node.next_functions: walk(below)\nwalk(out.grad_fn)", ""),
}


@pytest.mark.parametrize("made_here", [True, False])
def test_what_needs_a_graph_that_stayed(baton: Baton, made_here: bool) -> None:
    there, here = ("%%gpu\n", "") if made_here else ("", "%%gpu\n")
    assert baton.run(here + MODEL).reply["status"] == "ok"
    assert baton.run(f"{there}out.shape, print(out.detach().requires_grad)").result == "(torch.Size([4, 2]), None)"
    shown = baton.run(f"{here}out").result
    assert baton.run(f"{there}out").result == shown and "grad_fn=<ReluBackward0>" in shown
    for code, gradients in NEEDS.values():
        cell = baton.run(f"{there}before = 1\n{code}")
        assert WHERE[not made_here] in cell.error, cell.error
        assert gradients in cell.error
        assert "site-packages" not in cell.traceback and "---> " in cell.traceback
        assert len(cell.traceback.splitlines()) < 22, cell.traceback
        said = cell.text("stderr") + cell.traceback
        assert "hint: put the forward pass and its backward() into one cell" in said
        assert baton.value("net[0].weight.grad") == "None"
    baton.run(f"{here}out.sum().backward()")
    assert baton.value("net[0].weight.grad is None") == "False"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gradients_up_to_a_tensor_whose_graph_stayed(baton: Baton, device: str) -> None:
    baton.run(f"import torch\nw = torch.ones(2, device='{device}', requires_grad=True)\nout = w * 3")
    code = "%%gpu\nfree = torch.ones_like(out, requires_grad=True)\n"
    grad = "[each.tolist() for each in torch.autograd.grad((out.square() * free).sum(), [out, free])]"
    assert baton.run(code + grad).result == "[[6.0, 6.0], [9.0, 9.0]]"
    assert WHERE[0] in baton.run(f"{code}torch.autograd.grad((out * free).sum(), free)").error


def test_gradients_of_what_the_cell_does_not_name(baton: Baton) -> None:
    baton.run("import torch\nweights = [torch.ones(2, requires_grad=True)]; free = torch.zeros(2, requires_grad=True)")
    baton.run("%%gpu\nlosses = [(weights[0] * n + free).sum() for n in range(3)]")
    for count, gradient in enumerate(([2.0, 2.0], [3.0, 3.0])):
        baton.run(f"%%gpu\nlosses[{2 - count}].backward()")
        assert baton.value("weights[0].grad.tolist(), free.grad[0].item()") == f"({gradient}, {count + 1.0})"


def test_a_stand_in_in_a_call_of_torch(baton: Baton) -> None:
    baton.run("import torch\nholder = [n for n in [0]]; holder[0] = (n for n in [1])")
    for call in ("torch.add(holder[0], 1)", "torch.nn.Linear(2, 2)(holder[0])", "torch.stack([holder[0]])"):
        cell = baton.run(f"%%gpu\n{call}")
        assert cell.error == "StandInError: 'holder[0]' is a generator and stayed in your notebook", cell.traceback
        assert "site-packages" not in cell.traceback
