"""Views of tensors remain views for autograd: each shares gradients and the count of changes with its base."""

from __future__ import annotations

import pytest
import torch
from harness import Pair
from test_alternating_cells import check_alternating

SHOW = (
    "import torch\n"
    "def show(view, base):\n"
    "    created = int(torch._C._autograd._get_creation_meta(view)) if view._is_view() else None\n"
    "    return view._base is base, created, type(view).__name__, view.tolist(), view.stride(), view.is_conj(), view.is_neg()\n"
    "def refused(change):\n"
    "    try: change()\n"
    "    except RuntimeError as error: return str(error)[:50]\n"
)
CASES: dict[str, tuple[str, tuple[str, ...], str]] = {
    # name: (what the notebook creates, the changes in alternating kernels, what must be equal after each)
    "a gradient through a view": (
        "x = torch.zeros(3); v = x[0]; w = torch.ones((), requires_grad=True)",
        (
            "v.copy_(w * 2); (x.sum() + w).backward()",
            "w.grad = None; x.detach_(); x[1:].copy_(w * 3); (x.sum() + w).backward()",
            "w.grad = None; x = torch.zeros(3); v = x[0]",
            "v.add_(w); x.sum().backward()",
        ),
        "v._base is x, x.tolist(), v.tolist(), x.requires_grad, v.requires_grad, w.grad",
    ),
    "a change that torch refuses": (
        "a = torch.ones(3); row = a[:2]; p = torch.ones(3, requires_grad=True); texts = []",
        ("y = (p * a).sum(); row.mul_(5); texts.append(refused(y.backward)); del y",) * 2
        + ("y = (p * row[0]).sum(); a.mul_(5); texts.append(refused(y.backward)); del y",),
        "show(row, a), texts, p.grad",
    ),
    "parts of complex numbers": (
        "z = torch.zeros(3, dtype=torch.complex64); x = torch.zeros(4)\n"
        "views = [z.real, z.imag, z.conj(), z.conj().imag, z[1:], torch.view_as_real(z)[:2]]\n"
        "pair = torch.view_as_complex(x.view(2, 2))",
        ("views[0][1] = 2; views[3][2] = 5", "z[0] = 1j; pair[1] = 3j", "views[5].add_(1)", "views[2].mul_(2)"),
        "[show(one, z) for one in views], show(pair, x)",
    ),
    "gradients of parts of complex numbers": (
        "z = torch.zeros(2, dtype=torch.complex64); real = z.real; w = torch.ones(2, requires_grad=True)",
        (
            "real.copy_(w * 3); z.abs().sum().backward(); z.detach_()",
            "z.imag.copy_(w * 4); z.imag.sum().backward(); z.detach_()",
        ),
        "show(real, z), z.tolist(), w.grad",
    ),
    "views of views in every form": (
        "x = torch.arange(12.0).reshape(3, 4); y = x.T[1:]; views = [y, y[0], x[:, ::2], x.expand(2, 3, 4), x.flatten()]\n"
        "views += [x.diagonal(), x[0, 0], x.unfold(0, 2, 1)]\nempty = x[:0]",
        ("views[1][0] = 7", "x.add_(1)", "views[5].zero_(); y.mul_(2)"),
        "[show(one, x) for one in (*views, empty)]",
    ),
    "of a parameter": (
        "p = torch.nn.Parameter(torch.ones(4)); p.sum().backward()\nwith torch.no_grad(): v = p[1:]; rows = p.unbind()",
        ("v.data[0] = 3", "p.data.add_(1)", "p.grad = None; (p[1:] * v).sum().backward(); p.data[0] = 9"),
        "show(v, p), show(rows[2], p), p.tolist(), v._base is rows[0]._base, refused(lambda: v.mul_(p[0]))",
    ),
    "without a name of the base": (
        "v = torch.zeros(2, 3)[1]; a, b = torch.ones(2, 2)",
        ("v[0] = 1; u = v._base", "v._base[0] = 2", "a.add_(1); c = b[:1]"),
        "show(v, v._base), a._base is b._base, a.tolist(), v._base.tolist()",
    ),
    "a base that holds its view": (
        "x = torch.zeros(3); x.held = [x[1:]]; v = x.held[0]; del x",
        ("v[0] = 1", "v._base.held.append(v[:1])", "v._base[1] = 5"),
        "show(v, v._base), v._base.held[0] is v, [one._base is v._base for one in v._base.held]",
    ),
    "of a class": (
        "class T(torch.Tensor): pass\nclass S(torch.Tensor): __slots__ = ('a',)\n"
        "x = torch.zeros(3); t = x.as_subclass(T); s = x[1:].as_subclass(S); s.a = 1; y = torch.ones(2).as_subclass(T); v = y[:1]",
        ("t[0] = 1; v[0] = 5", "s.a = 2; y[1] = 4", "x.add_(1); s.data[0] = 3"),
        "show(t, x), show(s, x), s.a, show(v, y), type(v._base).__name__",
    ),
    "of each mode": (
        "x = torch.zeros(3)\nwith torch.no_grad(): a = x[1:]\nwith torch.inference_mode(): b = x[1:]; i = torch.zeros(2); j = i[:1]\n"
        "c, d = x.split(2)",
        ("a[0] = 1", "b[1] = 2", "c[0] = 3; d[0] = 4\nwith torch.inference_mode(): j.add_(1)"),
        "[show(one, x) for one in (a, b, c, d)], j.tolist(), j.is_inference(), i.tolist()",
    ),
    "with a gradient of its own": (
        "x = torch.zeros(3); v = x[1:].requires_grad_()",
        ("(v * 2).sum().backward()", "v.data.add_(1); (v * 2).sum().backward()", "x[0] = 5"),
        "show(v, x), v.is_leaf, v.grad, x.requires_grad, x.tolist()",
    ),
    "other memory since": (
        "x = torch.zeros(3); v = x[1:]",
        ("v.data = torch.ones(2)", "x.data = torch.ones(4); x.add_(1)", "v.add_(1); u = x[1:]", "u.add_(1)"),
        "v._base is x, v.tolist(), x.tolist()",
    ),
    "a gradient of its parameter": (
        "x = torch.zeros(3); v = x[1:]",
        (
            "x.requires_grad_()\nwith torch.no_grad(): x.add_(1)",
            "(v * 2).sum().backward()",
            "(v * 3).sum().backward()",
        ),
        "v._base is x, v.tolist(), v.requires_grad, x.grad",
    ),
}


@pytest.mark.parametrize("session_first", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_views_with_their_bases(processes: Pair, case: str, session_first: bool) -> None:
    processes.start_anew()
    make, changes, look = CASES[case]
    check_alternating(processes, SHOW + make, changes, look, session_first)


def test_a_base_that_no_name_reaches_adds_no_memory(processes: Pair) -> None:
    pair = processes
    pair.start_anew()
    pair.local("import torch\nx = torch.zeros(1000, 100); row = x[0]; del x")
    assert pair.remote("row[0] = 1", "row", "torch") == {"error": None}
    assert pair.up[1] == 1000 * 100 * 4
    assert pair.down[1] <= 4096
    assert pair.namespace["row"]._base[0, 0] == 1


def test_a_base_that_is_not_sent(processes: Pair) -> None:
    """It has its own pickling, so it is not a view of the same memory in the other kernel."""
    pair = processes
    pair.start_anew()
    pair.local(
        "import torch\nclass R(torch.Tensor):\n  def __reduce_ex__(self, protocol): raise TypeError('not me')\n"
        "row = torch.zeros(2, 2).as_subclass(R).as_subclass(torch.Tensor)[0]\n"
        "base = torch.zeros(2, 2).as_subclass(R); part = base.as_subclass(torch.Tensor)[0]"
    )
    assert pair.remote("row[0] = 1; part[0] = 2", "row", "part", "torch") == {"error": None}
    assert (pair.namespace["row"].tolist(), pair.namespace["part"].tolist()) == ([1, 0], [2, 0])


def test_undoing_a_graph_that_a_view_got_in_a_cell(processes: Pair) -> None:
    pair = processes
    pair.start_anew()
    pair.local("import torch\nx = torch.zeros(3); v = x[0]; w = torch.ones((), requires_grad=True)")
    assert pair.remote("v.copy_(w * 2)", "x", "v", "w", "torch") == {"error": None}
    x, v = pair.namespace["x"], pair.namespace["v"]
    assert (v.requires_grad, x.requires_grad) == (True, True)
    assert pair.table.last_undo is not None
    pair.table.roll_back([pair.table.last_undo])
    assert (v._base is x, v.grad_fn, x.grad_fn, x.tolist()) == (True, None, None, [0, 0, 0])
    v.copy_(torch.ones((), requires_grad=True))
    assert x.requires_grad


def test_the_graph_of_a_view_stays_in_its_kernel(processes: Pair) -> None:
    pair = processes
    pair.start_anew()
    pair.local("import torch\nx = torch.zeros(3); v = x[0]; w = torch.ones((), requires_grad=True)")
    assert pair.remote("pass", "x", "v", "w", "torch") == {"error": None}
    assert pair.remote("v.copy_(w * 2)", "x", "v", "w") == {"error": None}
    pair.local("text = repr(v.grad_fn)[:19]")
    assert pair.remote("v.backward()", "v", "w", "text") == {"error": None}
    assert pair.namespace["text"] == "<AsStridedBackward0"
    assert pair.namespace["w"].grad == 2
