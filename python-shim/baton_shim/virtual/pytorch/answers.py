"""The answers of `torch.cuda`, `torch.accelerator` and `torch.backends`.

dynamo, which the first optimizer imports, rejects one function under two names, so each answer is a new function.
"""

from __future__ import annotations

import gc
import os
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Union

import torch

from baton_shim.base.storages import storage_of
from baton_shim.virtual.gpu import KNOWN
from baton_shim.virtual.patches import Patches
from baton_shim.virtual.pytorch import generator
from baton_shim.virtual.pytorch.labels import Tensor, names_cuda, on_cuda, put
from baton_shim.virtual.pytorch.streams import Event, Stream

_NOTHING = """
    empty_cache synchronize ipc_collect init _lazy_init set_stream reset_peak_memory_stats reset_max_memory_allocated
    reset_max_memory_cached reset_accumulated_memory_stats set_per_process_memory_fraction _check_capability
"""
_MEMORY = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached"
_TYPES = "Float Double Half BFloat16 Long Int Short Char Byte Bool"
_COUNTS = """
    num_alloc_retries num_ooms num_oom_rejections num_sync_all_streams num_device_alloc num_device_free max_split_size
"""
_COUNTED = """
    allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes
    requested_bytes
"""
_COUNTED_IN_ONE = "oversize_allocations oversize_segments"
_WHEN = "current peak allocated freed"
_USED = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_RECORDS = "_record_memory_history _dump_snapshot _snapshot"
_GRAPHS = "CUDAGraph graph make_graphed_callables graph_pool_handle"
_NEEDS_GPU = f"""
    {_GRAPHS} MemPool ExternalStream current_blas_handle caching_allocator_alloc utilization temperature power_draw
    clock_rate memory_usage device_memory_used
"""
_BETWEEN_GPUS = "broadcast broadcast_coalesced reduce_add reduce_add_coalesced scatter gather"
_OF_NCCL = "all_reduce reduce broadcast all_gather reduce_scatter"


def install(patches: Patches) -> None:
    answers = {**questions(), **memory(), **randomness(), **order()}
    for kind in _TYPES.split():
        if hasattr(torch.cuda, f"{kind}Tensor"):
            answers[f"{kind}Tensor"] = TypedTensor(kind)
    set_present(patches, torch.cuda, {**answers, "default_generators": (generator.of_the_gpu(),)})
    for module, title, names in (
        (torch.cuda, "torch.cuda", _NEEDS_GPU),
        (getattr(torch.cuda, "graphs", None), "torch.cuda", _GRAPHS),
        (torch.nn.parallel.comm, "torch.cuda.comm", _BETWEEN_GPUS),
        (torch.cuda.nccl, "torch.cuda.nccl", _OF_NCCL),
    ):
        set_present(patches, module, refused(module, title, names))
    set_present(patches, torch.cuda, {"_initialized": True})  # otherwise a checkpoint does not keep the random state
    set_present(patches, torch.cuda.random, randomness())
    for owner in (torch, torch.random):
        patches.set(owner, "set_rng_state", checking_state(torch.random.set_rng_state))
    set_present(patches, torch.cuda.memory, memory())
    install_accelerator(patches)
    install_backends(patches)
    patches.set(torch, "Generator", generator.Generator)
    patches.set(Tensor, "record_stream", always(None))
    if hasattr(torch.cuda, "nvtx"):
        marks = "range_push range_pop mark range_start range_end"
        set_present(patches, torch.cuda.nvtx, {name: always(0) for name in marks.split()})
    set_present(patches, torch.cuda.profiler, {name: always(None) for name in ("start", "stop")})


def set_present(patches: Patches, module: Any, answers: dict[str, Any]) -> None:
    for name, answer in answers.items():
        if hasattr(module, name):
            patches.set(module, name, answer)


def always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


def questions() -> dict[str, Any]:
    def get_device_properties(device: Any = None) -> Any:
        check_known(device)
        gpu = KNOWN.gpu
        return _CudaDeviceProperties(
            name=gpu.name,
            major=gpu.capability[0],
            minor=gpu.capability[1],
            total_memory=gpu.memory_bytes,
            multi_processor_count=gpu.multiprocessors,
            **gpu.details,
        )

    def get_device_name(device: Any = None) -> str:
        check_known(device)
        return KNOWN.gpu.name

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        check_known(device)
        return KNOWN.gpu.capability

    def set_device(device: Any) -> None:
        check(device)

    def exchange(device: int) -> int:
        check(device)
        return 0

    def maybe_exchange(device: int) -> int:
        return exchange(device)

    def is_bf16_supported(*args: Any, **kwargs: Any) -> bool:
        return KNOWN.gpu.capability >= (8, 0)

    return {
        **{name: always(None) for name in _NOTHING.split()},
        **{name: always(True) for name in "is_available is_initialized _is_compiled".split()},
        "current_device": always(0),
        "_exchange_device": exchange,
        "_maybe_exchange_device": maybe_exchange,
        "device_count": always(1),
        "can_device_access_peer": always(False),
        "is_tf32_supported": lambda: KNOWN.gpu.capability >= (8, 0),
        "is_bf16_supported": is_bf16_supported,
        "get_device_name": get_device_name,
        "get_device_capability": get_device_capability,
        "get_device_properties": get_device_properties,
        "get_arch_list": lambda: ["sm_{}{}".format(*KNOWN.gpu.capability)],
        "set_device": set_device,
    }


class _CudaDeviceProperties(types.SimpleNamespace):
    """Prints like the real properties."""

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def check(device: Any) -> None:
    """Raises for a GPU that does not exist."""
    if device is None or (isinstance(device, int) and device < 0):
        return
    if not names_cuda(device):
        raise ValueError(f"Expected a cuda device, but got: {device}")


def check_known(device: Any) -> None:
    index = device if isinstance(device, int) else torch.device(device).index if device is not None else None
    if index not in (None, 0, -1):
        raise AssertionError("Invalid device id")
    check(device)


def memory() -> dict[str, Any]:
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        check(device)
        return KNOWN.gpu.memory_bytes - labelled_bytes(), KNOWN.gpu.memory_bytes

    def summary(device: Any = None, abbreviated: bool = False) -> str:
        return f"Virtual CUDA: {labelled_bytes()} bytes of tensors; memory of a GPU is used in %%gpu cells only"

    counters = {name: lambda device=None: labelled_bytes() for name in _MEMORY.split()}
    more = {"mem_get_info": mem_get_info, "memory_summary": summary, "memory_stats": lambda device=None: stats()}
    more |= {
        "get_per_process_memory_fraction": always(1.0),
        "list_gpu_processes": always("GPU:0\nno processes are running"),
    }
    more |= refused(torch.cuda.memory, "torch.cuda.memory", _RECORDS)
    return {**counters, **more, "memory_snapshot": lambda *args, **kwargs: []}


def stats() -> dict[str, int]:
    """All statistics of a real allocator; only the memory in use is counted, in one pool."""
    used = labelled_bytes()
    counts = dict.fromkeys(_COUNTS.split(), 0)
    counts |= {f"{kind}.{when}": 0 for kind in _COUNTED_IN_ONE.split() for when in _WHEN.split()}
    for kind in _COUNTED.split():
        for pool in ("all", "large_pool", "small_pool"):
            held = used if pool == "all" and kind in _USED else 0
            counts |= {f"{kind}.{pool}.{when}": 0 if when == "freed" else held for when in _WHEN.split()}
    return OrderedDict(sorted(counts.items()))


def labelled_bytes() -> int:
    """Checks only each object's type, because reading `__class__` of some objects causes a warning."""
    sizes = {}
    with torch._C.DisableTorchFunction():
        for thing in gc.get_objects():
            if issubclass(type(thing), Tensor) and on_cuda(thing) and thing.layout == torch.strided:
                storage = storage_of(thing)
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def randomness() -> dict[str, Any]:
    def manual_seed(seed: int) -> None:
        generator.DEFAULT.restart(int(seed))

    def manual_seed_all(seed: int) -> None:
        generator.DEFAULT.restart(int(seed))

    def seed() -> None:
        generator.DEFAULT.restart(int.from_bytes(os.urandom(8), "little"))

    def seed_all() -> None:
        seed()

    def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
        check(device)
        generator.DEFAULT.set_state(new_state)

    def set_rng_state_all(new_states: Any) -> None:
        for state in new_states:
            generator.DEFAULT.set_state(state)

    def get_rng_state(device: Any = "cuda") -> Any:
        check(device)
        return generator.DEFAULT.state()

    return {
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed_all,
        "seed": seed,
        "seed_all": seed_all,
        "initial_seed": lambda: generator.DEFAULT.seed,
        "get_rng_state": get_rng_state,
        "get_rng_state_all": lambda: [generator.DEFAULT.state()],
        "set_rng_state": set_rng_state,
        "set_rng_state_all": set_rng_state_all,
    }


def checking_state(set_here: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_rng_state(new_state: Any) -> None:
        generator.check_state(new_state)
        set_here(new_state)

    return set_rng_state


def order() -> dict[str, Any]:
    """Streams and events: all work is done when the call returns."""
    return {
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": stream,
        "Stream": Stream,
        "Event": Event,
        "is_current_stream_capturing": always(False),
    }


@contextmanager
def stream(stream: Any) -> Iterator[Any]:
    yield stream


def refused(module: Any, title: str, names: str) -> dict[str, Any]:
    present = [name for name in names.split() if hasattr(module, name)]
    return {name: needs_gpu(f"{title}.{name}", getattr(module, name)) for name in present}


def needs_gpu(name: str, here: Any) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{name} needs a real GPU\nhint: use it in a %%gpu cell")

    return refused_class(here, refuse) if isinstance(here, type) else refuse


_CLASSES: dict[type, type] = {}


def refused_class(here: type, refuse: Callable[..., Any]) -> type:
    """A class that cannot be used: libraries name it in annotations and in `isinstance` checks."""
    if here not in _CLASSES:
        body = {"__new__": refuse, "__module__": here.__module__, "__qualname__": here.__qualname__}
        _CLASSES[here] = type(here.__name__, (here,), body)
    return _CLASSES[here]


class TypedTensor:
    """`torch.cuda.FloatTensor` and the like, which annotations use as types."""

    def __init__(self, kind: str) -> None:
        self.__name__, self.__module__ = f"{kind}Tensor", "torch.cuda"
        self._plain = getattr(torch, f"{kind}Tensor")

    def __reduce__(self) -> str:
        return self.__name__

    def __call__(self, *args: Any) -> Any:
        return put(self._plain(*args), True)

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007

    def __instancecheck__(self, value: Any) -> bool:
        return on_cuda(value) and isinstance(value, self._plain)


def install_accelerator(patches: Patches) -> None:
    """Since torch 2.15, Adam requests a stream from here."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    nothing = "set_device_index set_device_idx synchronize set_stream empty_cache reset_peak_memory_stats"
    answers: dict[str, Any] = {name: always(None) for name in nothing.split()}
    answers |= {name: always(0) for name in ("current_device_index", "current_device_idx")}
    answers |= {name: lambda *device: labelled_bytes() for name in _MEMORY.split()}
    answers |= {
        "is_available": always(True),
        "device_count": always(1),
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_stream": lambda *device: Stream(),
        "memory_stats": lambda *device: stats(),
        "get_memory_info": lambda *device: (KNOWN.gpu.memory_bytes - labelled_bytes(), KNOWN.gpu.memory_bytes),
    }
    set_present(patches, accelerator, answers)


def install_backends(patches: Patches) -> None:
    cudnn = getattr(torch.backends.cudnn, "m", torch.backends.cudnn)
    patches.set(cudnn, "is_available", always(True))
    patches.set(cudnn, "version", always(91000))
    patches.set(cudnn, "is_acceptable", always(False))  # otherwise recurrent layers call cuDNN
    patches.set(torch.backends.cuda, "is_built", always(True))
