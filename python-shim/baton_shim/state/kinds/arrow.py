"""Apache Arrow: buffers are views of segments. Arrays, tables and types are immutable, and identified by their parts.

pyarrow creates a new Python object for each access to a part of an array, and pickling an array accesses all of its
parts. So each object is taken apart once, and its parts are kept as long as it lives. The parts keep their numbers, and
the buffers among them their segments, so that an unchanged column costs nothing.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, imported

_IMMUTABLE = ("Array", "ChunkedArray", "Table", "RecordBatch", "Schema", "Field", "DataType", "Scalar")


def is_arrow_type(kind: type) -> bool:
    """Whether it is pyarrow's own array, table, type or the like; a class of another library may have its own state."""
    library = sys.modules.get("pyarrow.lib")
    if library is None or kind.__module__ != "pyarrow.lib":
        return False
    return issubclass(kind, tuple(getattr(library, name) for name in _IMMUTABLE))


class ArrowKind(Kind):
    name = "arrow"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new,)
        self._forms: dict[int, tuple[weakref.ref[Any], tuple[Any, ...]]] = {}

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], self._form(obj)

    def new(self, function: Callable[..., Any], *arguments: Any) -> Any:
        made = function(*arguments)
        self._keep(made, (function, *arguments))
        return made

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        return _inside(self._form(obj))

    def _form(self, obj: Any) -> tuple[Any, ...]:
        """The function that creates it, and its arguments."""
        known = self._forms.get(id(obj))
        if known is not None:
            return known[1]
        if hasattr(obj, "num_rows") and obj.num_rows and not obj.num_columns:
            is_table = hasattr(obj, "to_batches")
            return self._keep(obj, (without_columns, is_table, obj.num_rows, obj.schema.metadata))
        function, arguments = obj.__reduce__()[:2]
        return self._keep(obj, (function, *arguments))

    def _keep(self, obj: Any, form: tuple[Any, ...]) -> tuple[Any, ...]:
        forms, place = self._forms, id(obj)
        forms[place] = weakref.ref(obj, lambda _: forms.pop(place, None)), form
        return form


def without_columns(is_table: bool, rows: int, metadata: Any) -> Any:
    """A table or batch that has rows although it has no columns. pyarrow's own form of it has no rows."""
    pyarrow = importlib.import_module("pyarrow")

    batch = pyarrow.record_batch([pyarrow.nulls(rows)], [""]).select([]).replace_schema_metadata(metadata)
    return pyarrow.Table.from_batches([batch]) if is_table else batch


def _inside(form: Iterable[Any]) -> Iterator[Any]:
    """The objects in a form; its lists and tuples belong to the form itself."""
    for part in form:
        if type(part) in (tuple, list):
            yield part
            yield from _inside(part)
        elif part is not None:
            yield part


def is_buffer_type(kind: type) -> bool:
    return issubclass(kind, imported("pyarrow", "Buffer"))


class ArrowBufferKind(Kind):
    """`pyarrow.Buffer`: immutable, but large, and shared by slices."""

    name = "arrow buffer"

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new,)

    def reduce(self, obj: Any) -> Any:
        if not obj.size or not getattr(obj, "is_cpu", True):
            return None
        segments = self.here.segments
        segment = segments.find(obj.address, obj.size) or segments.add(obj.address, obj.size)
        self.here.used.append((obj, segment.number))
        return self._anchors[0], (segment.number, obj.address - segment.address, obj.size)

    def new(self, number: int, offset: int, size: int) -> Any:
        pyarrow = importlib.import_module("pyarrow")

        segments = self.here.segments
        memory = segments.buffer(segments.by_number[number])
        made = pyarrow.py_buffer(memoryview(memory).cast("B")[offset : offset + size])
        self.here.used.append((made, number))
        return made
