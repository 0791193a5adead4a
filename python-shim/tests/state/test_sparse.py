"""Gradients of sparse tensors, and sparse gradients."""

from __future__ import annotations

import pytest
from harness import Pair


@pytest.fixture
def pair(processes: Pair) -> Pair:
    processes.start_anew()
    return processes


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_sparse_gradients_over_several_cells(pair: Pair, layout: str) -> None:
    """Each cell adds to the gradient in place, at other rows."""
    make = (
        "import torch\ntable = torch.nn.Embedding(4, 2, sparse=True)\nwith torch.no_grad(): table.weight.fill_(1)\n"
        f"matrix = torch.eye(4).{layout}()\noptimizer = torch.optim.SGD(table.parameters(), lr=1)"
    )
    cells = [f"table(torch.tensor([{row}, 1])).sum().backward(); matrix.mul_(2)" for row in (0, 1, 2, 0, 3)]
    cells.insert(3, "optimizer.step(); optimizer.zero_grad(set_to_none=False)")
    expected: dict[str, object] = {}
    exec(make, expected)
    pair.local(make)
    names = "table", "matrix", "optimizer", "torch"
    look = "table.weight.tolist(), table.weight.grad.to_dense().tolist(), matrix.to_dense().tolist()"
    for number, cell in enumerate(cells):
        exec(cell, expected)
        if number % 3 == 2:
            pair.local(cell)
        else:
            assert pair.remote(cell, *names) == {"error": None}
        assert eval(look, pair.namespace) == eval(look, expected)
    assert pair.remote(f"seen = {look}", *names) == {"error": None}
    assert pair.namespace["seen"] == eval(look, expected)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_dense_gradient_of_a_sparse_tensor(pair: Pair, layout: str) -> None:
    """Only autograd can assign it. A hook must not notice that."""
    make = (
        f"import torch\nx = torch.eye(3).{layout}().requires_grad_(); column = torch.ones(3, 1); seen = []\n"
        "def hook(gradient): seen.append(gradient.sum().item())\nx.register_hook(hook)"
    )
    learn = "(x @ column).sum().backward(); g = x.grad"
    cells = [learn, "g.mul_(2); column.add_(1)", learn, "x.grad.zero_()", learn, "x.grad = None", learn, "del g"]
    look = "seen, None if x.grad is None else (str(x.grad.layout), x.grad.tolist(), x.requires_grad)"
    for first in (0, 1):
        pair.start_anew()
        expected: dict[str, object] = {}
        exec(make, expected)
        pair.local(make)
        for number, cell in enumerate(cells):
            exec(cell, expected)
            names = [name for name in ("x", "column", "seen", "g", "hook", "torch") if name in pair.namespace]
            if number % 2 == first:
                assert pair.remote(cell, *names, deleted=("g",) if "del" in cell else ()) == {"error": None}
            else:
                pair.local(cell)
            assert eval(look, pair.namespace) == eval(look, expected), number
            names = [name for name in names if name in pair.namespace]
            assert pair.remote(f"shown = {look}", *names) == {"error": None}
            assert pair.namespace["shown"] == eval(look, expected), number
