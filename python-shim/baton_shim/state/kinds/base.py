"""What the table must know about one kind of object: how it is sent, whether it changed, how it is updated.

A state is what an object refers to directly, compared by identity; deeper objects have a number and a state of their
own. A wrong "changed" costs bytes; a wrong "unchanged" silently loses a change. So everything that is not known to be
immutable is compared.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Any

from baton_shim.state.refusal import where_it_is
from baton_shim.state.segments import Segment, Segments

State = Any
ATOMS: frozenset[type] = frozenset(
    (int, float, complex, bool, str, bytes, type(None), range, type(Ellipsis), type(NotImplemented))
)


@dataclass
class Here:
    """What the kinds of one table share."""

    namespace: dict[str, Any]
    segments: Segments
    used: list[tuple[Any, int]]  # during one message: each view of a segment, and the segment
    with_other_graphs: list[Any] = field(default_factory=list)
    """During one message: known tensors whose computation graph it replaced or removed."""
    home: bool = False  # whether this is the notebook kernel; known from the first message on
    searches: dict[Any, Any] = field(default_factory=dict)
    """During one message: the searches that find `re.Match` objects again."""
    absent: dict[str, str] = field(default_factory=dict)
    """During one message: texts of stand-ins for objects whose module cannot be imported here, and the modules."""
    once_bound: list[Callable[[], object]] = field(default_factory=list)
    """While a message is read: what can be done only when its names are bound. If it fails, that does no harm."""
    loaded: frozenset[str] = frozenset()  # the modules that the notebook had loaded before it reads a message
    undo: Any = None  # while a message is read: how to undo it (`delta.py`)

    @property
    def where_it_is(self) -> str:
        """The text for what is not sent, as the other end shows it."""
        return where_it_is(self.home)

    def note_absent(self, module: str, text: str) -> str:
        self.absent[text] = module
        return text

    def begin_reading(self, undo: Any) -> None:
        self.undo = undo
        self.once_bound.clear()
        self.forget_message()

    def names_are_bound(self) -> None:
        for action in self.once_bound:
            with suppress(Exception):
                action()
        self.once_bound.clear()

    def forget_message(self) -> None:
        self.absent.clear()
        self.used.clear()
        self.searches.clear()
        self.with_other_graphs.clear()


class Kind:
    """The default: an object that cannot change, and is pickled in the ordinary way."""

    name = "fixed"
    changes = False  # whether it has a state
    replaced = False  # whether a changed object must be sent again, because it cannot be updated
    hashes = False  # whether updating it computes the hashes of its parts
    blind = False  # whether building or updating it reads no memory of its parts
    can_be_taken = False  # whether the other end can update an object that its module already has (`places.py`)
    has_memory = False  # whether it may be a view of memory that other objects use, too

    def __init__(self, here: Here) -> None:
        self.here = here
        self._anchors: tuple[Callable[..., Any], ...] = ()

    @property
    def anchors(self) -> tuple[Callable[..., Any], ...]:
        """Functions that the other end's kind of this name has, too, so that they need not be sent."""
        return self._anchors

    def is_blind(self, obj: Any) -> bool:
        return self.blind

    def reduce(self, obj: Any) -> Any:
        """Like `__reduce_ex__`; `None`: pickle it in the ordinary way."""
        return None

    def read(self, obj: Any) -> State:
        return None

    def check(self, obj: Any) -> None:
        """Raises an error if it cannot be sent for a reason that `reduce` meets."""

    def same(self, obj: Any, state: State) -> bool:
        return alike(self.read(obj), state)

    def all_same(self, objects: Sequence[Any], states: Sequence[State]) -> bool:
        """Whether none of many objects has changed. If unsure, False: then each is compared separately."""
        return all(map(self.same, objects, states))

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        """The objects that it refers to. Text, numbers and the like may be left out."""
        return ()

    def content(self, obj: Any, state: State) -> Any:
        """The state in a form that can be sent."""
        return state

    def apply(self, obj: Any, content: Any) -> None:
        raise TypeError(f"{type(obj).__qualname__} cannot be brought up to date")

    def must_be_replaced(self, obj: Any, old: State) -> bool:
        return self.replaced

    def memory(self, obj: Any) -> tuple[int, int] | None:
        """Where the memory begins and ends that it is a view of; None if it is sent in another way."""
        return None

    def is_view_of(self, obj: Any, segment: Segment) -> bool:
        """Whether it still keeps the memory of a segment that it was a view of."""
        return True

    def holds_for_good(self, obj: Any, old: State, identities: set[int]) -> bool:
        """Whether an object that was in this state cannot be made to refer to other objects instead of these."""
        return False


_find_module = sys.modules.get  # looked up once, because each new type is compared with classes of many libraries


def imported(module: str, name: str) -> Any:
    """A class of a library; if there is none at present, `()`, of which nothing is an instance.

    The library may not have been imported, or a test may have put something else in its place.
    """
    found = getattr(_find_module(module), name, ())
    return found if isinstance(found, type) else ()


_BY_VALUE = frozenset((int, float, str, bool, bytes, complex))


def alike(left: Any, right: Any) -> bool:
    """Whether they are the same object, or equal plain values."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if type(left) is tuple:
        return len(left) == len(right) and all_alike(left, right)
    if type(left) is range or type(left) is slice:  # ranges of the same numbers are equal
        return all_alike((left.start, left.stop, left.step), (right.start, right.stop, right.step))
    if type(left) in _BY_VALUE:
        return bool(left == right) and (type(left) not in (float, complex) or repr(left) == repr(right))
    return False


def all_alike(left: Iterable[Any], right: Iterable[Any]) -> bool:
    """For two iterables of equal length. Compares identities first, which is ten times faster."""
    return all(map(is_, left, right)) or all(map(alike, left, right))


def hold_the_same(containers: Sequence[Any], states: Sequence[Any]) -> bool:
    """Whether many containers hold exactly the objects in their states, in the same order."""
    return list(map(len, containers)) == list(map(len, states)) and all(
        map(is_, chain.from_iterable(containers), chain.from_iterable(states))
    )


class Fixed(Kind):
    """An immutable object that may hold mutable ones."""

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
