"""Random arrays, tensors and their holders, with views, twins, cycles and flags; random changes on either side.

Each step runs once in a control copy of the notebook, without tables, and once in the notebook or in the session. After
several round trips of one pair of tables both are equal: values, forms, flags, holders, shared memory.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Iterator
from typing import Any

from baton_shim.state.memory import address_of
from drawing import Drawing
from harness import Pair
from hypothesis import given
from hypothesis import strategies as st

SETUP = """
import warnings
from array import array as array_of_bytes
import numpy as np
import torch

class Node:
    pass

def of(kinds, pool, place):
    found = [one for one in pool if type(one) in kinds]
    return found[place % len(found)] if found else Node()

def step(what, a, b, pool):
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            made = globals()["do_" + what](a, b, pool)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError, BufferError, KeyError, ZeroDivisionError) as error:
        return type(error).__name__
    if made is not None:
        pool.append(made)

# ---- new ones

def do_c_order(a, b, pool): return np.arange(12.).reshape(3, 4) + a
def do_f_order(a, b, pool): return np.asfortranarray(np.arange(6, dtype="i4").reshape(2, 3) + a)
def do_large(a, b, pool): return np.full((90, 100), float(a))
def do_small(a, b, pool): return np.arange(b % 4).astype("f4")
def do_fields(a, b, pool): return np.full(3, a % 100, dtype=[("n", "i4"), ("v", "f8")])
def do_objects(a, b, pool): return np.array([one(a, pool), None, one(b, pool), 1], dtype=object)[:3]
def do_mixed(a, b, pool): return np.array([(a, None), (b, "x")], dtype=[("n", "i8"), ("o", "O")])
def do_tensor(a, b, pool): return torch.arange(8.).reshape(2, 4) + a
def do_buffer(a, b, pool): return bytearray(range(a, a + 24))
def do_numbers(a, b, pool): return array_of_bytes("d", [a, b, 1.0])
def do_list(a, b, pool): return [one(a, pool), one(b, pool)]
def do_tuple(a, b, pool): return (one(a, pool), one(b, pool))
def do_node(a, b, pool):
    made = Node()
    made.a, made.b = one(a, pool), made
    return made
def one(place, pool): return pool[place % len(pool)] if pool else place

# ---- views and twins

def array(place, pool): return of((np.ndarray,), pool, place)
def array_of_numbers(place, pool):
    found = array(place, pool)
    if found.dtype in ("u1", "i8"): raise TypeError("a tensor does not show that they are in a buffer or a field")
    return found
def lockable_array(place, pool):
    found = array(place, pool)
    if found.dtype == "f4": raise TypeError("numpy does not know whether it may unlock an array of a tensor")
    return found
def tensor(place, pool): return of((torch.Tensor, torch.nn.Parameter), pool, place)
def do_slice(a, b, pool): return array(a, pool)[b % 3 :: 1 + b % 2]
def do_reverse(a, b, pool): return array(a, pool)[::-1]
def do_turn(a, b, pool): return array(a, pool).T
def do_flat(a, b, pool): return array(a, pool).reshape(-1)
def do_field(a, b, pool): return array(a, pool)["nvo"[b % 3]]
def do_bytes(a, b, pool): return array(a, pool).view("u1")
def do_repeat(a, b, pool): return np.broadcast_to(array(a, pool), (2, *array(a, pool).shape))
def do_twin(a, b, pool): return torch.from_numpy(array_of_numbers(a, pool))
def do_back(a, b, pool): return tensor(a, pool).float().numpy()
def do_row(a, b, pool): return tensor(a, pool)[b % 2]
def do_turned(a, b, pool): return tensor(a, pool).T
def do_parameter(a, b, pool): return torch.nn.Parameter(tensor(a, pool).detach(), requires_grad=b % 2 == 0)
def do_part(a, b, pool): return torch.from_numpy(array_of_numbers(a, pool)[b % 2 :])
def do_head(a, b, pool): return torch.from_numpy(array_of_numbers(a, pool)[: 1 + b % 3])
def do_over(a, b, pool): return np.frombuffer(of((bytearray, array_of_bytes), pool, a), dtype="u1")
def do_again(a, b, pool): return one(a, pool)

# ---- changes

def do_write(a, b, pool):
    target = array(a, pool)
    if target.dtype.hasobject: target.reshape(-1)["o" if target.dtype.names else slice(None)][b % target.size] = one(b, pool)
    elif target.dtype.names: target["v"][b % target.size] = b
    else: target[np.unravel_index(b % target.size, target.shape)] = b % 100
def do_add(a, b, pool):
    target = array(a, pool)
    target += 1
def do_lock(a, b, pool): lockable_array(a, pool).flags.writeable = False
def do_unlock(a, b, pool):
    target = lockable_array(a, pool)
    if not isinstance(target.base, np.ndarray): target.flags.writeable = True
def do_shape(a, b, pool): array(a, pool).shape = (-1, 2)
def do_type(a, b, pool): array_of_numbers(a, pool).dtype = ("u1", "f4", "i8")[b % 3]
def do_byte(a, b, pool):
    target = of((bytearray, array_of_bytes), pool, a)
    target[b % len(target)] = b
def do_data(a, b, pool): tensor(a, pool).data = tensor(b, pool).data
def do_new_data(a, b, pool): tensor(a, pool).data = torch.full((2, 3), float(b))
def do_multiply(a, b, pool): tensor(a, pool).data.mul_(3)
def do_multiply_and_leave(a, b, pool):
    target = tensor(a, pool)
    target.mul_(3)
    target.data = torch.zeros(b % 4)
def do_shorten(a, b, pool):
    target = tensor(a, pool)
    if target.numel() > b: target.resize_(b)
def do_fill(a, b, pool): tensor(a, pool)[..., 0].fill_(b % 100)
def do_gradient(a, b, pool):
    target = tensor(a, pool)
    if target.is_leaf: target.grad = torch.full_like(target, float(b % 100))
def do_note(a, b, pool): tensor(a, pool).note = one(b, pool)
def do_hold(a, b, pool):
    holder = of((list, Node), pool, a)
    if type(holder) is list: holder.append(one(b, pool))
    else: setattr(holder, "abc"[b % 3], one(b, pool))
def do_let_go(a, b, pool):
    holder = of((list, Node), pool, a)
    if type(holder) is list: holder.pop()
    else: delattr(holder, "abc"[b % 3])
def do_drop(a, b, pool): pool.pop(a % len(pool))
"""
STEPS = [line[7 : line.index("(")] for line in SETUP.splitlines() if line.startswith("def do_")]
NAMES = (
    "pool",
    "step",
    "of",
    "one",
    "array",
    "array_of_numbers",
    "lockable_array",
    "tensor",
    "array_of_bytes",
    "Node",
    "np",
    "torch",
    "warnings",
    *(f"do_{n}" for n in STEPS),
)

numbers = st.integers(0, 40)
histories = st.lists(
    st.tuples(st.sampled_from(STEPS), numbers, numbers, st.sampled_from(("home", "unsent", "session"))),
    min_size=5,
    max_size=40,
)


@given(histories)
def test_arrays_tensors_and_their_holders(processes: Pair, history: list[tuple[str, int, int, str]]) -> None:
    pair = processes
    pair.start_anew()
    control: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP, control)
    control["pool"] = []
    pair.local(SETUP + "pool = []")
    for side, steps in trips(history):
        code = f"said = [step(*one_step, pool) for one_step in {steps}]"
        exec(code, control)
        if side != "session":
            pair.local(code)
            if side == "unsent":
                pair.unsent(*NAMES)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert pair.remote(code, *NAMES) == {"error": None}
        assert pair.namespace["said"] == control["said"]
        assert picture(pair.namespace["pool"]) == picture(control["pool"])


cells = st.lists(
    st.tuples(
        st.sampled_from(STEPS), numbers, numbers, st.sampled_from(("home", "unsent", "session", "session", "loss"))
    ),
    min_size=5,
    max_size=30,
)


@given(cells)
def test_bytes_that_follow(processes: Pair, history: list[tuple[str, int, int, str]]) -> None:
    """Each step is a cell that defers the bytes of all memory; before an ordinary cell runs, everything has arrived.

    If the session is lost first, everything is as before the first cell whose bytes are missing.
    """
    pair = processes
    pair.start_anew()
    pair.all_deferred = True
    control: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP, control)
    control["pool"] = []
    pair.local(SETUP + "pool = []")
    done: list[tuple[str, int, int]] = []
    at_home = 0
    for *one_step, where in history:
        if where == "loss":
            pair.lose_session()
            if pair.table.deferred.numbers or at_home < len(done):
                del done[at_home:]
                control["pool"] = []
                exec(f"for one_step in {done}: step(*one_step, pool)", control)
                assert picture(pair.namespace["pool"]) == picture(control["pool"])
            continue
        if where == "unsent":
            pair.unsent(*NAMES)
            continue
        code = f"step(*{one_step}, pool)"
        exec(code, control)
        done.append(tuple(one_step))
        if where == "home":
            pair.local(code)
            assert picture(pair.namespace["pool"]) == picture(control["pool"])
        else:
            assert pair.remote(code, *NAMES) == {"error": None}
        at_home = at_home if pair.table.deferred.numbers else len(done)
    pair.local("")
    assert picture(pair.namespace["pool"]) == picture(control["pool"])
    pair.all_deferred = False


def trips(history: list[tuple[str, int, int, str]]) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """Consecutive steps on the same side are one cell."""
    steps: list[tuple[str, int, int]] = []
    for number, (what, a, b, side) in enumerate(history):
        steps.append((what, a, b))
        if number + 1 == len(history) or history[number + 1][3] != side:
            yield side, steps
            steps = []


def picture(pool: list[Any]) -> list[Any]:
    """Each object once, its number in place of each further reference, and memory by its first owner."""
    import numpy as np
    import torch

    memories: list[tuple[int, int, int]] = []

    def memory(low: int, high: int) -> Any:
        for start, end, number in memories:
            if low < end and start < high:
                return number, low - start
        memories.append((low, high, len(memories)))
        return "new"

    def draw(obj: Any) -> Any:
        name = type(obj).__name__
        if isinstance(obj, np.ndarray):
            strides = [stride for length, stride in zip(obj.shape, obj.strides, strict=True) if length > 1]
            form = obj.dtype, obj.shape, strides if obj.size else None, obj.flags.writeable
            base = refer(obj.base) if isinstance(obj.base, np.ndarray) else None
            place = memory(*np.lib.array_utils.byte_bounds(obj)) if obj.size else None
            fields = [obj[field] for field in obj.dtype.names] if obj.dtype.names and obj.dtype.hasobject else [obj]
            content = [
                [refer(part) for part in field.ravel()] if field.dtype.hasobject else field.tolist() for field in fields
            ]
            return name, form, base, place, content
        if isinstance(obj, torch.Tensor):
            strides = [stride for length, stride in zip(obj.shape, obj.stride(), strict=True) if length > 1]
            form = obj.dtype, obj.shape, strides if obj.numel() else None, obj.requires_grad
            last = sum((length - 1) * stride for length, stride in zip(obj.size(), obj.stride(), strict=True))
            end = obj.data_ptr() + (last + 1) * obj.element_size()
            place = memory(obj.data_ptr(), end) if obj.numel() else None
            held = [refer(obj.grad), *((key, refer(value)) for key, value in vars(obj).items())]
            return name, form, place, obj.tolist(), held
        if isinstance(obj, bytearray | array):
            low, size = address_of(obj), memoryview(obj).nbytes
            return name, memory(low, low + size) if size else None, bytes(obj)
        if isinstance(obj, np.generic):
            return name, obj.item()
        if name == "Node":
            return name, [(key, refer(value)) for key, value in vars(obj).items()]
        return name, [refer(part) for part in obj]

    drawing = Drawing(draw)
    refer, numbers, drawn = drawing.refer, drawing.numbers, drawing.drawn
    for one in pool:
        refer(one)
    return [numbers[id(one)] if id(one) in numbers else repr(one) for one in pool] + drawn
