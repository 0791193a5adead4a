"""Tensors: shared storages, parameters, optimizers, gradients."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from typing import Any

import pytest
import torch
from baton_shim.state import StandInError
from harness import Pair
from test_alternating_cells import check_alternating
from test_in_place import check

PARAMETER = "torch.nn.Parameter(torch.ones(2, 2))"
CASES: dict[str, tuple[str, str, str]] = {
    "sparse with a gradient": (
        "x = torch.eye(2).to_sparse().requires_grad_()",
        "torch.sparse.mm(x, torch.ones(2, 1)).sum().backward()",
        "(x.requires_grad, x.grad.to_dense().tolist())",
    ),
    "data of another type": ("x = torch.ones(2)", "x.data = x.data.view(torch.int32)", "(x.dtype, x.tolist())"),
    "elements": ("x = torch.arange(6.)", "x[2] = 9; x.add_(1)", "x.tolist()"),
    "view": ("b = torch.zeros(4, 4); x = b[1:3, 1]", "x.fill_(5)", "b.tolist()"),
    "transposed": ("b = torch.arange(6.).reshape(2, 3); x = b.T", "x[0, 1] = 9", "(b.tolist(), x.stride())"),
    "numpy twin": ("x = torch.zeros(3); n = x.numpy()", "n[1] = 4", "(x.tolist(), n.tolist())"),
    "from numpy": (
        "import numpy as np; n = np.zeros(3); x = torch.from_numpy(n)",
        "x[1] = 4",
        "(x.tolist(), n.tolist())",
    ),
    "parameter": ("x = torch.nn.Parameter(torch.ones(2))", "x.data.mul_(3)", "(x.tolist(), x.requires_grad)"),
    "gradient": ("x = torch.ones(2, requires_grad=True)", "(x * x).sum().backward()", "x.grad.tolist()"),
    "attribute": ("x = torch.ones(2)", "x.tag = 'a'", "x.tag"),
    "bfloat16": ("x = torch.ones(3, dtype=torch.bfloat16)", "x[0] = 2", "(x.tolist(), str(x.dtype))"),
    "resized": ("x = torch.ones(3)", "x.resize_(2, 4).fill_(7)", "x.tolist()"),
    "zero size": ("x = torch.empty(0, 3)", "y = tuple(x.shape)", "(tuple(x.shape), y)"),
    "data": ("x = torch.ones(3)", "x.data = torch.zeros(5)", "x.tolist()"),
    "sparse": ("x = torch.eye(3).to_sparse(); v = x.values()", "x.mul_(2)", "(x.to_dense().tolist(), v.tolist())"),
    "sparse with other places": (
        "x = torch.eye(3).to_sparse()",
        "x.add_(torch.ones(3, 3).to_sparse())",
        "(x.to_dense().tolist(), x.is_coalesced())",
    ),
    "sparse by rows": (
        "x = torch.eye(3).to_sparse_csr(); v = x.values()",
        "x.values()[0] = 5; x.mul_(2)",
        "(x.to_dense().tolist(), v.tolist())",
    ),
    "values of a sparse one": (
        "x = torch.eye(3).to_sparse(); v = x.values()",
        "x.values()[0] = 5; v[1] = 6",
        "(x.to_dense().tolist(), v.tolist())",
    ),
    "sparse by columns with other places": (
        "x = torch.eye(3).to_sparse_csc()",
        "y = torch.ones(3, 3).to_sparse_csc(); x.resize_as_sparse_(y).copy_(y)",
        "x.to_dense().tolist()",
    ),
    "conjugate": ("x = torch.ones(2) * (1 + 1j)", "x.data = x.conj()", "x.tolist()"),
    "negative": ("x = torch.ones(2)", "x.data = torch._neg_view(x)", "x.tolist()"),
    "sparse by rows without a count": (
        "x = torch.eye(3).to_sparse_csr()",
        "x.values().data.mul_(2)",
        "x.to_dense().tolist()",
    ),
    "sparse without a count": (
        "x = torch.eye(3).to_sparse()",
        "v = x._values().numpy(); v[0] = 7",
        "x.to_dense().tolist()",
    ),
    "packed sequence": (
        "x = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]); y = x.data",
        "x.data.mul_(2)",
        "(x.data.tolist(), x.data is y, x.batch_sizes.tolist())",
    ),
    "generator": (
        "x = torch.Generator().manual_seed(3)",
        "torch.rand(1, generator=x)",
        "torch.rand(1, generator=x).item()",
    ),
    "the default generator": (
        "x = [torch.default_generator]",
        "y = x[0] is torch.default_generator",
        "(y, x[0] is torch.default_generator)",
    ),
    "limits of a type": (
        "x = torch.finfo(torch.float16), torch.iinfo(torch.int8)",
        "y = x[0].max, x[1].min; z = torch.finfo(torch.float32)",
        "(x[0].max, y, z.eps)",
    ),
    "module without an attribute": (
        "x = torch.nn.Linear(1, 1); x.a = x.b = torch.ones(1)",
        "del x.a; x.c = 1",
        "[name in vars(x) for name in 'abc']",
    ),
    "another type of a parameter and its gradient": (
        "x = torch.nn.Linear(1, 1); x(torch.ones(1)).backward(); y = x.weight.grad",
        "x.double()",
        "(x.weight.dtype, x.weight.grad.tolist(), x.weight.grad is y, y.dtype)",
    ),
    "module": (
        "torch.manual_seed(0); x = torch.nn.Linear(2, 1)",
        "x.weight.data.fill_(2); x.extra = torch.nn.Linear(1, 1, bias=False)",
        "(x.weight.tolist(), len(list(x.parameters())))",
    ),
}


@pytest.fixture
def pair(processes: Pair) -> Pair:
    processes.start_anew()
    return processes


@pytest.mark.parametrize("case", CASES)
def test_in_place(pair: Pair, case: str) -> None:
    check(pair, *CASES[case], before="import torch")


def test_training_over_several_cells(pair: Pair) -> None:
    make = (
        "import torch\ntorch.manual_seed(0)\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))\n"
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
        "data, target = torch.randn(16, 4), torch.randn(16, 1)\nlosses = []\n"
    )
    step = (
        "optimizer.zero_grad()\nloss = ((model(data) - target) ** 2).mean()\nloss.backward()\n"
        "optimizer.step()\nlosses.append(loss.item())\n"
    )
    expected: dict[str, object] = {"__name__": "__main__"}
    exec(make + step * 4, expected)
    pair.local(make)
    home = pair.namespace
    pair.local("weight = model[0].weight")
    names = ["model", "optimizer", "data", "target", "losses", "torch"]
    for where in ("remote", "local", "remote", "remote"):
        if where == "local":
            pair.local(step)
        else:
            assert pair.remote(step, *names) == {"error": None}
    assert home["losses"] == pytest.approx(expected["losses"])
    assert home["model"][0].weight is home["weight"] is home["optimizer"].param_groups[0]["params"][0]
    assert home["loss"].item() == pytest.approx(expected["losses"][-1])  # type: ignore[index]
    pair.remote("pass", *names)
    assert pair.up[1] == 0 and pair.down[1] == 0 and pair.up[0] < 400


def test_a_tensor_of_a_graph_travels_with_its_values(pair: Pair) -> None:
    pair.local("import torch\nx = torch.ones(3, requires_grad=True); y = x * 2; z = y + 1")
    look = "text = (y.shape, str(z), repr(z.grad_fn).split()[0], y.detach().tolist(), z is not None)"
    expected: dict[str, object] = {}
    exec("import torch\nx = torch.ones(3, requires_grad=True); y = x * 2; z = y + 1\n" + look, expected)
    assert pair.remote(look, "y", "z") == {"error": None}
    assert pair.namespace["text"] == expected["text"]
    pair.local("z.sum().backward()")
    assert pair.namespace["x"].grad.tolist() == [2, 2, 2]


EARLY = "from torch.autograd import grad as early_grad; from torch.autograd.graph import get_gradient_edge as edge"
NEEDS_GRAPH: dict[str, str] = {
    "backward": "y.sum().backward()",
    "backward of several": "torch.autograd.backward([y.sum(), y.mean()])",
    "backward to a tensor": "(y * x).sum().backward(inputs=[x])",
    "backward of several to a tensor": "torch.autograd.backward([(y * x).sum()], inputs=x)",
    "gradients": "torch.autograd.grad((y * x).sum(), x)",
    "gradients by an earlier import": "early_grad((y * x).sum(), x)",
    "gradients of an edge": "torch.autograd.grad((y * x).sum(), edge(x))",
    "backward to an edge": "torch.autograd.backward((y * x).sum(), inputs=edge(x))",
    "backward from an edge": "torch.autograd.backward(edge((y * x).sum()), torch.tensor(1.0), inputs=edge(x))",
    "through an operation": "((y * 3).relu() @ torch.ones(3)).backward()",
    "its nodes": "y.grad_fn.next_functions[0][0].variable",
    "nodes behind it": "(y * 2).grad_fn.next_functions[0][0].next_functions",
    "what it saved": "y.grad_fn.saved_tensors",
}
if "Edge" not in str(inspect.signature(torch.autograd.backward).parameters["tensors"].annotation):  # an older torch
    del NEEDS_GRAPH["backward from an edge"]


@pytest.mark.parametrize("case", NEEDS_GRAPH)
def test_what_needs_a_graph_of_the_notebook_raises(pair: Pair, case: str) -> None:
    pair.remote(EARLY)
    pair.local("import torch\nx = torch.ones(3, requires_grad=True); y = x * 2")
    outcome = pair.remote(NEEDS_GRAPH[case], "y", "x", "torch", "early_grad", "edge")
    assert isinstance(outcome["error"], StandInError)
    text = str(outcome["error"])
    assert text.startswith("The computation graph of this tensor stayed in your notebook; continue with it in ordinary")
    assert text.endswith("their .grad is unchanged, or None") == (
        "grad(" in NEEDS_GRAPH[case] or "backward(" in NEEDS_GRAPH[case]
    )


OTHER_TENSORS: dict[str, str] = {
    "sparse": "y = torch.eye(3).to_sparse().requires_grad_() * 2",
    "of a class": "class Own(torch.Tensor): pass\ny = torch.ones(3).as_subclass(Own).requires_grad_() * 2",
    "conjugate": "y = (torch.ones(3, dtype=torch.complex64).requires_grad_() * 2j).conj()",
    "negative": "y = (torch.ones(3, dtype=torch.complex64).requires_grad_() * 2j).conj().imag",
    "expanded": "y = (torch.ones(3, 1).requires_grad_() * 2).expand(3, 3)",
    "16 bits": "y = torch.ones(3, dtype=torch.bfloat16).requires_grad_() * 2",
}


@pytest.mark.parametrize("case", OTHER_TENSORS)
def test_other_tensors_of_a_graph(pair: Pair, case: str) -> None:
    look = "seen = (type(y).__name__, str(y.detach()), y.requires_grad, y.is_leaf, y.is_conj(), y.is_neg(), y.tag)"
    make = f"import torch\n{OTHER_TENSORS[case]}\ny.tag = 'a'"
    pair.local(make)
    expected: dict[str, object] = {}
    exec(f"{make}\n{look}", expected)
    assert pair.remote(look, "y", "torch") == {"error": None}
    assert pair.namespace["seen"] == expected["seen"]
    outcome = pair.remote("torch.autograd.backward(y, y.detach())", "y", "torch")
    assert isinstance(outcome["error"], StandInError)
    pair.local("torch.autograd.backward(y, y.detach())")


GRAPHS: dict[str, str] = {
    "view of a parameter": "y = weight[0]",
    "computed": "y = weight * 2",
    "loss": "y = weight.sum()",
    "with a gradient": "y = weight * 2; y.retain_grad(); y.sum().backward(retain_graph=True)",
    "changed in place": "y = torch.zeros(2, 2); y.add_(weight)",
    "transposed": "y = (weight * torch.arange(2.)).T",
}


@pytest.mark.parametrize("case", GRAPHS)
def test_a_graph_stays_and_its_values_come_home(pair: Pair, case: str) -> None:
    pair.local("import torch\nweight = torch.ones(2, 2, requires_grad=True)")
    expected: dict[str, object] = {}
    exec("import torch\nweight = torch.ones(2, 2, requires_grad=True)\n" + GRAPHS[case], expected)
    assert pair.remote(GRAPHS[case], "weight", "torch") == {"error": None}
    home = pair.namespace
    look = "(y.tolist(), y.stride(), y.requires_grad, y.is_leaf, y.retains_grad and y.grad, y.detach().sum().item())"
    assert repr(eval(look, home)) == repr(eval(look, expected))
    with pytest.raises(StandInError, match="lives on the GPU machine; continue with it in %%gpu cells"):
        home["y"].sum().backward()
    assert pair.remote("weight.grad = None; y.sum().backward()", "weight", "y") == {"error": None}
    assert home["weight"].grad.sum() > 0
    pair.remote("pass", "weight", "y")
    assert pair.up[1] == pair.down[1] == 0 and pair.down[0] < 400


def test_a_view_of_a_parameter_shows_its_changes(pair: Pair) -> None:
    pair.local("import torch\nweight = torch.ones(2, 2, requires_grad=True)")
    pair.remote("y = weight[0]", "weight", "torch")
    pair.remote("with torch.no_grad(): weight[0] = 7", "weight", "torch")
    assert pair.namespace["y"].tolist() == [7, 7]
    pair.local("with torch.no_grad(): weight[0] = 8")
    pair.remote("seen = y.tolist()", "y")
    assert pair.namespace["seen"] == [8, 8]


CHANGES: dict[str, str] = {"in place": "y.mul_(3)", "below": "y[0] = 3", "its memory": "y.data.mul_(3)"}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("view", [False, True])
def test_a_graph_that_was_changed_elsewhere_gives_no_wrong_gradient(pair: Pair, case: str, view: bool) -> None:
    """At either end, after the other has changed it; a change of the values alone does not matter."""
    make = "y = (weight * 2)[:]" if view else "y = weight * 2"
    pair.local("import torch\nweight = torch.ones(2, requires_grad=True)\n" + make)
    assert pair.remote(CHANGES[case], "y", "torch") == {"error": None}
    if case == "its memory":
        pair.local("y.sum().backward()")
        assert pair.namespace["weight"].grad.tolist() == [2, 2]
        return
    with pytest.raises(StandInError, match="were changed in %%gpu cells"):
        pair.local("y.sum().backward()")
    assert pair.namespace["weight"].grad is None
    outcome = pair.remote("y.sum().backward()", "y", "torch")
    assert isinstance(outcome["error"], StandInError)


def test_a_graph_of_the_session_that_was_changed_in_the_notebook(pair: Pair) -> None:
    pair.local("import torch\nweight = torch.ones(2, requires_grad=True)")
    pair.remote("y = weight * 2", "weight", "torch")
    pair.local("y.mul_(3)")
    outcome = pair.remote("seen = y.tolist(); y.sum().backward()", "y", "weight")
    assert "changed in ordinary cells" in str(outcome["error"])
    assert pair.namespace["seen"] == [6, 6] and pair.namespace["weight"].grad is None


def test_a_graph_of_a_lost_session(pair: Pair) -> None:
    pair.local("import torch\nweight = torch.ones(2, requires_grad=True)")
    pair.remote("y = weight * 2", "weight", "torch")
    pair.lose_session()
    outcome = pair.remote("seen = y.tolist(); y.sum().backward()", "y", "weight")
    assert "is lost; compute it again" in str(outcome["error"])
    assert pair.namespace["seen"] == [2, 2]


def test_a_loss_of_the_notebook_has_its_graph_there(pair: Pair) -> None:
    pair.local("import torch\nweight = torch.ones(2, requires_grad=True); loss = (weight * 2).sum()")
    outcome = pair.remote("value = loss.item(); loss.backward()", "loss", "weight")
    assert pair.namespace["value"] == 4
    assert "stayed in your notebook; continue with it in ordinary cells" in str(outcome["error"])
    pair.local("loss.backward()")
    assert pair.namespace["weight"].grad.tolist() == [2, 2]


def test_tied_weights(pair: Pair) -> None:
    pair.local(
        "import torch\na = torch.nn.Linear(2, 2); b = torch.nn.Linear(2, 2); b.weight = a.weight; keep = a.weight"
    )
    pair.remote("with torch.no_grad(): a.weight.add_(1)\nsame = a.weight is b.weight", "a", "b", "torch")
    home = pair.namespace
    assert home["same"] and home["a"].weight is home["b"].weight is home["keep"]


def test_hooks_of_an_optimizer(pair: Pair) -> None:
    """In a session that has not created an optimizer yet."""
    pair.local(
        "import torch\nseen = []\nx = torch.nn.Parameter(torch.ones(1))\n"
        "optimizer = torch.optim.Rprop([x])\n"
        "if hasattr(optimizer, 'register_step_post_hook'):\n"  # torch 2
        "    _ = optimizer.register_step_post_hook(lambda *_: seen.append('after'))\n"
        "else:\n    seen.append('after')"
    )
    pair.remote("optimizer.step()", "optimizer", "seen")
    assert pair.namespace["seen"] == ["after"]


def test_nested_tensors_over_several_cells(pair: Pair) -> None:
    """They consist of other tensors, and keep sizes that cannot be sent."""
    make = (
        "import torch\nparts = [torch.ones(2, 3), torch.ones(4, 3)]\n"
        "x = torch.nested.nested_tensor(parts, layout=torch.jagged)\nvalues = x.values()\nx.note = 'kept'"
    )
    pair.local(make)
    for number in range(2, 5):
        assert pair.remote("x.values().add_(1); size = x.size(0), x.size(2)", "x", "torch") == {"error": None}
        x = pair.namespace["x"]
        assert {part.unique().item() for part in (*x.unbind(), pair.namespace["values"])} == {number}
        assert (x.size(0), x.size(2), x.note, pair.namespace["size"]) == (2, 3, "kept", (2, 3))
    pair.local("x = x * 2")
    assert pair.remote("x = x + 1", "x", "torch") == {"error": None}
    assert [part.tolist() for part in pair.namespace["x"].unbind()] == [[[9] * 3] * 2, [[9] * 3] * 4]


VIEWS_WITHOUT_GRADIENTS = {
    "of the notebook, changed in a cell": (f"x = {PARAMETER}; {{VIEW}}", "{STEP}"),
    "of the notebook, changed there": (f"x = {PARAMETER}; {{VIEW}}; {{STEP}}", "x.data.mul_(2)"),
    "of a cell": ("", f"x = {PARAMETER}; {{VIEW}}; {{STEP}}"),
}


@pytest.mark.parametrize("case", VIEWS_WITHOUT_GRADIENTS)
def test_a_view_without_gradients_of_a_parameter_that_changed_since(pair: Pair, case: str) -> None:
    """torch raises an error when such a view is asked for its graph."""

    def whole(code: str) -> str:
        view = "guard = torch.no_grad(); guard.__enter__(); view = x[0]; guard.__exit__(None, None, None)"
        return code.format(VIEW=view, STEP="(x * 2).sum().backward(); torch.optim.SGD([x], lr=1).step()")

    here, there = map(whole, VIEWS_WITHOUT_GRADIENTS[case])
    control: dict[str, Any] = {"torch": torch}
    for code in (here, there, "x.data.add_(1)"):
        exec(code, control)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        assert control["view"].grad_fn
    pair.local(f"import torch\n{here}")
    names = ("x", "view") if here else ()
    assert pair.remote(there, "torch", *names) == {"error": None}
    assert pair.remote("x.data.add_(1)", "x", "view") == {"error": None}
    assert pair.namespace["view"].tolist() == control["view"].tolist()
    assert pair.namespace["x"].tolist() == control["x"].tolist()


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_computed_sparse_tensor_stays_the_same_object(pair: Pair, layout: str) -> None:
    pair.local(f"import torch; x = torch.ones(2, 2, requires_grad=True); sparse = x.{layout}(); holder = [sparse]")
    for _ in range(2):
        assert pair.remote("holder.append(sparse)", "holder", "sparse", "torch") == {"error": None}
        sparse = pair.namespace["sparse"]
        assert all(one is sparse for one in pair.namespace["holder"])
        assert sparse.requires_grad
        assert not sparse.is_leaf
    pair.local("sparse.to_dense().sum().backward()")
    assert pair.namespace["x"].grad.tolist() == [[1, 1], [1, 1]]


def test_a_gradient_without_a_count_of_its_changes(pair: Pair) -> None:
    pair.local("import torch; x = torch.ones(2, requires_grad=True)")
    assert pair.remote("with torch.inference_mode(): made = torch.ones(2)\nx.grad = made", "x", "torch") == {
        "error": None
    }
    assert pair.remote("x.data.add_(x.grad)", "x") == {"error": None}
    assert pair.namespace["x"].tolist() == [2, 2]


def test_a_computed_tensor_whose_gradient_the_other_kernel_wants(pair: Pair) -> None:
    pair.local("import torch; x = torch.ones(2, 3, requires_grad=True)")
    assert pair.remote("row = x[1]", "x", "torch") == {"error": None}
    pair.local("row.retain_grad()")
    assert pair.remote("with torch.no_grad(): x.add_(1)", "x", "row", "torch") == {"error": None}
    assert pair.namespace["row"].tolist() == [2, 2, 2]
    with pytest.raises(StandInError):
        pair.local("row.sum().backward()")


UNUSUAL = {
    "within a transformation": "torch.func.jacrev(lambda v: (x.append(v), v**2)[1])(torch.ones(3))",
    "zeros without memory": "x.append(torch._efficientzerotensor(3))",
    "compressed rows that learn": "x.append(torch.eye(3).to_sparse_csr().requires_grad_()); (x[0] @ torch.ones(3, 1)).sum().backward()",
    "compressed rows": "x.append(torch.eye(3).to_sparse_csr().requires_grad_())",
    "a nested tensor": "x.append(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged))",
    "a nested tensor that learns": "x.append(torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged, requires_grad=True)); x[0].sum().backward()",
}


@pytest.mark.parametrize("case", UNUSUAL)
@pytest.mark.parametrize("here", [True, False], ids=["of the notebook", "of a cell"])
def test_unusual_tensors_fail_no_message(pair: Pair, case: str, here: bool) -> None:
    """They arrive, or a stand-in says why not."""
    pair.local(f"import torch; x = []; {UNUSUAL[case] if here else ''}")
    made = "None" if here else UNUSUAL[case]
    assert pair.remote(f"{made}; result = 1", "x", "torch") == {"error": None}
    assert pair.remote("result += len(x)", "x", "torch", "result") == {"error": None}
    assert (pair.namespace["result"], len(pair.namespace["x"])) == (2, 1)
    with contextlib.suppress(StandInError):
        assert pair.namespace["x"][0].size() is not None


def test_hooks_that_take_each_gradient(pair: Pair) -> None:
    """An optimizer that steps within `backward`."""
    pair.local(
        "import torch\nx = torch.nn.Parameter(torch.ones(2))\noptimizer = torch.optim.SGD([x], lr=1)\n"
        "def step(p):\n    optimizer.step()\n    optimizer.zero_grad()\n"
        "handle = x.register_post_accumulate_grad_hook(step)"
    )
    assert pair.remote("x.sum().backward()", "x", "torch", "optimizer", "step") == {"error": None}
    assert pair.namespace["x"].tolist() == [0, 0]
    pair.local("x.sum().backward(); handle.remove()")
    assert pair.namespace["x"].tolist() == [-1, -1]
    assert pair.remote("x.sum().backward()", "x") == {"error": None}
    assert (pair.namespace["x"].tolist(), pair.namespace["x"].grad.tolist()) == ([-1, -1], [1, 1])


@pytest.mark.parametrize("prune", ["x.data[:2]", "x.data.double()", "x.data.reshape(2, 2)"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_gradient_of_a_parameter_that_was_pruned_since(pair: Pair, prune: str, sparse: bool) -> None:
    """torch compares the two only when a gradient is assigned."""
    gradient = "torch.ones(4).to_sparse()" if sparse else "torch.ones(4)"
    make = f"x = torch.nn.Parameter(torch.ones(4)); x.grad = {gradient}; x.data = {prune}"
    control: dict[str, Any] = {"torch": torch}
    exec(make, control)
    pair.local("import torch")
    assert pair.remote(make, "torch") == {"error": None}
    for _ in range(2):
        x, same = pair.namespace["x"], control["x"]
        assert (x.tolist(), x.dtype, type(x)) == (same.tolist(), same.dtype, type(same))
        assert x.grad.to_dense().tolist() == same.grad.to_dense().tolist()
        assert pair.remote("x.data.add_(1)", "x") == {"error": None}
        control["x"].data.add_(1)


CLASSES = (
    "import numpy as np, torch\nclass T(torch.Tensor): pass\nclass P(torch.nn.Parameter): pass\n"
    "class L(torch.Tensor):\n"
    "  calls = []\n"
    "  @classmethod\n"
    "  def __torch_function__(cls, function, types, args=(), kwargs=None):\n"
    "    cls.calls.append(function.__name__); return super().__torch_function__(function, types, args, kwargs)\n"
)
OF_A_CLASS: dict[str, tuple[str, tuple[str, ...], str]] = {
    # name: (what the notebook creates, the changes in alternating kernels, what must be equal after each)
    "parameters": (
        "m = torch.nn.Linear(2, 2); m.weight = P(torch.ones(2, 2)); w = m.weight; w.tag = [1]; n = w.detach().numpy()",
        (
            "for q in m.parameters(): q.data.fill_(0.5)",
            "m.weight.data.mul_(5); w.tag.append(w)",
            "n[0] = 7; w.grad = torch.ones(2, 2)",
            "m.weight.grad.add_(1); w.requires_grad_(False)",
            "m.weight.data = torch.zeros(3); w.tag = None",
            "w.data[1] = 4",
        ),
        "m.weight is w, type(w).__name__, w.tolist(), n.tolist(), w.requires_grad, str(w.grad), len(w.tag or ())",
    ),
    "shared storage": (
        "b = torch.ones(4); s = b.as_subclass(T); v = s[1:3]; n = s.numpy(); s.tag = v",
        (
            "b[1] = 9",
            "s.numpy()[2] = 8",
            "v.data.add_(1)",
            "n[0] = 3; v.tag = b",
            "s.tag[1] = 5; b = s + 1",
            "b[0] = 0",
        ),
        "b.tolist(), s.tolist(), v.tolist(), n.tolist(), type(v).__name__, s.tag is v, getattr(v, 'tag', 0) is b",
    ),
    "with a function of its own": (
        "x = torch.ones(3).as_subclass(L); x.held = [x]; L.calls.clear()",
        ("x.data[0] = 5; y = x * 2", "x.numpy()[1] = 6; y.data += x", "L.more = 1; x.fill_(2)"),
        "[one.as_subclass(torch.Tensor).tolist() for one in (x, y)], x.held[0] is x, type(y).__name__, sorted(L.calls)",
    ),
    "looked at by an array": (
        "x = torch.zeros(3).as_subclass(L); n = x.numpy(); x.calls.clear()",
        ("n[0] = 4", "n[1] = 5; x.data[2] += n[0]", "n *= 2"),
        "x.as_subclass(torch.Tensor).tolist(), n.tolist(), L.calls",
    ),
    "in other forms": (
        "x = [torch.ones(0).as_subclass(T), torch.tensor(5).as_subclass(T), torch.eye(2).T.as_subclass(T)[1]]\n"
        "x.append((torch.ones(2) * 1j).conj().as_subclass(T)); x.append(torch.ones(2).half().expand(3, 2).as_subclass(T))\n"
        "with torch.inference_mode(): x.append(torch.ones(2).as_subclass(T))\n"
        "y = torch.ones(2).as_subclass(T).requires_grad_(); hooked = []; y.register_hook(hooked.append)",
        (
            "x[1].data.add_(1); x[2].data[1] = 7; x[3].data[0] = 2j; y.sum().backward()",
            "x[4].data[0, 0] = 3\nwith torch.inference_mode(): x[5].add_(1)",
            "x[0].tag = y; (y * 2).sum().backward()",
        ),
        "[(type(one).__name__, one.tolist(), one.stride(), one.is_conj(), one.is_inference()) for one in x], "
        "y.grad.tolist(), type(y.grad).__name__, y.is_leaf, [one.tolist() for one in hooked]",
    ),
    "of another class": (
        "x = torch.ones(3); y = torch.nn.Parameter(torch.ones(2))",
        ("x.__class__ = T; x.tag = 1", "x[0] = 5; y.__class__ = P", "x.__class__ = torch.Tensor; y.data[0] = 3"),
        "type(x).__name__, x.tolist(), type(y).__name__, y.tolist(), y.requires_grad, vars(x)",
    ),
    "with slots": (
        "class S(torch.Tensor): __slots__ = ('a', 'b')\nx = torch.ones(3).as_subclass(S); x.a = [x]; x.c = 1",
        ("x.a.append(x.c); x.data[0] = 3", "x.b = x.a; del x.a", "x.b.append(2)"),
        "hasattr(x, 'a'), len(getattr(x, 'b', x.a if hasattr(x, 'a') else 0)), x.c, x.tolist()",
    ),
    "with pickling of its own": (
        "class R(torch.Tensor):\n"
        "  def __reduce_ex__(self, protocol): return restore, (self.as_subclass(torch.Tensor), vars(self))\n"
        "def restore(tensor, held):\n  made = tensor.as_subclass(R); vars(made).update(held); return made\n"
        "x = torch.ones(3).as_subclass(R); x.tag = 1",
        ("x.data[0] = 3", "x.numpy()[1] = 4; x.tag = 2", "x[2] = 5"),
        "x.tolist(), x.tag, type(x).__name__",
    ),
    "without memory": (
        "class W(torch.Tensor):\n"
        "  @staticmethod\n"
        "  def __new__(cls, inner): return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)\n"
        "  def __init__(self, inner): self.inner = inner\n"
        "  @classmethod\n"
        "  def __torch_dispatch__(cls, function, types, args=(), kwargs=None):\n"
        "    args = [one.inner if isinstance(one, W) else one for one in args]\n"
        "    return function(*args, **(kwargs or {}))\n"
        "x = W(torch.ones(3))",
        ("x.inner[0] = 5", "x.add_(1)", "x.tag = x.inner"),
        "x.inner.tolist(), type(x).__name__, getattr(x, 'tag', 0) is x.inner",
    ),
}


@pytest.mark.parametrize("session_first", [True, False])
@pytest.mark.parametrize("case", OF_A_CLASS)
def test_tensors_of_a_class(pair: Pair, case: str, session_first: bool) -> None:
    make, changes, look = OF_A_CLASS[case]
    check_alternating(pair, CLASSES + make, changes, look, session_first)


def test_a_quantized_tensor_arrives_without_a_warning_about_storages(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(torch.storage._warn_typed_storage_removal), "has_warned", False)
    quantize = "import torch\n{} = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 3, torch.quint8)"
    read = "import warnings\nwith warnings.catch_warnings(record=True) as said:\n    warnings.simplefilter('always')\n"
    pair.local(quantize.format("here"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pair.remote(quantize.format("there") + "\nvalues = here.dequantize().tolist()", "here")
    assert [str(one.message) for one in said if "TypedStorage" in str(one.message)] == []
    assert pair.namespace["values"] == pair.namespace["there"].dequantize().tolist() == [0, 1, 2, 3]
    pair.local(read + "    torch.ones(1).storage().device\nheard = [str(one.message)[:12] for one in said]")
    assert pair.namespace["heard"] == ["TypedStorage"]  # the student's own use of it
