"""Random histories of parameters, modules and optimizers in either kernel; afterwards both kernels show the same.

Computation graphs stay in the kernel that made them, so there is no control copy: the notebook is compared with its
session after each cell. No message may fail, whatever torch allows.
"""

from __future__ import annotations

from typing import Any

from harness import Pair
from hypothesis import given
from hypothesis import strategies as st

SETUP = """
import copy
import warnings
import torch
from torch import nn

warnings.simplefilter("ignore")

def of(kind, pool, place):
    found = [one for one in pool if isinstance(one, kind)]
    return found[place % len(found)] if found else None

def tensor(place, pool): return of(torch.Tensor, pool, place)
def module(place, pool): return of(nn.Module, pool, place)
def optimizer(place, pool): return of(torch.optim.Optimizer, pool, place)
def leaf(place, pool):
    leaves = [one for one in pool if isinstance(one, torch.Tensor) and one._base is None and one.is_leaf]
    return leaves[place % len(leaves)]

def step(what, a, b, pool):
    try:
        made = globals()["do_" + what](a, b, pool)
    except Exception as error:
        return type(error).__name__
    if made is not None:
        pool.extend(made if type(made) is tuple else [made])

# ---- new ones

def do_leaf(a, b, pool): return torch.full((2, 3), float(a), requires_grad=b % 2 == 0)
def do_complex(a, b, pool): return torch.full((2, 3), complex(a, b), requires_grad=b % 2 == 0)
def do_parameter(a, b, pool): return nn.Parameter(torch.full((2, 3), float(a)))
def do_linear(a, b, pool): return nn.Linear(3, 2)
def do_network(a, b, pool): return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
def do_recurrent(a, b, pool): return nn.LSTM(3, 2)
def do_embedding(a, b, pool): return nn.Embedding(4, 3, sparse=b % 2 == 0)
def do_lazy(a, b, pool): return nn.LazyLinear(2)
def do_normed(a, b, pool): return nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
def do_spectral(a, b, pool): return nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
def do_sgd(a, b, pool): return torch.optim.SGD(module(a, pool).parameters(), lr=0.1, momentum=0.9)
def do_adam(a, b, pool): return torch.optim.Adam([leaf(a, pool)], lr=0.1)
def do_copy(a, b, pool): return copy.deepcopy(pool[a % len(pool)])
def do_again(a, b, pool): return pool[a % len(pool)]
def do_list(a, b, pool): return [pool[a % len(pool)], pool[b % len(pool)]]

# ---- views and results

def do_flat(a, b, pool): return tensor(a, pool).view(-1)
def do_row(a, b, pool): return tensor(a, pool)[b % 2]
def do_row_without_gradient(a, b, pool):
    with torch.no_grad(): return tensor(a, pool)[b % 2]
def do_rows(a, b, pool): return tensor(a, pool).unbind()
def do_repeated(a, b, pool): return tensor(a, pool).expand(2, *tensor(a, pool).shape)
def do_detached(a, b, pool): return tensor(a, pool).detach()
def do_data(a, b, pool): return tensor(a, pool).data
def do_conjugate(a, b, pool): return tensor(a, pool).conj()
def do_imaginary(a, b, pool): return tensor(a, pool).imag
def do_clone(a, b, pool): return tensor(a, pool).clone()
def do_product(a, b, pool): return tensor(a, pool) * tensor(b, pool)
def do_inferred(a, b, pool):
    with torch.inference_mode(): return tensor(a, pool) * 2
def do_sparse(a, b, pool): return tensor(a, pool).to_sparse()
def do_half(a, b, pool): return tensor(a, pool).half()
def do_output(a, b, pool): return module(a, pool)(torch.ones(4, 3))
def do_looked_up(a, b, pool): return module(a, pool)(torch.tensor([0, 1]))
def do_weights(a, b, pool): return tuple(module(a, pool).parameters())
def do_state(a, b, pool): return module(a, pool).state_dict()
def do_gradient(a, b, pool): return leaf(a, pool).grad

# ---- changes

def do_train(a, b, pool):
    optimizer(b, pool).zero_grad()
    module(a, pool)(torch.ones(4, 3)).sum().backward()
    optimizer(b, pool).step()
def do_step(a, b, pool): optimizer(a, pool).step()
def do_backward(a, b, pool): tensor(a, pool).abs().sum().backward(retain_graph=b % 2 == 0)
def do_retain(a, b, pool): tensor(a, pool).retain_grad()
def do_add(a, b, pool): tensor(a, pool).add_(1)
def do_add_without_gradient(a, b, pool):
    with torch.no_grad(): leaf(a, pool).add_(1)
def do_add_to_data(a, b, pool): tensor(a, pool).data.add_(1)
def do_set_data(a, b, pool): tensor(a, pool).data = tensor(b, pool).data
def do_set_gradient(a, b, pool): leaf(a, pool).grad = torch.ones_like(leaf(a, pool))
def do_drop_gradient(a, b, pool): leaf(a, pool).grad = None
def do_transpose(a, b, pool): tensor(a, pool).t_()
def do_double(a, b, pool): module(a, pool).double()
def do_evaluate(a, b, pool): module(a, pool).eval()
def do_prune(a, b, pool): nn.utils.prune.l1_unstructured(module(a, pool), "weight", 0.5)
def do_fix(a, b, pool): nn.utils.parametrize.remove_parametrizations(module(a, pool), "weight")
def do_replace_weight(a, b, pool): module(a, pool).weight = nn.Parameter(torch.ones(2, 3) * b)
def do_hold(a, b, pool): setattr(module(a, pool) or tensor(a, pool), "held", tensor(b, pool))
def do_hook(a, b, pool): leaf(a, pool).register_hook(double)
def do_drop(a, b, pool): pool.pop(a % len(pool))

def double(gradient): return gradient * 2

# ---- what they show

def show(one, depth=0):
    if depth > 3: return "deep"
    if isinstance(one, torch.Tensor): return show_tensor(one, depth)
    if isinstance(one, nn.Module):
        named = [*one.named_parameters(), *one.named_buffers()]
        return type(one).__name__, one.training, [(name, show(held, depth + 1)) for name, held in named]
    if isinstance(one, torch.optim.Optimizer):
        groups = [[show(held, depth + 1) for held in group["params"]] for group in one.param_groups]
        return type(one).__name__, groups, [show(dict(sorted(state.items())), depth + 1) for state in one.state.values()]
    if isinstance(one, dict): return [(key, show(held, depth + 1)) for key, held in one.items()]
    if isinstance(one, list): return [show(held, depth + 1) for held in one]
    return one if isinstance(one, (int, float, str)) else type(one).__name__

def show_tensor(one, depth):
    if isinstance(one, nn.parameter.UninitializedTensorMixin): return type(one).__name__
    with torch.inference_mode(one.is_inference()), torch.set_grad_enabled(False):
        values = one.detach()
        values = values.to_dense() if values.layout is not torch.strided else values
        values = repr(values.resolve_conj().resolve_neg().tolist())
    form = type(one).__name__, str(one.dtype), tuple(one.shape), one.requires_grad, str(one.layout)
    return *form, values, show(gradient_of(one), depth + 1), sorted(vars(one))

def gradient_of(one):
    try:
        return one.grad if one.is_leaf else None
    except RuntimeError: return None  # a view without gradients of something that has changed since
"""
STEPS = [line[7 : line.index("(")] for line in SETUP.splitlines() if line.startswith("def do_")]
TOOLS = ["pool", "step", "of", "tensor", "module", "optimizer", "leaf", "double", "show", "show_tensor", "gradient_of"]
NAMES = (*TOOLS, "copy", "warnings", "torch", "nn", *(f"do_{name}" for name in STEPS))

numbers = st.integers(0, 9)
histories = st.lists(
    st.tuples(st.sampled_from(STEPS), numbers, numbers, st.sampled_from(("home", "session", "session"))),
    min_size=5,
    max_size=40,
)


@given(histories, st.booleans())
def test_both_kernels_show_the_same(processes: Pair, history: list[tuple[str, int, int, str]], deferred: bool) -> None:
    pair = processes
    pair.start_anew()
    pair.all_deferred = deferred
    pair.local(f"{SETUP}\npool = []\nstep('leaf', 1, 0, pool)\nstep('linear', 0, 0, pool)")
    for what, a, b, side in history:
        code = f"said = step({what!r}, {a}, {b}, pool)"
        if side == "home":
            pair.local(code)
            continue
        assert pair.remote(code, *NAMES) == {"error": None}
        pair.local("")
        assert show(pair.namespace) == pair.ask("show(pool)")
    pair.all_deferred = False


def show(namespace: dict[str, Any]) -> Any:
    return eval("show(pool)", namespace)
