"""torch tensors: views of the segments of their storages. torch is never imported here, only used if it is loaded.

Ordinary pickling drops `.grad` and hooks, duplicates shared storages and detaches silently; none of that happens here.
A tensor that belongs to a computation graph is sent with its values; its graph stays (`graphs.py`).

If `cuda` is virtual, a tensor on the GPU is a CPU tensor with a label. In a session with a GPU it is a real one, which
stays on the GPU between cells: its segment is then a copy of its storage.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from baton_shim.base.storages import range_of, storage_of
from baton_shim.state import memory
from baton_shim.state.kinds.base import Here, Kind, State, imported
from baton_shim.state.kinds.bases import Origin, origin_of, shares_memory, view_like
from baton_shim.state.kinds.graphs import (
    Graph,
    drop_graph,
    graph_of,
    has_invalid_graph,
    is_computed,
    node_of,
    set_graph,
)
from baton_shim.state.kinds.instances import set_slots, slots_of
from baton_shim.state.segments import Segment
from baton_shim.virtual import SWITCH
from baton_shim.virtual.label import LABEL, label

Flags = tuple[Any, bool, bool, bool, bool]
"""A tensor's type, whether it is negated, conjugated, on a GPU, and made in inference mode."""


_CAPSULES = ("_sym_sizes_capsule", "_sym_strides_capsule")
"""Prefixes of attributes in which torch keeps pointers, to find the sizes of some tensors faster."""
_TWIN = "_baton_twin"
"""The attribute of a gradient that autograd had to create: the tensor that it represents."""


def torch() -> Any:
    return sys.modules.get("torch")


def is_tensor_type(kind: type) -> bool:
    return issubclass(kind, imported("torch", "Tensor"))


def bare(method: Callable[..., Any]) -> Callable[..., Any]:
    """Switches torch's function modes off inside: a labelled tensor is then an ordinary CPU tensor."""

    @functools.wraps(method)
    def call(*arguments: Any) -> Any:
        with torch()._C.DisableTorchFunction():
            return method(*arguments)

    return call


def mode_of(inference: bool) -> Any:
    """The mode in which a tensor is created and changed."""
    return torch().inference_mode() if inference else contextlib.nullcontext()


@bare
def on_gpu(obj: Any) -> bool:
    return LABEL in obj.__dict__ or obj.device.type == "cuda"


def with_graphs(objects: Iterable[Any]) -> list[Any]:
    """The tensors among them that belong to a computation graph in either kernel."""
    if torch() is None:
        return []
    with torch()._C.DisableTorchFunction():
        return [obj for obj in objects if is_tensor_type(type(obj)) and node_of(obj) is not None]


@functools.cache
def plain_types() -> tuple[type, ...]:
    """The plain tensor types. Those of lazy modules have no size yet, and become one of the first two in place."""
    module = torch()
    lazy = module.nn.parameter
    return module.Tensor, lazy.Parameter, lazy.UninitializedParameter, lazy.UninitializedBuffer


def is_plain_type(kind: Any) -> bool:
    """Whether its instances have plain memory, attributes and slots, and no pickling or operations of their own."""
    if kind in plain_types():
        return True
    tensor, pickling = torch().Tensor, ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
    return kind.__torch_dispatch__ is tensor.__torch_dispatch__ and all(
        getattr(kind, name, None) in [getattr(plain, name, None) for plain in plain_types()[:2]] for name in pickling
    )


class TensorKind(Kind):
    """Tensors with plain memory, such as `Parameter`, also before they have a size, and those of derived classes.

    Other layouts and devices, and classes with their own pickling or `__torch_dispatch__`, use torch's own pickling.
    """

    name = "tensor"
    blind = True
    changes = True
    has_memory = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.set_state, self.new_of_values, self.complete, self.new_quantized)

    def plain(self, obj: Any) -> bool:
        if not is_plain_type(type(obj)):
            return False
        return obj.layout is torch().strided and obj.device.type in ("cpu", "cuda") and not obj.is_quantized

    @bare
    def reduce(self, obj: Any) -> Any:
        new, set_state, new_of_values, complete, new_quantized = self._anchors
        if not self.plain(obj):
            drop_capsules(obj)
            if obj.is_quantized and LABEL not in obj.__dict__:
                function, arguments, *state = obj.__reduce_ex__(5)
                return new_quantized, (function, *arguments), *state
            graph = self._graph(obj)
            # torch's own pickling would drop a graph, and that a sparse tensor requires gradients.
            if not isinstance(graph, Graph) and not (graph and type(obj) is torch().Tensor):
                return None
            values = obj.detach()
            state = self._sent(obj, self._state(obj), values)
            return new_of_values, (values, type(obj)), state, None, None, complete
        storage = storage_of(obj)
        check_extent(obj, storage)
        offset, number = obj.storage_offset(), -1
        segments = self.here.segments
        if storage.nbytes() and storage.device.type == "cuda":
            number = (segments.find_device(storage) or segments.add_device(storage)).number
            self.here.used.append((obj, number))
        elif storage.nbytes():
            low, size = storage.data_ptr(), storage.nbytes()
            segment = segments.find(low, size)
            if segment is None or (low - segment.address) % obj.element_size():
                segment = segments.add(low, size)
            if segment.storage is None and (segment.address, segment.bytes) == (low, size):
                segment.storage = storage
            offset += (low - segment.address) // obj.element_size()
            number = segment.number
            self.here.used.append((obj, number))
        form = (obj.dtype, offset, tuple(obj.size()), obj.stride(), obj.requires_grad)
        flags = (name_of(type(obj)), obj.is_neg(), obj.is_conj(), on_gpu(obj), obj.is_inference())
        base = self._base(obj) if node_of(obj) is None else None
        made_of = (number, form, flags) if base is None else (number, form, flags, origin_of(obj, base))
        return new, made_of, (self._graph(obj), *self._state(obj), on_gpu(obj)), None, None, set_state

    def _base(self, obj: Any) -> Any:
        """The tensor of which this one is a view; None without one, or if it cannot be sent like this one."""
        base = obj._base
        if base is None or not self.plain(base) or not shares_memory(obj, base):
            return None
        return base if extent_is_valid(base, storage_of(base)) else None

    def new(self, number: int, form: tuple[Any, ...], flags: Flags, origin: Origin | None = None) -> Any:
        import torch

        with torch._C.DisableTorchFunction(), mode_of(flags[-1]):
            return self._new(number, form, flags, origin)

    def new_quantized(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """torch's own function uses a deprecated class, and would warn the student of it, once."""
        import torch

        warn = torch.storage._warn_typed_storage_removal
        has_warned = vars(warn).get("has_warned", False)
        vars(warn)["has_warned"] = True
        try:
            return function(*arguments)
        finally:
            vars(warn)["has_warned"] = has_warned

    def _new(self, number: int, form: tuple[Any, ...], flags: Flags, origin: Origin | None) -> Any:
        import torch

        (dtype, offset, size, stride, requires_grad), (kind, negative, conjugate, gpu, _) = form, flags
        device = "cuda" if gpu and SWITCH.real else "cpu"
        storage = torch.UntypedStorage(0, device=device) if number < 0 else self._storage(number, device == "cuda")
        tensor = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, size, stride)
        tensor = tensor.conj().data if conjugate else tensor  # not a view of another tensor, which would have a graph
        tensor = tensor._neg_view().data if negative else tensor
        if origin is not None and (view := view_like(tensor, type_of(kind), origin)) is not None:
            tensor = view
        elif kind != 0:
            tensor = torch.Tensor._make_subclass(type_of(kind), tensor, requires_grad)
        if number >= 0:
            self.here.used.append((tensor, number))
        return tensor

    def _storage(self, number: int, real: bool) -> Any:
        import torch

        segments = self.here.segments
        segment = segments.by_number[number]
        if segment.source is not None:  # small: a storage that owns its memory can be resized
            copy = torch.frombuffer(bytearray(segment.source), dtype=torch.uint8).clone()
            segment.storage = storage_of(copy)
            segments.settle_at(segment, segment.storage.data_ptr())
        if segment.storage is None:
            segment.storage = storage_of(torch.frombuffer(segments.buffer(segment), dtype=torch.uint8))
        if real and segment.device is None:
            segments.mirror(segment, segment.storage.cuda())
        return segment.device if real else segment.storage

    @bare
    def segment_number(self, obj: Any) -> int | None:
        """The segment of its memory, which `resize_` and `.data = …` change."""
        if not self.plain(obj):
            return None
        storage, segments = storage_of(obj), self.here.segments
        on_device = storage.device.type == "cuda"
        segment = segments.find_device(storage) if on_device else segments.find(storage.data_ptr(), storage.nbytes())
        return None if segment is None else segment.number

    @bare
    def memory(self, obj: Any) -> tuple[int, int] | None:
        if not self.plain(obj) or obj.device.type != "cpu":
            return None
        low, high = range_of(storage_of(obj))
        return (low, high) if low < high else None

    @bare
    def is_view_of(self, obj: Any, segment: Segment) -> bool:
        if not self.plain(obj):
            return False
        low, high = range_of(storage_of(obj))
        return bool(segment.address <= low and high <= segment.address + segment.bytes)

    @bare
    def new_of_values(self, values: Any, kind: type) -> Any:
        """A tensor that is not plain. It is another object than `values`, which has its own number."""
        plain = torch().Tensor
        return plain.detach(values) if type(values) is kind else plain._make_subclass(kind, values)

    def complete(self, tensor: Any, state: tuple[Any, ...]) -> None:
        self.set_state(tensor, with_parts(state, tensor))

    def _graph(self, obj: Any) -> Graph | bool:
        """The graph of a computed tensor; for other tensors, whether it requires gradients other than for its base."""
        if (graph := graph_of(obj, self.here.home)) is not None or not obj.requires_grad:
            return graph or False
        base = self._base(obj) if self.plain(obj) else None
        return base is None or not base.requires_grad

    def _state(self, obj: Any) -> tuple[Any, ...]:
        """Gradient, attributes, hooks. A computed tensor has a gradient only if that was requested."""
        of_graph = is_computed(obj)
        gradient = None if of_graph and not obj.retains_grad else gradient_of(obj)
        if gradient is not None and LABEL in obj.__dict__:
            gradient.__dict__[LABEL] = label()  # autograd created it, and it has not been read yet
        slots = None if type(obj) in plain_types() else tuple(slots_of(obj))
        hooks = () if of_graph else (obj._backward_hooks, obj._post_accumulate_grad_hooks)
        return gradient, attributes_of(obj), hooks, slots

    def _sent(self, obj: Any, state: State, values: Any) -> tuple[Any, ...]:
        """The state in the form that `set_state` takes, without the parts that its values bring with them."""
        gradient, attributes, hooks, slots = state
        attributes = tuple(pair for pair in attributes if pair[0] not in values.__dict__)
        return self._graph(obj), gradient, attributes, hooks, slots, on_gpu(obj)

    @bare
    def set_state(self, tensor: Any, state: tuple[Any, ...]) -> None:
        graph, gradient, attributes, hooks, slots, gpu = state
        if not has_invalid_graph(tensor):  # otherwise torch raises an error for any access to gradients
            self._set_gradient(tensor, graph, gradient, hooks)
        tensor.__dict__.clear()
        tensor.__dict__.update(attributes)
        if slots is not None:
            set_slots(tensor, dict(slots))
        if gpu and not tensor.is_cuda:
            tensor.__dict__[LABEL] = label()

    def _set_gradient(self, tensor: Any, graph: Graph | bool, gradient: Any, hooks: tuple[Any, ...]) -> None:
        if isinstance(graph, Graph):
            set_graph(tensor, graph, self.here.home)
            if gradient is not None:
                tensor.retain_grad()
        else:
            if node_of(tensor) is not None:
                drop_graph(tensor)
            with mode_of(tensor.is_inference()):
                tensor.requires_grad_(graph)
            tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks or (None, None)
        if gradient is None or gradient_of(tensor) is not gradient:
            set_gradient(tensor, gradient)

    @bare
    def read(self, obj: Any) -> State:
        if plain := self.plain(obj):
            check_extent(obj, storage_of(obj))
        place = view_of(obj) if plain else (version_of(obj), digest(obj))
        form = (type(obj), place, tuple(obj.size()), obj.dtype, obj.requires_grad, on_gpu(obj))
        base = self._base(obj) if plain else None
        if base is not None and node_of(obj) is not None and node_of(base) is None:
            base = None
        return form, *self._state(obj), version_of_graph(obj), base

    @bare
    def gradient(self, obj: Any) -> tuple[int, int | None] | None:
        """Identifies a gradient and its version; `None` for a tensor that gets no gradient."""
        if not obj.requires_grad or is_computed(obj):
            return None
        return (0, 0) if obj.grad is None else (id(obj.grad), version_of(obj.grad))

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        (kind, *_), gradient, attributes, hooks, slots, _, base = state
        if kind not in plain_types():
            yield kind
        yield gradient
        yield base
        yield from hooks
        yield from (value for _, value in (*attributes, *(slots or ())))

    @bare
    def content(self, obj: Any, state: State) -> Any:
        data = obj.data.clone() if parts_of_compressed(obj) else obj.data  # an update writes over its memory
        sent = self._sent(obj, state[1:5], data)
        if LABEL in obj.__dict__:
            data.__dict__[LABEL] = label()
        kind = name_of(type(obj)) if is_plain_type(type(obj)) else None
        return data, kind, sent

    @bare
    def apply(self, obj: Any, content: Any) -> None:
        data, kind, state = content
        if parts_of_compressed(data):
            update_compressed(obj, data)
        elif not is_same_view(obj, data):
            obj.data = data
        if kind is not None and type(obj) is not type_of(kind):
            obj.__class__ = type_of(kind)
        node = node_of(obj)
        self.set_state(obj, with_parts(state, data))
        if node_of(obj) is not node:
            self.here.with_other_graphs.append(obj)


def with_parts(state: tuple[Any, ...], values: Any) -> tuple[Any, ...]:
    """The state with the parts of a tensor that consists of others, such as a nested one. They are attributes."""
    graph, gradient, attributes, *others = state
    return graph, gradient, (*attributes, *attributes_of(values)), *others


def parts_of_sparse(tensor: Any) -> tuple[Any, ...]:
    """What a sparse tensor consists of; nothing for other layouts."""
    if tensor.layout is torch().sparse_coo:
        return tensor._indices(), tensor._values()
    return parts_of_compressed(tensor)


def parts_of_compressed(tensor: Any) -> tuple[Any, ...]:
    """What a tensor of compressed rows or columns consists of; nothing for other layouts."""
    module, layout = torch(), tensor.layout
    if layout in (module.sparse_csr, module.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if layout in (module.sparse_csc, module.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def update_compressed(obj: Any, data: Any) -> None:
    """Assigning `.data` has no effect here. Operations write into the memory, of which `values()` is a view."""
    with mode_of(obj.is_inference()), torch().no_grad():
        mine, theirs = parts_of_compressed(obj), parts_of_compressed(data)
        if [part.size() for part in mine] != [part.size() for part in theirs]:
            if node_of(obj) is None:
                obj.requires_grad_(False)
            obj.resize_as_sparse_(data)
            mine = parts_of_compressed(obj)
        for part, other in zip(mine, theirs, strict=True):
            part.copy_(other)


def set_gradient(tensor: Any, gradient: Any) -> None:
    """Also if its size or type differs from the tensor's, as after `tensor.data = …` or within `model.double()`."""
    try:
        tensor.grad = gradient
    except RuntimeError:  # torch compares them only when a gradient is assigned
        data, tensor.grad = tensor.data, None
        form = {"dtype": gradient.dtype, "device": gradient.device, "layout": tensor.layout}
        try:
            tensor.data = torch().empty(gradient.size(), **form)
            tensor.grad = gradient
        except RuntimeError:  # a dense one of a sparse tensor, which only autograd itself can assign
            set_twin_of_gradient(tensor, gradient)
        finally:
            tensor.data = data


def set_twin_of_gradient(tensor: Any, gradient: Any) -> None:
    """Lets autograd create the tensor's gradient, which then gets this gradient's memory and represents it."""
    zeros = torch().zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.size())
    required, hooks = tensor.requires_grad, (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = None, None
    tensor.requires_grad_(True)
    torch().autograd.backward([tensor], [zeros])
    tensor.requires_grad_(required)
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks
    tensor.grad.data = gradient.data
    tensor.grad.__dict__.update(gradient.__dict__)
    tensor.grad.__dict__[_TWIN] = gradient


def gradient_of(tensor: Any) -> Any:
    """Its gradient, or the tensor that this represents."""
    gradient = tensor.grad
    twin = None if gradient is None else gradient.__dict__.get(_TWIN)
    return twin if twin is not None and is_same_view(gradient, twin) else gradient


def is_same_view(left: Any, right: Any) -> bool:
    strided = torch().strided
    if left.layout is not strided or right.layout is not strided:
        return False
    return left.dtype == right.dtype and view_of(left) == view_of(right)


def view_of(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.size()), tensor.stride(), tensor.is_neg(), tensor.is_conj()


def check_extent(tensor: Any, storage: Any) -> None:
    """Raises TypeError for a tensor that extends beyond its storage."""
    if not extent_is_valid(tensor, storage):
        raise TypeError("it is larger than its memory, because a resize failed")


def extent_is_valid(tensor: Any, storage: Any) -> bool:
    """Whether a tensor lies within its storage. `resize_` leaves it larger than that when it fails."""
    item_bytes, first, count = tensor.element_size(), tensor.storage_offset(), tensor.numel()
    if (first + count) * item_bytes <= storage.nbytes() or not count:
        return True
    last = first + sum((length - 1) * stride for length, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return bool((last + 1) * item_bytes <= storage.nbytes())


def digest(obj: Any) -> bytes | None:
    """Of the memory on this machine of a tensor that is sent with it: `.data` and `.numpy()` write without a count."""
    if obj.device.type != "cpu":
        return None
    try:
        if parts := parts_of_sparse(obj):
            return b"".join(digest(part) or b"" for part in parts)
        if obj.layout is not torch().strided:
            return None
        storage = storage_of(obj)
        if not storage.nbytes():
            return None
        return hashlib.blake2b(memory.at_address(storage.data_ptr(), storage.nbytes(), storage)).digest()
    except (RuntimeError, NotImplementedError):  # a class whose instances have no memory
        return None


def name_of(kind: type) -> Any:
    """How a plain type is sent: the number of one that always exists, or the class itself."""
    return plain_types().index(kind) if kind in plain_types() else kind


def type_of(name: Any) -> Any:
    return plain_types()[name] if type(name) is int else name


def attributes_of(obj: Any) -> tuple[tuple[str, Any], ...]:
    """Without the label, which represents the device, and without what belongs to one kernel."""
    return tuple(pair for pair in obj.__dict__.items() if pair[0] not in (LABEL, _TWIN) and not is_capsule(pair[0]))


def drop_capsules(tensor: Any) -> None:
    """Drops pointers that torch's own pickling would include. torch computes them again."""
    for name in [name for name in tensor.__dict__ if is_capsule(name)]:
        del tensor.__dict__[name]


def is_capsule(name: str) -> bool:
    return name.startswith(_CAPSULES)


def version_of(tensor: Any) -> int | None:
    """The number of in-place changes; None for a tensor that was made in inference mode, which does not count them."""
    return None if tensor.is_inference() else tensor._version


def version_of_graph(obj: Any) -> int | None:
    """The number of in-place changes of a tensor that belongs to a graph, because each changes the graph."""
    return None if node_of(obj) is None else obj._version


class GeneratorKind(Kind):
    """`torch.Generator`: its device and its state, a byte tensor."""

    name = "torch generator"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply, self.default)

    def reduce(self, obj: Any) -> Any:
        new, apply, default = self._anchors
        if obj is torch().default_generator:  # each kernel has its own, whose state is sent anyway
            return default, ()
        return new, (obj.device.type,), self.read(obj), None, None, apply

    def default(self) -> Any:
        import torch

        return torch.default_generator

    def new(self, device: str) -> Any:
        import torch

        return torch.Generator(device)

    def read(self, obj: Any) -> State:
        return None if obj is torch().default_generator else obj.get_state().numpy().tobytes()

    def apply(self, obj: Any, content: Any) -> None:
        module = torch()
        obj.set_state(module.frombuffer(bytearray(content), dtype=module.uint8))


def is_generator_type(kind: type) -> bool:
    return issubclass(kind, imported("torch._C", "Generator"))
