"""Reads a message again if something could not be rebuilt, so that everything else arrives, or to find what it was.

Such an object is replaced by a stand-in, as if it had stayed in the other kernel. Opcodes are read by pickle's Python
implementation, because the C implementation ends at the first error. If creating an object fails (a module that cannot
be imported, a constructor), it is replaced at once. If filling it fails, others may already refer to it, so the message
is read once more with a stand-in from the start.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from baton_shim.base.examine import name_of_type
from baton_shim.state.errors import short
from baton_shim.state.nans import Nans
from baton_shim.state.refusal import StandIn, TableBroken, stand_in_text, where_it_is

if TYPE_CHECKING:
    from baton_shim.state.kinds import Here

_Read = TypeVar("_Read")
_BY_PYTHON: Any = pickle._Unpickler
MOST_READINGS = 100
"""The limit for one message: each reading but the last finds one object that cannot be filled."""


class NotFound(Exception):
    """Something that has a name does not exist here. The text is that of its stand-in."""


class NotFilled(Exception):
    """An object with this number was created but could not be filled."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number, self.text = number, text


class StandIns:
    """Objects of one message that could not be rebuilt."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self.by_number: dict[int, str] = {}
        self.made: list[StandIn] = []
        """Those of the last reading."""

    def new(self, text: str) -> StandIn:
        self.made.append(StandIn(text, "use it in %%gpu cells"))
        return self.made[-1]

    def absent(self, module: str, name: str, error: BaseException) -> StandIn:
        """For something that is sent by its name."""
        return self.new(self._here.note_absent(module, not_imported(module, name, said(error), self._here.home)))


class Failure(NamedTuple):
    error: Exception
    stand_ins: list[StandIn]
    """Each replaces an object that could not be rebuilt."""


def read_what_can_be(read: Callable[[StandIns | None], _Read], stand_ins: StandIns) -> tuple[_Read, Failure | None]:
    """Returns the result of `read`. Raises the first error if stand-ins do not help."""
    try:
        return read(None), None
    except TableBroken:
        raise
    except Exception as error:
        for _ in range(MOST_READINGS):
            stand_ins.made.clear()
            try:
                return read(stand_ins), Failure(error, stand_ins.made)
            except NotFilled as one:
                stand_ins.by_number[one.number] = one.text
            except Exception:
                break
        raise error


def not_rebuilt(what: object, error: BaseException) -> str:
    """The text about an object that `what` should have created: a class, its name, or a function."""
    kind = name_of_type(what) if isinstance(what, type) else getattr(what, "__qualname__", what)
    return f"a {kind!r} object cannot be rebuilt here ({said(error)}) and {where_it_is(home=False)}"


def not_imported(module: str, name: str, reason: str, home: bool) -> str:
    """The text about something that is sent by its name. `home`: whether this is the notebook kernel."""
    return f"{name!r} of the module {module!r} cannot be imported here ({reason}) and {where_it_is(not home)}"


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {short(error)[:200]}"


class TolerantUnpickler(_BY_PYTHON):  # type: ignore[misc]
    """`must`: the function whose errors fail the whole message."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_BY_PYTHON.dispatch)

    def __init__(
        self,
        program: bytes | memoryview,
        buffers: Iterable[memoryview],
        known: Sequence[Any],
        find_class: Callable[[str, str], Any],
        nans: Nans,
        stand_ins: StandIns,
        must: Callable[..., Any],
    ) -> None:
        self._file, self._bytes = io.BytesIO(program), len(program)
        super().__init__(self._file, buffers=buffers)
        self.memo = dict(enumerate(known))
        self._find, self._nans, self._stand_ins, self._must = find_class, nans, stand_ins, must

    def run(self, ahead: Callable[[Any], None]) -> Any:
        found = self.load()
        while self._file.tell() < self._bytes:
            ahead(found)
            found = self.load()
        return found

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._find(module, name)
        except TableBroken:
            raise
        except Exception as error:
            return self._stand_ins.absent(module, name, error)

    def persistent_load(self, number: int) -> Any:
        return self._nans.find(-1 - number)

    def load_memoize(self) -> None:
        number = len(self.memo)
        if number in self._stand_ins.by_number:
            self.stack[-1] = self._stand_ins.new(self._stand_ins.by_number[number])
        self.memo[number] = self.stack[-1]

    dispatch[pickle.MEMOIZE[0]] = load_memoize

    def _make(self, load: Callable[[Any], None], arguments: int) -> None:
        """Runs an opcode that replaces a callable and its arguments by their result."""
        depth = len(self.stack) - 1 - arguments
        what, given = self.stack[depth : depth + 2]
        try:
            load(self)
        except TableBroken:
            raise
        except Exception as error:
            if what is self._must:
                raise
            del self.stack[depth:]
            if depth and given and given[0] is self.stack[-1]:  # `what` fills the object before it
                if type(given[0]) is not StandIn:
                    self._warn_not_filled(given[0], error)
                self.stack.append(None)
                return
            named = next((one for one in (what, *given[:1]) if isinstance(one, (type, StandIn))), what)
            text = str(error) if type(error) is NotFound else stand_in_text(named) or not_rebuilt(named, error)
            self.stack.append(self._stand_ins.new(text))

    def _fill(self, load: Callable[[Any], None], values: int | None) -> None:
        """Runs an opcode that gives an object `values` values, or all those above the mark."""
        target = self.metastack[-1][-1] if values is None else self.stack[-1 - values]
        if type(target) is StandIn:
            if values is None:
                self.pop_mark()
            else:
                del self.stack[-values:]
            return
        try:
            load(self)
        except TableBroken:
            raise
        except Exception as error:
            self._warn_not_filled(target, error)

    def _warn_not_filled(self, target: Any, error: Exception) -> None:
        number = next((number for number, one in self.memo.items() if one is target), None)
        if number is None:
            raise error
        raise NotFilled(number, not_rebuilt(type(target), error)) from error


def _replace(opcode: bytes, how: Callable[..., None], number: int | None) -> None:
    load = TolerantUnpickler.dispatch[opcode[0]]
    TolerantUnpickler.dispatch[opcode[0]] = lambda unpickler: how(unpickler, load, number)


for _opcode, _arguments in ((pickle.REDUCE, 1), (pickle.NEWOBJ, 1), (pickle.NEWOBJ_EX, 2)):
    _replace(_opcode, TolerantUnpickler._make, _arguments)
for _opcode, _values in (
    *((pickle.BUILD, 1), (pickle.APPEND, 1), (pickle.SETITEM, 2)),
    *((pickle.APPENDS, None), (pickle.SETITEMS, None), (pickle.ADDITEMS, None)),
):
    _replace(_opcode, TolerantUnpickler._fill, _values)
