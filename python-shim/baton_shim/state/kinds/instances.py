"""Instances with ordinary pickling (attributes, slots, contents of a container subclass), and exceptions."""

from __future__ import annotations

import collections
import copyreg
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import is_
from sys import getrefcount
from typing import Any

import cloudpickle

from baton_shim.state.kinds import traces
from baton_shim.state.kinds.base import Kind, State, all_alike, hold_the_same

CONTAINERS = (collections.OrderedDict, dict, list, set, collections.deque)
FIXED = (tuple, frozenset)
_ORDINARY_REDUCE: set[Any] = {
    kind.__reduce__ for kind in (object, collections.defaultdict, collections.Counter, *CONTAINERS)
}

_ASKED = frozenset(("__getnewargs__", "__getnewargs_ex__"))


def pickles_ordinarily(kind: Any) -> bool:
    """Whether it has no pickling of its own: the state is attributes, slots and, for a container, contents."""
    own_getstate = getattr(kind, "__getstate__", None) is not getattr(object, "__getstate__", None)
    own_reduce = kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ not in _ORDINARY_REDUCE
    return not own_getstate and not own_reduce and kind not in copyreg.dispatch_table


@functools.lru_cache(maxsize=4096)
def is_built_blindly(kind: type) -> bool:
    """Whether no code of the class reads its parts during unpickling. torch's own code does not, either."""
    own = [getattr(kind, name, None) for name in ("__new__", "__setstate__", "__hash__", "__setattr__")]
    of_python = (method for method in own if isinstance(method, types.FunctionType))
    return all(method.__module__.partition(".")[0] == "torch" for method in of_python)


def slot_names(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # type: ignore[attr-defined,no-any-return]


def reduced_ordinarily(obj: Any) -> Any:
    """The object's reduced form; a `__new__` of the notebook has already run and does not run again.

    A torch module with parametrizations cannot be pickled, because its class is created at run time; but here such
    classes are sent, too.
    """
    if type(obj).__module__ == "torch.nn.utils.parametrize" and "parametrizations" in vars(obj).get("_modules", ()):
        return copyreg.__newobj__, (type(obj),), vars(obj)  # type: ignore[attr-defined]
    if type(obj).__module__ == "jax._src.custom_derivatives" and hasattr(obj, "__dict__"):
        return found_by(obj) or (bare, (type(obj),), vars(obj))  # its `__new__` requires the function
    form = obj.__reduce_ex__(5)
    if type(form) is tuple and form[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
        kind: Any = type(obj)
        if new_beyond(kind):
            return (made, *form[1:])
        if kind.__new__ is object.__new__:  # it takes no arguments, whatever `__getnewargs__` returns
            return (form[0], form[1][:1], *form[2:])
        if len(form[1]) == 1 and requires_arguments(kind.__new__):
            return (bare, *form[1:])
    return form


def requires_arguments(new: Any) -> bool:
    """Whether a `__new__` of Python cannot be called with the class alone, as pickle does (`jinja2.Template`)."""
    return type(new) is types.FunctionType and new.__code__.co_argcount - len(new.__defaults__ or ()) > 1


def new_beyond(kind: Any) -> Any:
    """The `__new__` below the notebook's own ones; `None` if none is skipped.

    The notebook's own ones are skipped up to the class that defines the arguments.
    """
    passed = False
    for base in kind.__mro__:
        names = vars(base)
        asked = not _ASKED.isdisjoint(names)
        if "__new__" in names:
            if base.__module__ != "__main__" or asked:
                return names["__new__"] if passed else None
            passed = True
        elif asked:
            return None
    return None


def says_its_arguments(kind: type) -> bool:
    """Whether a method of the notebook defines the arguments of `__new__`."""
    return any(base.__module__ == "__main__" and not _ASKED.isdisjoint(vars(base)) for base in kind.__mro__)


def found_by(obj: Any) -> str | None:
    """The name under which a library has this very object."""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not isinstance(name, str) or module == "__main__":
        return None
    return name if getattr(sys.modules.get(module or ""), name, None) is obj else None


def bare(kind: Any) -> Any:
    return object.__new__(kind)


def made(kind: Any, *arguments: Any) -> Any:
    new = new_beyond(kind)
    return (kind.__new__ if new is None else getattr(new, "__func__", new))(kind, *arguments)


class _Sample:
    pass


_sample = _Sample()
_ALONE = getrefcount(_sample.__dict__)
_ALONE_IN_LIST = max(map(getrefcount, [_sample.__dict__]))


def shares_attributes(obj: Any) -> bool:
    """Whether more than the object refers to its `__dict__`: `vars(obj)`, or an object with `self.__dict__ = self`."""
    kind: Any = type(obj)
    return getrefcount(obj.__dict__) > _ALONE and may_share_attributes(kind)


@functools.lru_cache(maxsize=4096)
def may_share_attributes(kind: type) -> bool:
    """A `__setstate__` may keep the dictionary that it is given, which only the receiving end would share then."""
    found = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    return type(found) is types.GetSetDescriptorType and not hasattr(kind, "__setstate__")


def set_attributes(obj: Any, names: Any, values: Iterable[Any]) -> None:
    """`names`: the dictionary itself, if it is shared."""
    if type(names) is not tuple:
        object.__setattr__(obj, "__dict__", names)
        return
    if shares_attributes(obj):  # no longer at the other end
        object.__setattr__(obj, "__dict__", {})
    obj.__dict__.clear()
    obj.__dict__.update(zip(names, values, strict=True))


class AttributesKind(Kind):
    """The common case: only a `__dict__`."""

    name = "attributes"
    can_be_taken = True
    changes = True

    def __init__(self, here: Any) -> None:
        super().__init__(here)
        self._anchors = (self.apply,)

    def is_blind(self, obj: Any) -> bool:
        kind: Any = type(obj)
        return is_built_blindly(kind)

    def reduce(self, obj: Any) -> Any:
        """Sends a copy of the attributes: the other end copies them anyway, and the original would get a number."""
        state = self.read(obj) if shares_attributes(obj) else None
        form = reduced_ordinarily(obj)
        if type(form) is tuple and state is not None:
            return (*form[:2], state, None, None, self._anchors[0])
        if type(form) is tuple and len(form) > 2 and form[2] is obj.__dict__:
            return (*form[:2], dict(form[2]), *form[3:])
        return form

    def read(self, obj: Any) -> State:
        if shares_attributes(obj):
            return type(obj), obj.__dict__, ()
        attributes = obj.__dict__
        return type(obj), tuple(attributes), tuple(attributes.values())

    def same(self, obj: Any, state: State) -> bool:
        kind, names, values = state
        shared = type(names) is not tuple
        if shares_attributes(obj) != shared:
            return False
        attributes = obj.__dict__
        if shared:
            return type(obj) is kind and attributes is names
        return (
            type(obj) is kind
            and len(attributes) == len(names)
            and all_alike(attributes.values(), values)
            and all_alike(attributes, names)
        )

    def all_same(self, objects: Sequence[Any], states: Sequence[State]) -> bool:
        kinds, names, values = zip(*states, strict=True)
        attributes = [obj.__dict__ for obj in objects]
        return (
            max(map(getrefcount, attributes)) <= _ALONE_IN_LIST
            and all(map(is_, map(type, names), repeat(tuple)))
            and all(map(is_, map(type, objects), kinds))
            and hold_the_same(attributes, names)
            and hold_the_same([held.values() for held in attributes], values)
        )

    def parts(self, obj: Any, state: State) -> Iterable[Any]:
        kind, names, values = state
        yield kind
        if type(names) is not tuple:
            yield names
        yield from values

    def apply(self, obj: Any, content: Any) -> None:
        kind, names, values = content
        if type(obj) is not kind:
            obj.__class__ = kind
        set_attributes(obj, names, values)


class InstanceKind(Kind):
    """Slots, attributes and contents, all set without the class's own methods."""

    name = "instance"
    changes = True
    hashes = True

    def is_blind(self, obj: Any) -> bool:
        kind: Any = type(obj)
        return is_built_blindly(kind)

    def __init__(self, here: Any) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply)

    @property
    def anchors(self) -> tuple[Any, ...]:
        return self._anchors

    def reduce(self, obj: Any) -> Any:
        new, apply = self._anchors
        if type(obj) in cloudpickle.Pickler.dispatch_table:
            return None
        state = self.read(obj)
        if container_base(obj) is not None:
            return new, (type(obj), getattr(obj, "maxlen", None)), state, None, None, apply
        form = reduced_ordinarily(obj)
        return form if isinstance(form, str) else (*form[:2], state, None, None, apply)

    def new(self, kind: Any, longest: int | None) -> Any:
        base: Any = next(base for base in CONTAINERS if issubclass(kind, base))
        made = base.__new__(kind)
        if base is collections.deque and longest is not None:
            base.__init__(made, (), longest)
        return made

    def read(self, obj: Any) -> State:
        slots = slots_of(obj)
        shared = hasattr(obj, "__dict__") and shares_attributes(obj)
        attributes = getattr(obj, "__dict__", {})
        return (
            type(obj),
            (attributes, ()) if shared else (tuple(attributes), tuple(attributes.values())),
            (tuple(name for name, _ in slots), tuple(value for _, value in slots)),
            contents_of(obj),
        )

    def same(self, obj: Any, state: State) -> bool:
        if isinstance(obj, set) and len(obj) == len(state[3]) and not all(map(is_, set.__iter__(obj), state[3])):
            return False
        return super().same(obj, state)

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        kind, attributes, slots, contents = state
        yield kind
        yield from chain.from_iterable(attributes) if type(attributes[0]) is tuple else (attributes[0],)
        yield from chain.from_iterable(slots)
        if isinstance(obj, dict):
            yield from chain(*contents[:2])
            yield contents[2]
        else:
            yield from contents

    def holds_for_good(self, obj: Any, old: State, identities: set[int]) -> bool:
        return issubclass(old[0], FIXED) and any(id(part) in identities for part in old[3])

    def apply(self, obj: Any, content: Any) -> None:
        kind, attributes, slots, contents = content
        if type(obj) is not kind:
            obj.__class__ = kind
        if hasattr(obj, "__dict__"):
            set_attributes(obj, *attributes)
        set_slots(obj, dict(zip(*slots, strict=True)))
        fill(obj, contents)


def slots_of(obj: Any) -> list[tuple[str, Any]]:
    """The slots that have a value."""
    missing = object()
    return [(n, v) for n in slot_names(type(obj)) if (v := getattr(obj, n, missing)) is not missing]


def set_slots(obj: Any, values: dict[str, Any]) -> None:
    """Other slots have no value then."""
    for name in slot_names(type(obj)):
        if name in values:
            object.__setattr__(obj, name, values[name])
        elif hasattr(obj, name):
            object.__delattr__(obj, name)


def contents_of(obj: Any) -> tuple[Any, ...]:
    """Uses the base class's methods, because a subclass may iterate differently."""
    base: Any = next((base for base in (*CONTAINERS, *FIXED) if isinstance(obj, base)), None)
    if base is None:
        return ()
    if issubclass(base, dict):
        return tuple(base.keys(obj)), tuple(base.values(obj)), getattr(obj, "default_factory", None)
    return tuple(base.__iter__(obj))


def fill(obj: Any, contents: tuple[Any, ...]) -> None:
    base: Any = container_base(obj)
    if base is None:
        return
    base.clear(obj)
    if issubclass(base, dict):
        keys, values, factory = contents
        for key, value in zip(keys, values, strict=True):
            base.__setitem__(obj, key, value)
        if isinstance(obj, collections.defaultdict):
            obj.default_factory = factory
    else:
        (base.update if base is set else base.extend)(obj, contents)


def holds_contents(obj: Any) -> bool:
    """Whether it is a container, also one whose contents are fixed."""
    return isinstance(obj, (*CONTAINERS, *FIXED))


def container_base(obj: Any) -> type | None:
    return next((base for base in CONTAINERS if isinstance(obj, base)), None)


def is_exception_type(kind: type) -> bool:
    return issubclass(kind, BaseException)


class ExceptionKind(Kind):
    """Arguments, attributes, cause, context, and what the traceback shows. The frames are not sent."""

    name = "exception"
    changes = True

    @property
    def anchors(self) -> tuple[Any, ...]:
        return self._anchors

    def __init__(self, here: Any) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.apply, self.link)

    def new(self, kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
        return kind.__new__(kind, *arguments)

    def reduce(self, obj: Any) -> Any:
        new, apply, _ = self._anchors
        kind: Any = type(obj)
        own = kind.__reduce__ not in _WITHOUT_LOSS and not isinstance(obj, OSError)
        if own or kind.__reduce_ex__ is not object.__reduce_ex__:
            return self._with_links(obj, obj.__reduce_ex__(5))
        arguments = obj.__reduce__()[1] if isinstance(obj, OSError) else obj.args
        return new, (type(obj), tuple(arguments)), self.content(obj, self.read(obj)), None, None, apply

    def _with_links(self, obj: Any, form: Any) -> Any:
        """What its own pickling includes, and what no pickling of exceptions includes."""
        if type(form) is not tuple or any(part is not None for part in form[3:]):
            return None
        state = form[2] if len(form) > 2 else None
        return *form[:2], (state, *self.content(obj, self.read(obj))[-2:]), None, None, self._anchors[2]

    def link(self, obj: Any, content: Any) -> None:
        state, links, trace = content
        if state is not None:
            obj.__setstate__(state)
        obj.__cause__, obj.__context__, obj.__suppress_context__ = links
        obj.__traceback__ = traces.rebuilt(trace, self.here.namespace, obj.__traceback__)

    def read(self, obj: Any) -> State:
        kind: Any = type(obj)
        names = (*slot_names(kind), *fields(kind))
        slots = tuple((name, value) for name in names if (value := getattr(obj, name, None)) is not None)
        link = (obj.__cause__, obj.__context__, obj.__suppress_context__)
        return type(obj), obj.args, tuple(obj.__dict__.items()), slots, link, traces.places(obj.__traceback__)

    def content(self, obj: Any, state: State) -> Any:
        return *state[:-1], traces.described(state[-1])

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        kind, arguments, attributes, slots, link, _ = state
        yield kind
        yield arguments
        yield from chain(chain.from_iterable(attributes), chain.from_iterable(slots), link)

    def apply(self, obj: Any, content: Any) -> None:
        kind, arguments, attributes, slots, *links = content
        if type(obj) is not kind:
            obj.__class__ = kind
        obj.args = arguments
        obj.__dict__.clear()
        obj.__dict__.update(attributes)
        for name, value in slots:
            setattr(obj, name, value)
        self.link(obj, (None, *links))


@functools.lru_cache(maxsize=1024)
def fields(kind: type[BaseException]) -> tuple[str, ...]:
    """Fields of a built-in exception besides its arguments, such as a NameError's `name`."""
    bases = (base for base in kind.__mro__ if base.__module__ == "builtins")
    own = chain.from_iterable(vars(base).items() for base in bases if base not in _WITH_ARGUMENTS_ONLY)
    members = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return tuple(name for name, part in own if isinstance(part, members))


_WITHOUT_LOSS = frozenset((BaseException.__reduce__, AttributeError.__reduce__))
"""Methods of pickling that add nothing to the fields. From Python 3.12 on, AttributeError has one that leaves out
`obj` (https://github.com/python/cpython/issues/103352).
"""
_WITH_ARGUMENTS_ONLY = (object, BaseException, BaseExceptionGroup)
