"""Writes one message: how each object is sent, and what replaces those that cannot be sent."""

from __future__ import annotations

import contextlib
import copyreg
import importlib
import io
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import cloudpickle

from baton_shim.base.originals import ASSIGNED, original, place_of
from baton_shim.state.finders import Finders, finders_of_notebook, is_loaded_by_notebook
from baton_shim.state.kinds import ATOMS, Kinds
from baton_shim.state.kinds.classes import class_form
from baton_shim.state.kinds.instances import made, reduced_ordinarily, says_its_arguments
from baton_shim.state.kinds.prepared import with_attributes
from baton_shim.state.nans import Nans
from baton_shim.state.refusal import StandIn, describe_failure, is_spent

_BY_CLOUDPICKLE = (type, types.FunctionType, types.ModuleType)
_FILE_NAME = 10
"""The index of the file name among the arguments of `CodeType`, since Python 3.11."""
_NEW = (copyreg.__newobj__, copyreg.__newobj_ex__, made)  # type: ignore[attr-defined]
_AHEAD = ((*ATOMS, types.ModuleType), types.FunctionType, type)


Failure = tuple[Any, str, str | None]
"""An object that is not sent, the reason, and a hint."""


class Patch:
    """Updates a known object when the reader decodes it, before anything is built from the object."""

    __slots__ = ("content", "kind", "number")

    def __init__(self, number: int, kind: str, content: Any) -> None:
        self.number, self.kind, self.content = number, kind, content


class _LargeContents:
    """The buffers after the pickle. (A separate object, because the pickler would otherwise keep itself alive.)"""

    def __init__(self) -> None:
        self.of_patches: set[int] = set()
        self.buffers: list[Any] = []

    def __call__(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether it is written into the pickle like anything else."""
        if id(buffer) not in self.of_patches:
            return True
        self.buffers.append(buffer.raw().obj)
        return False


def reduced_code(code: types.CodeType) -> tuple[Any, ...]:
    """Keeps the file name, by which tracebacks find the cell; cloudpickle 3.1.3 and newer drop it."""
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    file_name = "".join(code.co_filename)  # a new string, like cloudpickle's others
    return make, (*arguments[:_FILE_NAME], file_name, *arguments[_FILE_NAME + 1 :])


class TablePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """`explain` returns the text of a stand-in; `patch` is the function that the other end's table has, too."""

    dispatch_table: ClassVar = ChainMap({types.CodeType: reduced_code}, cloudpickle.Pickler.dispatch_table)

    def __init__(
        self,
        file: io.BytesIO,
        kinds: Kinds,
        patch: Callable[..., Any],
        explain: Callable[..., str],
        nans: Nans,
        failed: Mapping[int, Failure],
    ) -> None:
        self.large = _LargeContents()
        super().__init__(file, protocol=5, buffer_callback=self.large)
        self.kinds, self.patch, self.explain, self.nans = kinds, patch, explain, nans
        self.failed = failed
        self.last: Any = None  # the last object whose reduced form was requested
        self.left_behind: list[Failure] = []
        self.message: Any = None
        self.saved: list[Any] = []

    def record(self) -> None:
        """Keeps in `saved` each object that it is asked to save, while none has a persistent id."""
        self.persistent_id: Callable[[Any], int | None] = self.saved.append  # not of Python, so it costs little

    def dump_message(self, patches: list[Patch], rebound: dict[str, Any], extra: object) -> None:
        """Writes what methods may use while an object is rebuilt first, as a separate pickle."""
        large = [patch.content for patch in patches if type(patch.content) is pickle.PickleBuffer]
        self.large.of_patches = set(map(id, large))
        ahead = {name: value for kinds in _AHEAD for name, value in rebound.items() if issubclass(type(value), kinds)}
        if finders := self._unknown(finders_of_notebook()):
            used = {name: value for name, value in ahead.items() if not is_loaded_by_notebook(value)}
            pickle.Pickler.dump(self, used)
            pickle.Pickler.dump(self, Finders(finders))
        if ahead:
            pickle.Pickler.dump(self, ahead)
        rest = {name: value for name, value in rebound.items() if name not in ahead}
        self.message = (patches, rest, extra)
        pickle.Pickler.dump(self, self.message)  # cloudpickle hides a RecursionError
        for content in large:  # its holder has a number now, and so lives until the next message
            content.release()

    def _unknown(self, objects: list[Any]) -> list[Any]:
        known = self.memo.copy() if objects else {}
        return [obj for obj in objects if id(obj) not in known]

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is Patch:
            return self.patch, (obj.number, obj.kind, obj.content)
        self.last = obj
        reason = self.failed[id(obj)][1:] if id(obj) in self.failed else self.kinds.why_not(obj)
        if reason is not None:
            return self._stand_in(obj, *reason)
        try:
            of = self.kinds.of(obj)
            if ASSIGNED and (place := place_of(obj)) is not None:
                return original, place
            form = of.reduce(obj)
            if form is not None:
                return form if isinstance(form, str) else with_attributes(kind, sound(obj, form))
            if isinstance(obj, _BY_CLOUDPICKLE):
                load_module_of(obj)
                form = super().reducer_override(obj)
                return class_form(form, obj) if isinstance(obj, type) else form
            own = self.dispatch_table.get(kind)
            form = own(obj) if own is not None else reduced_ordinarily(obj)
            if isinstance(form, str) and not _is_found(obj, form):
                if kind.__module__ == "__main__":
                    return object.__reduce_ex__(obj, 5)
                return self._stand_in(
                    obj, f"is a {kind.__qualname__!r} object that pickles as the name {form!r}, which is another object"
                )
            return form if isinstance(form, str) else with_attributes(kind, sound(obj, form))
        except RecursionError:
            raise
        except Exception as error:
            return self._stand_in(obj, *describe_failure(obj, error))

    def _stand_in(self, obj: Any, reason: str, hint: str | None = None) -> Any:
        self.left_behind.append((obj, reason, hint))
        return StandIn, (self.explain(obj, reason), hint, is_spent(obj))


def load_module_of(obj: Any) -> None:
    """As `pickle` does: a library may load the module in which a class of it is found on demand (`numpy.rec`)."""
    name = getattr(obj, "__module__", None)
    if type(name) is str and name not in sys.modules and name.rpartition(".")[0] in sys.modules:
        with contextlib.suppress(Exception):  # then it has no name
            importlib.import_module(name)


class NanPickler(TablePickler):
    """Checks each object, which takes time, so it is used only for messages with a NaN."""

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not float or obj == obj:
            return None
        number = self.nans.number(obj)
        return None if number is None else -1 - number


def sound(obj: Any, form: Any) -> Any:
    """A reduced form that the pickler and the unpickler accept. Raises TypeError if there is none."""
    kind = type(obj)
    if type(form) is not tuple or not 2 <= len(form) <= 6 or not callable(form[0]) or type(form[1]) is not tuple:
        raise TypeError("its __reduce__ returns neither a name nor a callable with arguments")
    whole: tuple[Any, ...] = (*form, *[None] * (6 - len(form)))
    function, arguments, state, items, pairs, setter = whole
    if function is copyreg.__newobj__ and arguments[:1] == (kind,):  # type: ignore[attr-defined]
        if not (state is None or setter or hasattr(kind, "__setstate__") or _is_state(state)):
            raise TypeError("its state is neither a dictionary nor one with slots")
        if not _says_its_class(obj):
            function = made  # the pickler compares the two classes
    if function in _NEW and len(arguments) > 1 and says_its_arguments(kind):
        function(*arguments)  # an error at the other end would fail the whole cell
    items = None if items is None else iter(list(items))
    pairs = None if pairs is None else iter(list(pairs))
    return (function, arguments, state, items, pairs, setter)[: len(form)]


def _is_state(state: Any) -> bool:
    parts = state if type(state) is tuple and len(state) == 2 else (state,)
    return all(part is None or isinstance(part, dict) for part in parts)


def _says_its_class(obj: Any) -> bool:
    try:
        return obj.__class__ is type(obj)
    except Exception:
        return False


def _is_found(obj: Any, name: str) -> bool:
    """Whether the name would find this object on the other side; objects of the notebook are never sent by name."""
    module = getattr(obj, "__module__", None) or type(obj).__module__
    if module == "__main__":
        return False
    try:
        found: Any = sys.modules[module]
        for part in name.split("."):
            found = getattr(found, part)
    except (KeyError, AttributeError):
        found = None
    if found is obj:
        return True
    try:
        pickle.dumps(obj, 5)
    except Exception:
        return False
    return True
