"""A cell's calls go through the mode only while something is on the virtual GPU, whatever created the first label."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from baton_shim.virtual import SWITCH
from baton_shim.virtual.label import LABELS
from torch import nn


def modes() -> int:
    depth: int = torch._C._len_torch_function_stack()
    return depth


@pytest.fixture(scope="module", autouse=True)
def _older_objects_are_left_alone() -> Iterator[None]:
    """Each test collects garbage three times, among the objects of all libraries that this process has loaded."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_on_the_gpu(virtual: None) -> Iterator[None]:
    gc.collect()
    assert (LABELS.present, modes()) == (False, 0)
    yield
    torch.set_default_device(None)
    gc.collect()
    assert (LABELS.present, modes()) == (False, 0)


@pytest.fixture(scope="module")
def saved() -> bytes:
    """A file with a tensor on the GPU."""
    SWITCH.begin(session=False)
    SWITCH.turn(True)
    file = io.BytesIO()
    torch.save(torch.ones(2, device="cuda"), file)
    return file.getvalue()


def in_a_thread(make: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()


def with_default(make: Any) -> Any:
    torch.set_default_device("cuda")
    made = make()
    torch.set_default_device(None)
    return made


def inside_of_context(make: Any) -> Any:
    with torch.device("cuda"):
        return make()


class Seen(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """A mode of the student's."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[object] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.devices.append((kwargs or {}).get("device"))
        return function(*args, **(kwargs or {}))


# Ways to create the first tensor on the GPU; `saved` is a file with one.
FIRST: dict[str, Any] = {
    "zeros": lambda saved: torch.zeros(2, device="cuda"),
    "a number": lambda saved: torch.zeros(2, device=0),
    "a device": lambda saved: torch.tensor([1.0], device=torch.device("cuda")),
    "as_tensor": lambda saved: torch.as_tensor([1.0], device="cuda:0"),
    "asarray": lambda saved: torch.asarray([1.0], device="cuda"),
    "like": lambda saved: torch.ones_like(torch.ones(2), device="cuda"),
    "new": lambda saved: torch.ones(2).new_zeros(3, device="cuda"),
    "random": lambda saved: torch.randn(3, device="cuda"),
    "a generator": lambda saved: torch.rand(2, device="cuda", generator=torch.Generator("cuda")),
    "sparse": lambda saved: torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2), device="cuda"),
    "a window": lambda saved: torch.signal.windows.hann(4, device="cuda"),
    "frequencies": lambda saved: torch.fft.fftfreq(4, device="cuda"),
    "to": lambda saved: torch.ones(2).to("cuda"),
    "to, by name": lambda saved: torch.ones(2).to(dtype=torch.float64, device="cuda"),
    "to, behind a type": lambda saved: torch.ones(2).to(device=0),
    "cuda": lambda saved: torch.ones(2).cuda(),
    "type": lambda saved: torch.ones(2).type("torch.cuda.FloatTensor"),
    "a type": lambda saved: torch.ones(2).type(torch.cuda.FloatTensor),
    "a typed tensor": lambda saved: torch.cuda.FloatTensor([1.0]),
    "a module": lambda saved: nn.Linear(2, 2).to("cuda").weight,
    "a module, by number": lambda saved: nn.Linear(2, 2).to(0).weight,
    "a module's cuda": lambda saved: nn.Linear(2, 2).cuda().weight,
    "a module that is made there": lambda saved: nn.Linear(2, 2, device="cuda").weight,
    "a lazy module": lambda saved: nn.LazyLinear(2, device="cuda").weight,
    "pinned": lambda saved: torch.ones(2).pin_memory().to("cuda", non_blocking=True),
    "a default": lambda saved: with_default(lambda: torch.ones(2)),
    "a context": lambda saved: inside_of_context(lambda: torch.ones(2)),
    "a module in a context": lambda saved: inside_of_context(lambda: nn.Linear(2, 2)).weight,
    "a file": lambda saved: torch.load(io.BytesIO(saved)),
    "a file, by a function": lambda saved: torch.load(
        io.BytesIO(saved), map_location=lambda storage, location: storage.cuda(0)
    ),
    "a script": lambda saved: torch.jit.script(nn.Linear(2, 2)).cuda().weight,
    "a thread": lambda saved: in_a_thread(lambda: torch.ones(2, device="cuda")),
    "a nested tensor": lambda saved: torch.nested.nested_tensor([torch.ones(2)], device="cuda").to_padded_tensor(0.0),
}


@pytest.mark.parametrize("case", FIRST)
def test_the_first_tensor_on_the_gpu_is_seen_however_it_is_made(case: str, saved: bytes) -> None:
    first = FIRST[case](saved)
    assert modes() == 1
    assert first.device.type == "cuda"
    if not torch.nn.parameter.is_lazy(first):
        assert (first.to_dense() + 1).is_cuda
        with pytest.raises(RuntimeError, match="same device"):
            first.to_dense() + torch.ones(2, 2)
    del first
    gc.collect()  # modules are in reference cycles
    assert modes() == 0, "with the last tensor on the GPU it goes"


NEVER: dict[str, Any] = {
    "the CPU": lambda: torch.zeros(2, device="cpu"),
    "a device of the CPU": lambda: torch.ones(2).to(torch.device("cpu"), torch.float64),
    "a type": lambda: torch.ones(2).to(torch.float16).type(torch.float64),
    "another tensor": lambda: torch.ones(2).to(torch.ones(3, dtype=torch.int8)),
    "a module": lambda: nn.Linear(2, 2).to("cpu").double(),
    "training": lambda: torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1).step(),
    "backward": lambda: torch.ones(1, requires_grad=True).sum().backward(),
    "questions": lambda: (torch.cuda.is_available(), torch.cuda.get_device_name(), torch.cuda.empty_cache()),
    "a seed": lambda: torch.manual_seed(3),
    "a name": lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    "a script": lambda: torch.jit.script(scripted)(3),
}


def scripted(n: int) -> torch.Tensor:
    return torch.zeros(n) + torch.arange(n)


@pytest.mark.parametrize("case", NEVER)
def test_nothing_is_on_the_path_where_nothing_is_on_the_gpu(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LABELS, "_notify", lambda: pytest.fail("something got the label"))
    NEVER[case]()
    assert modes() == 0


def test_a_call_that_fails_leaves_nothing_behind() -> None:
    for call in (lambda: torch.zeros(1, device="cuda:3"), lambda: torch.zeros("three", device="cuda")):
        with pytest.raises((RuntimeError, TypeError)):
            call()
        assert modes() == 0


def test_a_mode_of_the_student_stays_above() -> None:
    with Seen() as seen:
        first = torch.ones(2, device="cuda")
        assert first.to("cuda").is_cuda
        assert modes() == 2
        first = None
        assert modes() == 1
    assert "cuda" in seen.devices


def test_copies_and_pickles_keep_it_there() -> None:
    first = torch.ones(2, device="cuda")
    data = pickle.dumps(first)
    twin = copy.deepcopy(first)
    del first
    assert twin.is_cuda
    assert modes() == 1
    del twin
    assert modes() == 0
    assert pickle.loads(data).is_cuda


def test_a_file_of_a_sparse_tensor_says_where_its_parts_are() -> None:
    file = io.BytesIO()
    torch.save(torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2), device="cuda"), file)
    assert modes() == 0
    assert b"baton" not in file.getvalue()
    file.seek(0)
    assert torch.load(file).is_cuda


def test_a_thread_that_runs_already_computes_on_what_comes_later() -> None:
    there, found = threading.Event(), []
    things: list[Any] = []

    def work() -> None:
        there.wait(100)
        found.append((things[0] + 1).is_cuda)

    thread = threading.Thread(target=work)
    thread.start()
    things.append(torch.ones(2, device="cuda"))
    there.set()
    thread.join()
    assert found == [True]


def test_each_function_that_takes_a_device_is_wrapped() -> None:
    from baton_shim.virtual.pytorch.first_label import present_names

    takes = {schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas() if takes_device(schema)}
    assert "zeros" in takes
    no_tensor = {"Generator", "_assert_tensor_metadata", "_make_dep_token"}
    inner = {"_cudnn_init_dropout_state", "_nested_tensor_from_tensor_list", "_pin_memory", "_resize_output_"}
    for owner in (torch, torch.Tensor):
        missing = {name for name in present_names(owner, " ".join(takes)) if not is_wrapped(getattr(owner, name))}
        assert missing <= no_tensor | inner, owner


def takes_device(schema: Any) -> bool:
    return any(argument.name == "device" for argument in schema.arguments)


def is_wrapped(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.endswith("first_label.py")
