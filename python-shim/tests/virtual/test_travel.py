"""Tensors on the GPU are sent to the session and back: their device, what they share, what is attached to them.

The same tests run on a machine with a GPU, where the session's tensors are real ones.
"""

from __future__ import annotations

import os

import pytest
import torch
from baton_shim.virtual import machine_has_gpu
from harness import Pair

pytestmark = [pytest.mark.gpu] if machine_has_gpu() else []

MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
data, target = torch.randn(16, 4).to("cuda"), torch.randn(16, 1, device="cuda")
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
losses = []
"""
STEP = """
optimizer.zero_grad()
loss = ((model(data) - target) ** 2).mean()
loss.backward()
optimizer.step()
losses.append(loss.item())
"""
SCALER = "torch.GradScaler" if hasattr(torch, "GradScaler") else "torch.cuda.amp.GradScaler"  # older versions
# label, before, in the cell, expression in the notebook, expected
CASES: dict[str, tuple[str, str, str, object]] = {
    "stays on the GPU": (
        "x = torch.ones(2, device='cuda')",
        "y = x + 1",
        "(str(y.device), y.tolist())",
        ("cuda:0", [2, 2]),
    ),
    "asked for there": ("x = torch.ones(2, device='cuda')", "y = (x.is_cuda, str(x.device))", "y", (True, "cuda:0")),
    "made there": ("", "y = torch.arange(3, device='cuda')", "(y.is_cuda, y.tolist())", (True, [0, 1, 2])),
    "made there on the CPU": ("", "y = torch.arange(3)", "y.is_cuda", False),
    "in place": ("x = torch.zeros(3, device='cuda'); z = x", "x[1] = 5", "(z is x, z.tolist())", (True, [0, 5, 0])),
    "view": (
        "b = torch.zeros(4, device='cuda'); x = b[1:3]",
        "x.fill_(2)",
        "(b.tolist(), x.is_cuda)",
        ([0, 2, 2, 0], True),
    ),
    "view made there": ("b = torch.zeros(4, device='cuda')", "x = b[:2]; x += 1", "x.data_ptr() == b.data_ptr()", True),
    "large": ("x = torch.zeros(100_000, device='cuda')", "x[99_999] = 1", "(x.sum().item(), x.is_cuda)", (1, True)),
    "moved down": ("x = torch.ones(2, device='cuda')", "y = x.cpu()", "(x.is_cuda, y.is_cuda)", (True, False)),
    "moved up": ("m = torch.nn.Linear(2, 1); w = m.weight", "m.to('cuda')", "(w is m.weight, w.is_cuda)", (True, True)),
    "moved up at home": ("x = torch.ones(2)", "x.data = x.data.cuda()", "(x.is_cuda, x.tolist())", (True, [1, 1])),
    "compiled": (
        "m = torch.compile(torch.nn.Linear(2, 1), backend='eager').cuda(); w = m.weight",
        "y = m(torch.ones(1, 2, device='cuda')).detach(); m.weight.data.fill_(3); k = list(m.state_dict())",
        "(type(m).__name__, k == list(m.state_dict()), m.weight is w, m(torch.ones(1, 2).cuda()).is_cuda, w.tolist())",
        ("OptimizedModule", True, True, True, [[3, 3]]),
    ),
    "compiled there": (
        "",
        "m = torch.compile(torch.nn.Linear(2, 1).cuda(), backend='eager'); y = m(torch.ones(1, 2).cuda()).detach()",
        "(type(m).__name__, torch.equal(m(torch.ones(1, 2).cuda()).detach(), y))",
        ("OptimizedModule", True),
    ),
    "both sides": (
        "x = torch.ones(2, device='cuda'); c = torch.ones(2)",
        "c += 1; x += c.cuda()",
        "(x.tolist(), c.tolist())",
        ([3, 3], [2, 2]),
    ),
    "of a class": (
        "class T(torch.Tensor): pass\nb = torch.ones(2, device='cuda'); x = b.as_subclass(T); x.tag = b",
        "b[0] = 5; x.data[1] += 2; y = x + 1",
        "(type(y).__name__, y.is_cuda, y.tolist(), x.is_cuda, x.tolist(), x.tag is b, b.tolist())",
        ("T", True, [6, 4], True, [5, 3], True, [5, 3]),
    ),
    "parameter of a class": (
        "class P(torch.nn.Parameter): pass\np = P(torch.ones(2, device='cuda')); (p * 2).sum().backward()",
        "p.data.mul_(3); p.grad.data += 1; (p * 2).sum().backward()",
        "(type(p).__name__, p.is_cuda, p.requires_grad, p.tolist(), p.grad.is_cuda, p.grad.tolist())",
        ("P", True, True, [3, 3], True, [5, 5]),
    ),
    "parameter": (
        "p = torch.nn.Parameter(torch.ones(2, device='cuda'))",
        "p.data.mul_(3)",
        "(p.is_cuda, p.requires_grad, p.tolist())",
        (True, True, [3, 3]),
    ),
    "gradient": (
        "x = torch.ones(2, device='cuda', requires_grad=True)",
        "(x * x).sum().backward()",
        "(x.grad.is_cuda, x.grad.tolist())",
        (True, [2, 2]),
    ),
    "gradient made at home": (
        "x = torch.ones(2, device='cuda', requires_grad=True); (x * x).sum().backward()",
        "(x * 3).sum().backward(); g = x.grad.is_cuda",
        "(g, x.grad.tolist())",
        (True, [5, 5]),
    ),
    "scaler": (
        "m = torch.nn.Linear(1, 1).cuda(); x = torch.ones(1, 1, device='cuda')\n"
        f"o = torch.optim.SGD(m.parameters(), lr=1); s = {SCALER}(init_scale=4.0)\n"
        "s.scale(m(x).sum()).backward(); s.step(o); s.update(); w = m.weight.item()",
        "o.zero_grad(); s.scale(m(x).sum()).backward(); s.step(o); s.update()",
        "(round(m.weight.item() - w, 4), s.get_scale(), s.scale(x).device.type)",
        (-1, 4, "cuda"),
    ),
    "loss left over": (
        "x = torch.ones(2, device='cuda', requires_grad=True)",
        "loss = (x * 2).sum(); loss.backward()",
        "(str(loss.device), loss.item())",
        ("cuda:0", 4),
    ),
    "tied weights": (
        "a, b = torch.nn.Linear(1, 2).cuda(), torch.nn.Linear(1, 2).cuda(); b.weight = a.weight",
        "with torch.no_grad(): b.weight.fill_(2)",
        "(a.weight is b.weight, a.weight.is_cuda, a.weight.tolist())",
        (True, True, [[2], [2]]),
    ),
    "buffer": (
        "m = torch.nn.BatchNorm1d(2).cuda(); b = m.running_mean",
        "m(torch.tensor([[0.0, 10.0], [0.0, 10.0]], device='cuda'))",
        "(b is m.running_mean, b.is_cuda, b.tolist(), m.num_batches_tracked.is_cuda)",
        (True, True, [0, 1], True),
    ),
    "one storage, two parameters": (
        "f = torch.zeros(4, device='cuda'); p, q = torch.nn.Parameter(f[:2]), torch.nn.Parameter(f[2:])",
        "f += 1",
        "(p.tolist(), q.tolist(), q.is_cuda, p.requires_grad)",
        ([1, 1], [1, 1], True, True),
    ),
    "attribute": (
        "x = torch.ones(2, device='cuda'); x.tag = 'a'",
        "t = x.tag; x.tag = 'b'",
        "(t, x.tag, x.is_cuda)",
        ("a", "b", True),
    ),
    "half": (
        "x = torch.ones(3, device='cuda', dtype=torch.bfloat16)",
        "x[0] = 2",
        "(str(x.dtype), x.tolist())",
        ("torch.bfloat16", [2, 1, 1]),
    ),
    "sparse": (
        "x = torch.eye(2, device='cuda').to_sparse()",
        "y = x.to_dense()",
        "(x.is_cuda, y.is_cuda)",
        (True, True),
    ),
    "empty": ("x = torch.empty(0, 3, device='cuda')", "y = x.is_cuda", "(x.is_cuda, y)", (True, True)),
    "resized": (
        "x = torch.ones(3, device='cuda')",
        "x.resize_(2, 4).fill_(7)",
        "(x.is_cuda, x.sum().item())",
        (True, 56),
    ),
    "deleted": ("x = torch.ones(3, device='cuda')", "del x; y = 1", "y", 1),
    "hook": (
        "s = []; x = torch.ones(1, device='cuda', requires_grad=True); x.register_hook(s.append)",
        "(2 * x).backward()",
        "(s[0].is_cuda, s[0].item())",
        (True, 2),
    ),
    "functions of torch": (
        "ready, make = torch.cuda.is_available, torch.Generator",
        "y = (ready(), make().device.type, type(make()) is torch.Generator)",
        "(y, ready is torch.cuda.is_available)",
        ((True, "cpu", True), True),
    ),
    "stream": ("s = torch.cuda.Stream()", "s.synchronize(); y = type(s) is torch.cuda.Stream; del s", "y", True),
    "refused mixing": (
        "x = torch.ones(2, device='cuda'); c = torch.ones(2)",
        "try: x + c\nexcept RuntimeError as e: y = 'two devices' in str(e) or 'same device' in str(e)",
        "y",
        True,
    ),
}

if hasattr(torch, "GradScaler"):  # older versions support fused steps only on a GPU
    CASES["fused optimizer"] = (
        "m = torch.nn.Linear(1, 1).cuda(); x = torch.ones(1, 1, device='cuda')\n"
        "o = torch.optim.AdamW(m.parameters(), fused=True); m(x).sum().backward(); o.step()",
        "o.zero_grad(); m(x).sum().backward(); o.step()",
        "(o.state[m.weight]['step'].is_cuda, o.state[m.weight]['step'].item(), m.weight.grad.is_cuda)",
        (True, 2, True),
    )


@pytest.mark.parametrize("case", CASES)
def test_in_one_cell(pair: Pair, case: str) -> None:
    before, cell, question, expected = CASES[case]
    pair.local(f"import torch\n{before}")
    home = pair.namespace
    names = [name for name in home if not name.startswith("__")]
    pair.remote(f"import torch\n{cell}", *names)
    assert eval(question, home) == expected
    pair.remote("pass", *(name for name in home if not name.startswith("__")))
    assert eval(question, home) == expected


def test_training_over_ten_cells_as_at_home(pair: Pair) -> None:
    alone: dict[str, object] = {"__name__": "__main__"}
    exec(MODEL + STEP * 12, alone)
    pair.local(MODEL + STEP)
    home = pair.namespace
    first = home["model"][0].weight
    names = ["model", "optimizer", "data", "target", "losses", "torch"]
    pair.remote(STEP, *names)
    went_up = []
    for _ in range(9):
        pair.remote(STEP, *names)
        went_up.append(pair.up[1])
    assert went_up == [0] * 9, "the model moves up once"
    pair.local(STEP)
    assert home["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert home["model"][0].weight is first
    assert first.is_cuda and first.grad.is_cuda
    assert home["optimizer"].param_groups[0]["params"][0] is first
    state = home["optimizer"].state[first]
    assert (state["exp_avg"].is_cuda, state["step"].is_cuda, state["step"].item()) == (True, False, 12)
    assert home["model"][1].running_mean.is_cuda


def test_changes_at_home_go_up_in_place(pair: Pair) -> None:
    pair.local("import torch\nx = torch.zeros(50_000, device='cuda')\nv = x[:10]")
    pair.remote("s = x.sum().item()", "x", "v")
    pair.local("v += 1")
    pair.remote("s = x.sum().item(); d = str(v.device)", "x", "v")
    assert (pair.namespace["s"], pair.namespace["d"]) == (10, "cuda:0")
    assert 0 < pair.up[1] < 50_000


def test_a_generator_of_the_gpu_goes_on(pair: Pair) -> None:
    pair.local("import torch\ng = torch.Generator('cuda').manual_seed(7)\ntorch.rand(2, device='cuda', generator=g)")
    pair.remote("a = torch.rand(2, device='cuda', generator=g); s = g.initial_seed()", "g", "torch")
    home = pair.namespace
    assert home["s"] == 7
    assert home["g"].device.type == "cuda"
    if not machine_has_gpu():
        here = torch.Generator("cuda").manual_seed(7)
        torch.rand(2, device="cuda", generator=here)
        assert torch.equal(home["a"], torch.rand(2, device="cuda", generator=here))
        assert torch.equal(home["g"].get_state(), here.get_state())


def test_a_tensor_of_the_gpu_keeps_its_label_where_virtual_cuda_is_off(pair: Pair) -> None:
    from baton_shim.virtual import SWITCH

    pair.local("import torch\nx = torch.ones(2, device='cuda')")
    SWITCH.turn(False)
    assert not pair.namespace["x"].is_cuda
    pair.remote("x += 1; y = x.is_cuda", "x")
    assert pair.namespace["y"] is True
    SWITCH.turn(True)
    assert str(pair.namespace["x"].device) == "cuda:0"
    assert pair.namespace["x"].tolist() == [2, 2]


def test_the_pair_has_a_gpu_of_its_own_only_where_there_is_one(pair: Pair) -> None:
    pair.remote("import torch\nreal = type(torch.cuda.Stream()).__mro__[1] is not object")
    assert pair.namespace["real"] is machine_has_gpu()
    assert os.path.exists("/dev/nvidia0") is machine_has_gpu()
