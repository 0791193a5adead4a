"""What the table has to know of one kind of object: how it travels, whether it changed, how it is brought up to date.

A state is what an object refers to directly, compared by identity: what lies deeper has a number and a state of its
own. A wrong "changed" costs bytes, a wrong "unchanged" is a silent break, so what is not known to be immutable is
compared.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any

from baton_shim.state.refusal import where_it_stayed
from baton_shim.state.segments import Segments

State = Any
ATOMS: frozenset[type] = frozenset(
    (int, float, complex, bool, str, bytes, type(None), range, type(Ellipsis), type(NotImplemented))
)


@dataclass
class Here:
    """What the kinds of one table share."""

    namespace: dict[str, Any]
    segments: Segments
    used: list[tuple[Any, int]]  # during one message: each object that is a view on a segment, and the segment
    home: bool = False  # whether this is the notebook kernel; known with the first message

    @property
    def where_it_stayed(self) -> str:
        """For what does not travel, as the other end says it."""
        return where_it_stayed(self.home)


class Kind:
    """The default: an object that cannot change and travels by the ordinary protocol."""

    name = "fixed"
    changes = False  # whether it has a state
    replaced = False  # whether a changed one must travel anew, because it cannot be brought up to date
    hashes = False  # whether bringing it up to date asks its parts for their hashes
    blind = False  # whether nothing reads its parts' memory when one is built or brought up to date

    def __init__(self, here: Here) -> None:
        self.here = here
        self._anchors: tuple[Callable[..., Any], ...] = ()

    @property
    def anchors(self) -> tuple[Callable[..., Any], ...]:
        """Functions that the other end's kind of this name has, too, so that they need not travel."""
        return self._anchors

    def is_blind(self, obj: Any) -> bool:
        return self.blind

    def reduce(self, obj: Any) -> Any:
        """As `__reduce_ex__`; `None`: by the ordinary protocol."""
        return None

    def read(self, obj: Any) -> State:
        return None

    def same(self, obj: Any, state: State) -> bool:
        return alike(self.read(obj), state)

    def all_same(self, objects: Sequence[Any], states: Sequence[State]) -> bool:
        """Whether none of many objects has changed. In doubt no: then each is asked for alone."""
        return all(map(self.same, objects, states))

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        """What the object refers to. Text, numbers and the like may be left out."""
        return ()

    def content(self, obj: Any, state: State) -> Any:
        """The state in a form that travels."""
        return state

    def apply(self, obj: Any, content: Any) -> None:
        raise TypeError(f"{type(obj).__qualname__} cannot be brought up to date")

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        return self.replaced

    def holds_for_good(self, old: State, identities: set[int]) -> bool:
        """Whether an object in this state cannot be made to hold others in the place of these."""
        return False


def imported(module: str, name: str) -> Any:
    """A class of a library; `()`, which no class is or descends from, where nobody has imported the library."""
    return getattr(sys.modules.get(module), name, ())


_BY_VALUE = frozenset((int, float, str, bool, bytes, slice, range, complex))


def alike(left: Any, right: Any) -> bool:
    """The same objects, or plain values that are equal."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if type(left) is tuple:
        return len(left) == len(right) and all_alike(left, right)
    if type(left) in _BY_VALUE:
        return bool(left == right) and (type(left) not in (float, complex) or repr(left) == repr(right))
    return False


def all_alike(left: Iterable[Any], right: Iterable[Any]) -> bool:
    """For two of equal length; by identity first, which is ten times faster."""
    return all(map(is_, left, right)) or all(map(alike, left, right))


def hold_the_same(containers: Sequence[Any], states: Sequence[Any]) -> bool:
    """Whether many containers hold the very objects that stand in their states, in the same order."""
    return list(map(len, containers)) == list(map(len, states)) and all(
        map(is_, chain.from_iterable(containers), chain.from_iterable(states))
    )


class Fixed(Kind):
    """Immutable, but it may hold what is not."""

    def is_blind(self, obj: Any) -> bool:
        return not isinstance(obj, (tuple, frozenset)) or not isinstance(type(obj).__new__, types.FunctionType)

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        kind = type(obj)
        if kind is tuple or kind is frozenset:
            return obj  # type: ignore[no-any-return]
        if kind is types.MethodType:
            return obj.__self__, obj.__func__
        if kind is types.BuiltinFunctionType or kind is types.MethodWrapperType:  # `values.append` holds `values`
            owner = obj.__self__
            return () if owner is None or isinstance(owner, (types.ModuleType, type)) else (owner,)
        if kind is slice:
            return obj.start, obj.stop, obj.step
        if isinstance(obj, (tuple, frozenset)):
            return (*obj, *getattr(obj, "__dict__", {}).values())
        if isinstance(obj, (classmethod, staticmethod)):
            return (obj.__func__,)
        if isinstance(obj, property):
            return obj.fget, obj.fset, obj.fdel
        if isinstance(obj, enum.Enum):
            return (kind,)
        return ()
