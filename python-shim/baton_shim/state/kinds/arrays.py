"""numpy arrays: views of segments, so that arrays that share memory continue to share it.

An array that alone uses its memory owns it again after the transfer, if that needs only a small copy. A view is sent
with its owner (`view.base`), so both remain on one segment. Memory-mapped files are sent as bytes: what the cell writes
arrives in the notebook's own mapping, and so in the file.
"""

from __future__ import annotations

import array
import contextlib
import math
import pickle
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from baton_shim.base.storages import range_of, storage_of
from baton_shim.state import memory
from baton_shim.state.kinds.base import Here, Kind, State, imported
from baton_shim.state.kinds.leaves import LEAF_ELEMENTS, all_plain, pickled
from baton_shim.state.kinds.trees import is_decision_tree_type, memory_of
from baton_shim.state.segments import Segment

_READ_ONLY_MEMORY, _READ_ONLY, _WRITEABLE = 0, 1, 2


def numpy() -> Any:
    return sys.modules["numpy"]


def has_plain_memory(kind: Any) -> bool:
    """Whether an array class keeps nothing outside its memory and its `__dict__`."""
    array = numpy().ndarray
    if kind is imported("numpy.ma", "MaskedArray"):
        return True
    own_reduce = kind.__reduce__ is not array.__reduce__ or kind.__reduce_ex__ is not array.__reduce_ex__
    return issubclass(kind, array) and not own_reduce and kind.__setstate__ is array.__setstate__


def is_array_type(kind: type) -> bool:
    return issubclass(kind, imported("numpy", "ndarray"))


def is_plain_array_type(kind: type) -> bool:
    return is_array_type(kind) and has_plain_memory(kind)


class ArrayKind(Kind):
    name = "array"
    changes = True
    has_memory = True

    def is_blind(self, obj: Any) -> bool:
        return type(obj) is numpy().ndarray  # a subclass may run code when a view is created

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        making = self.new, self.view, self.new_of_objects, self.view_of_tree, self.over
        self._anchors = (*making, self.fill, self.set_attributes)

    def reduce(self, obj: Any) -> Any:
        new, view, new_of_objects, view_of_tree, over, fill, set_attributes = self._anchors
        if obj.dtype.kind == "T" and obj.base is not None:
            raise TypeError("it is a view of strings of variable length, whose memory is separate; use .copy()")
        owner = owner_of(obj)
        attributes = getattr(obj, "__dict__", None)
        flag = _WRITEABLE if obj.flags.writeable else _READ_ONLY
        where = address(obj)
        carrier = next((base for base in (obj.base, owner) if _can_carry(base, obj)), None)
        if carrier is not None:
            offset = where - address(carrier) if obj.size else 0
            form = (type(obj), carrier, offset, obj.shape, obj.strides, obj.dtype, flag)
            return (view, form, attributes, None, None, set_attributes) if attributes else (view, form)
        if is_decision_tree_type(type(owner.base)):
            for place, part in enumerate(memory_of(owner.base)):
                if 0 <= where - address(part) < part.nbytes:
                    form = (owner.base, place, where - address(part), obj.shape, obj.strides, obj.dtype, flag)
                    return view_of_tree, form
        below = buffer_below(owner)
        if below is not None:
            form = (type(obj), below, where - memory.address_of(below), obj.shape, obj.strides, obj.dtype, flag)
            return (over, form, attributes, None, None, set_attributes) if attributes else (over, form)
        if owner.dtype.hasobject and not obj.dtype.hasobject:
            return None  # its memory contains addresses of objects, too
        if has_elements(obj.dtype):
            order = "F" if obj.flags.fnc else "C"
            return new_of_objects, (type(obj), obj.shape, obj.dtype, order), self._elements(obj), None, None, fill
        if obj.size == 0 or obj.itemsize == 0:
            form = (type(obj), -1, 0, obj.shape, obj.strides, obj.dtype, flag)
        else:
            segment, low = self._segment(obj, owner)
            if flag == _READ_ONLY and not memory_is_writeable(owner):
                flag = _READ_ONLY_MEMORY
            form = (type(obj), segment, where - low, obj.shape, obj.strides, obj.dtype, flag)
        return (new, form, attributes, None, None, set_attributes) if attributes else (new, form)

    def _segment(self, obj: Any, owner: Any) -> tuple[int, int]:
        low, high = memory_of_owner(owner)
        segment = self.here.segments.find(low, high - low) or self.here.segments.add(low, high - low)
        self.here.used.append((obj, segment.number))
        return segment.number, segment.address

    def new(self, kind: type, number: int, offset: int, shape: Any, strides: Any, dtype: Any, flag: int) -> Any:
        np = numpy()
        if number < 0:
            made = np.ndarray.__new__(kind, shape, dtype)
            if made.strides != strides:
                made = np.ndarray.__new__(kind, shape, dtype, order="F")
            made.flags.writeable = flag == _WRITEABLE
            return made
        segments = self.here.segments
        segment = segments.by_number[number]
        made = None
        if segment.source is not None and kind is np.ndarray and flag and not offset:
            made = _as_owner(np, segment, shape, strides, dtype)
            if made is not None:
                segments.settle_at(segment, address(made))
        if made is None:
            buffer = segments.buffer(segment)
            if flag == _READ_ONLY_MEMORY:
                buffer = memoryview(buffer).toreadonly()
            made = np.ndarray.__new__(kind, shape, dtype, buffer, offset, strides)
        if flag != _WRITEABLE:
            made.flags.writeable = False
        self.here.used.append((made, number))
        return made

    def view(self, kind: type, owner: Any, offset: int, shape: Any, strides: Any, dtype: Any, flag: int) -> Any:
        buffer = owner if owner.flags.c_contiguous else owner.T
        with unlocked(owner) if flag == _WRITEABLE else contextlib.nullcontext():
            made = numpy().ndarray.__new__(kind, shape, dtype, buffer, offset, strides)
            made.flags.writeable = flag == _WRITEABLE
        return made

    def over(self, kind: type, below: Any, offset: int, shape: Any, strides: Any, dtype: Any, flag: int) -> Any:
        made = numpy().ndarray.__new__(kind, shape, dtype, below, offset, strides)
        if flag != _WRITEABLE:
            made.flags.writeable = False
        return made

    def view_of_tree(self, tree: Any, place: int, offset: int, shape: Any, strides: Any, dtype: Any, flag: int) -> Any:
        part = memory_of(tree)[place]
        whole = (part.shape, part.strides, part.dtype) == (shape, strides, dtype)
        made = part if whole else numpy().ndarray(shape, dtype, part, offset, strides)
        if flag != _WRITEABLE:
            made.flags.writeable = False
        return made

    def new_of_objects(self, kind: type, shape: Any, dtype: Any, order: str) -> Any:
        return numpy().ndarray.__new__(kind, shape, dtype, order=order)

    def fill(self, obj: Any, elements: tuple[Any, ...]) -> None:
        flat, flag, attributes = elements
        with unlocked(obj):
            set_elements(obj, pickle.loads(flat) if type(flat) is bytes else flat)
        set_writeable(obj, flag)
        if attributes is not None:
            self.set_attributes(obj, attributes)

    def set_attributes(self, obj: Any, attributes: dict[str, Any]) -> None:
        obj.__dict__.clear()
        obj.__dict__.update(attributes)

    def _elements(self, obj: Any) -> tuple[Any, ...]:
        return as_sent(elements_of(obj)), obj.flags.writeable, getattr(obj, "__dict__", None)

    def read(self, obj: Any) -> State:
        attributes = getattr(obj, "__dict__", None)
        elements = elements_of(obj) if has_elements(obj.dtype) else None
        form = (obj.shape, obj.strides, obj.dtype, obj.flags.writeable, address(obj) if obj.size else 0)
        return form, elements, tuple(attributes.items()) if attributes else ()

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        _, elements, attributes = state
        yield obj.dtype
        if isinstance(obj.base, numpy().ndarray):
            yield obj.base
            yield owner_of(obj)
        if is_decision_tree_type(type(owner_of(obj).base)):
            yield owner_of(obj).base
        yield buffer_below(owner_of(obj))
        if elements and not is_large_and_plain(elements):
            yield from elements
        yield from (value for _, value in attributes)

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        """Whether it has other memory (`resize`, even at the same address), or strides that cannot be set."""
        (shape, strides, dtype, _, where), *_ = self.read(obj)
        (old_shape, old_strides, old_dtype, _, old_where), *_ = old
        if where != old_where or obj.nbytes != math.prod(old_shape) * old_dtype.itemsize:
            return True
        if (shape, strides, dtype) == (old_shape, old_strides, old_dtype):
            return False
        return not obj.flags.c_contiguous or (dtype.hasobject and dtype != old_dtype)

    def holds_for_good(self, obj: Any, old: State, identities: set[int]) -> bool:
        base = obj.base  # after a resize, it no longer contains this view
        return id(base) in identities and isinstance(base, numpy().ndarray) and contains(base, obj)

    def memory(self, obj: Any) -> tuple[int, int] | None:
        owner = owner_of(obj)
        if has_elements(owner.dtype) or not owner.nbytes or buffer_below(owner) is not None:
            return None
        return None if is_decision_tree_type(type(owner.base)) else memory_of_owner(owner)

    def is_view_of(self, obj: Any, segment: Segment) -> bool:
        owner = owner_of(obj)
        if not owner.flags.owndata:  # so it cannot be resized
            return True
        low = address(owner)
        return low <= segment.address and segment.address + segment.bytes <= low + owner.nbytes

    def content(self, obj: Any, state: State) -> Any:
        (shape, _, dtype, writeable, _), elements, attributes = state
        elements = None if elements is None else as_sent(elements)
        return shape, dtype, writeable, elements, dict(attributes) if hasattr(obj, "__dict__") else None

    def apply(self, obj: Any, content: Any) -> None:
        shape, dtype, writeable, elements, attributes = content
        if obj.dtype is not dtype and obj.dtype != dtype:
            obj.dtype = dtype
        if obj.shape != shape:
            obj.shape = shape
        if elements is not None:
            self.fill(obj, (elements, writeable, attributes))
            return
        set_writeable(obj, writeable)
        if attributes is not None:
            self.set_attributes(obj, attributes)


def has_elements(dtype: Any) -> bool:
    """Whether elements of its arrays are references: objects, or texts of any length (`StringDType`)."""
    return bool(dtype.hasobject or dtype.kind == "T")


def elements_of(array: Any) -> tuple[Any, ...]:
    """The objects in an array of objects; for a structured array, also the bytes of each field of another type."""
    found: list[Any] = []
    if array.dtype.kind == "T":
        return tuple(array.ravel().tolist())
    for field in _fields(array):
        found += field.ravel().tolist() if field.dtype.hasobject else [field.tobytes()]
    return tuple(found)


def is_large_and_plain(elements: tuple[Any, ...]) -> bool:
    return len(elements) >= LEAF_ELEMENTS and all_plain(elements)


def as_sent(elements: tuple[Any, ...]) -> tuple[Any, ...] | bytes:
    """Many plain elements become one pickle, so that none of them gets a number."""
    return pickled(elements, elements) if is_large_and_plain(elements) else elements


def set_elements(array: Any, elements: Iterable[Any]) -> None:
    rest = iter(elements)
    if array.dtype.kind == "T":
        array[...] = numpy().array(tuple(rest), array.dtype).reshape(array.shape)
        return
    for field in _fields(array):
        if field.dtype.hasobject:
            field[...] = numpy().fromiter(rest, field.dtype, field.size).reshape(field.shape)
        elif data := next(rest):
            field[:] = numpy().frombuffer(data, field.dtype).reshape(field.shape)


def _fields(array: Any) -> Iterator[Any]:
    """Views of fields without subfields. They have at least one dimension, so that a list can be an element."""
    waiting = [array.view(numpy().ndarray)[None]]
    while waiting:
        field = waiting.pop()
        if field.dtype.names is None:
            yield field
        else:
            waiting += [field[name] for name in field.dtype.names]


def owner_of(array: Any) -> Any:
    """The array at the top of the chain of views; the array itself, if it is not a view."""
    ndarray = numpy().ndarray
    while isinstance(array.base, ndarray):
        array = array.base
    return array


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def bounds(array: Any) -> tuple[int, int]:
    low = high = address(array)
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.itemsize


def contains(base: Any, view: Any) -> bool:
    (low, high), (begin, end) = bounds(base), bounds(view)
    return low <= begin and end <= high


@contextlib.contextmanager
def unlocked(array: Any) -> Iterator[None]:
    """Makes an array writeable for a moment, starting with what it is a view of, because numpy checks that."""
    locked = []
    while isinstance(array, numpy().ndarray):
        if not array.flags.writeable:
            locked.append(array)
        array = array.base
    for one in reversed(locked):
        one.flags.writeable = True
    try:
        yield
    finally:
        for one in locked:
            one.flags.writeable = False


def set_writeable(array: Any, writeable: bool) -> None:
    if array.flags.writeable == writeable:
        return
    # numpy cannot tell whether memory of a tensor may be written to.
    with contextlib.suppress(ValueError), unlocked(array.base) if writeable else contextlib.nullcontext():
        array.flags.writeable = writeable


def memory_is_writeable(owner: Any) -> bool:
    if owner.flags.writeable or owner.flags.owndata:
        return True
    try:
        return not memoryview(owner.base).readonly
    except TypeError:
        return False


def buffer_below(owner: Any) -> Any:
    """The byte array or similar object that the memory belongs to."""
    base = owner.base
    if type(base) is memoryview:
        base = base.obj
    if not owner.nbytes or memory.is_of_table(base):
        return None
    return base if isinstance(base, (bytearray, array.array, imported("ctypes", "Array"))) else None


def _can_carry(owner: Any, view: Any) -> bool:
    if owner is view or not isinstance(owner, numpy().ndarray) or not has_plain_memory(type(owner)):
        return False
    if owner.itemsize == 0:
        return False
    contiguous = owner.flags.c_contiguous or owner.flags.f_contiguous
    return contiguous and (memory_is_writeable(owner) or not view.flags.writeable)


def _as_owner(np: Any, segment: Any, shape: Any, strides: Any, dtype: Any) -> Any:
    for order in ("C", "F"):
        made = np.empty(shape, dtype, order)
        if made.nbytes == segment.bytes and made.strides == strides:
            flat = made if order == "C" else made.T
            memoryview(flat.reshape(-1).view(np.uint8)).cast("B")[:] = segment.source
            return made
    return None


def memory_of_owner(owner: Any) -> tuple[int, int]:
    """Where the memory of an array that is not a view begins and ends: that of the tensor's storage, if it has one."""
    torch = sys.modules.get("torch")
    base = owner.base
    if torch is not None and base is not None and isinstance(base, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return range_of(storage_of(base))
    return bounds(owner)


def is_record_type(kind: type) -> bool:
    return issubclass(kind, imported("numpy", "void"))


class RecordKind(Kind):
    """`numpy.void`: one element of a structured array. It may be a view of the array, and its fields can be set."""

    name = "record"
    blind = True
    changes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.element,)

    def reduce(self, obj: Any) -> Any:
        base = obj.base
        if obj.flags.owndata or not isinstance(base, numpy().ndarray) or not base.flags.c_contiguous:
            return None
        place, rest = divmod(address(obj) - address(base), base.itemsize or 1)
        return None if rest or base.dtype != obj.dtype else (self._anchors[0], (base, place))

    def element(self, array: Any, place: int) -> Any:
        return array[numpy().unravel_index(place, array.shape)]

    def read(self, obj: Any) -> State:
        return tuple(obj.item()) if obj.dtype.hasobject and obj.dtype.names else obj.tobytes()

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        yield obj.dtype
        if isinstance(obj.base, numpy().ndarray):
            yield obj.base
        if type(state) is tuple:
            yield from state

    def apply(self, obj: Any, content: Any) -> None:
        if type(content) is bytes:
            content = numpy().frombuffer(content, obj.dtype)[0]
        for name, value in zip(obj.dtype.names or (), content, strict=False):
            obj[name] = value


def is_number_type(kind: type) -> bool:
    """Whether its instances are scalars of numpy."""
    return issubclass(kind, imported("numpy", "generic"))


def is_dtype_type(kind: type) -> bool:
    return issubclass(kind, imported("numpy", "dtype"))


class TypeKind(Kind):
    """`numpy.dtype`: numpy has one object for each of its own types, and sometimes compares them by identity."""

    name = "dtype"
    blind = True

    def reduce(self, obj: Any) -> Any:
        own = numpy().dtype
        if obj.kind == "T":  # texts of any length, which have no name
            return None
        text = next((text for text in (obj.str, obj.char) if obj.names is None and own(text) is obj), None)
        return None if text is None else (own, (text,))
