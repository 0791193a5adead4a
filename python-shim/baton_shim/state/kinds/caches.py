"""`functools.lru_cache` around a function of the notebook, with its contents.

The cache is implemented in C and shows its contents only to the garbage collector. To fill one, it is called while its
function is temporarily replaced by one that returns the known results.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, State, alike

_MOST_HITS = 100_000  # a larger count would cost too much to repeat


class CachedFunctionKind(Kind):
    name = "cached function"
    changes = True
    hashes = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.new, self.set_state)

    def ours(self, obj: Any) -> bool:
        return getattr(obj, "__module__", None) == "__main__"

    def new(self, parameters: dict[str, Any], function: Callable[..., Any]) -> Any:
        return functools.lru_cache(**parameters)(function)

    def reduce(self, obj: Any) -> Any:
        if not self.ours(obj):
            return None
        new, set_state = self._anchors
        return new, (obj.cache_parameters(), obj.__wrapped__), self.read(obj), None, None, set_state

    def read(self, obj: Any) -> State:
        if not self.ours(obj):
            return None
        info = obj.cache_info()
        return tuple(_attributes(obj).items()), (info.hits, info.misses), _remembered(obj)

    def parts(self, obj: Any, state: State) -> Iterator[Any]:
        if state is None:
            return
        attributes, _, remembered = state
        yield obj.__wrapped__
        yield from (value for _, value in attributes)
        for arguments, keywords, result in remembered:
            yield from arguments
            yield from (value for _, value in keywords)
            yield result

    def apply(self, obj: Any, content: Any) -> None:
        self.set_state(obj, content)

    def set_state(self, obj: Any, state: Any) -> None:
        attributes, (hits, misses), remembered = state
        kept = {name: value for name, value in obj.__dict__.items() if name in _OWN}
        obj.__dict__.clear()
        obj.__dict__.update(kept)
        obj.__dict__.update(attributes)
        if not alike((tuple(obj.cache_info()[:2]), _remembered(obj)), ((hits, misses), remembered)):
            _fill(obj, hits, misses, remembered)


_OWN = ("cache_parameters", "__wrapped__")
Remembered = tuple[tuple[Any, ...], tuple[tuple[str, Any], ...], Any]


def _attributes(obj: Any) -> dict[str, Any]:
    return {name: value for name, value in obj.__dict__.items() if name not in _OWN}


def _remembered(obj: Any) -> tuple[Remembered, ...]:
    """Arguments, keywords and result of each call, the least recently used first."""
    held = gc.get_referents(obj)  # its type, key, result, an internal type, …, the cache, the function, the mark, …
    function = obj.__wrapped__
    place = next((n for n in range(len(held) - 1, 0, -1) if held[n] is function), None)
    if place is None:
        return ()
    cache, mark = held[place - 1], held[place + 1]
    parameters = obj.cache_parameters()
    if parameters["maxsize"] is None:
        pairs = list(cache.items())
    elif cache:
        first = int(held[0] is type(obj))
        step = (place - 1 - first) // len(cache)
        pairs = [(held[n], held[n + 1]) for n in range(first, place - 1, step)]
    else:
        pairs = []
    return tuple((*_call(key, mark, parameters["typed"]), result) for key, result in pairs)


def _call(key: Any, mark: object, typed: bool) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    """The inverse of how the cache creates its keys."""
    if type(key) is not tuple:
        return (key,), ()
    place = next((n for n, part in enumerate(key) if part is mark), None)
    if place is None:
        return key[: len(key) // 2] if typed else key, ()
    rest = key[place + 1 :]
    if typed:  # positional values, pairs, and as many types as there are values
        rest = rest[: (len(rest) - place) // 3 * 2]
    return key[:place], tuple(zip(rest[::2], rest[1::2], strict=True))


def _fill(obj: Any, hits: int, misses: int, remembered: tuple[Remembered, ...]) -> None:
    function = obj.__wrapped__
    if type(function) is not types.FunctionType:  # it keeps everything that it knows here, which is correct, too
        return
    obj.cache_clear()
    code = function.__code__
    results = [result for *_, result in reversed(remembered)]
    function.__code__ = _code_like(code, results)
    try:
        for _ in range(max(0, misses - len(remembered))):
            try:
                obj()
            except LookupError:
                pass
        function.__code__ = _code_like(code, results, gives=True)
        for arguments, keywords, _ in remembered:
            obj(*arguments, **dict(keywords))
    finally:
        function.__code__ = code
    if remembered:
        arguments, keywords, _ = remembered[-1]
        for _ in range(min(hits, _MOST_HITS)):
            obj(*arguments, **dict(keywords))


def _code_like(code: types.CodeType, results: list[Any], gives: bool = False) -> types.CodeType:
    """Code for a function with these free variables that fails, or returns the next result."""

    def fails(*_: Any, **__: Any) -> Any:
        raise LookupError

    def next_result(*_: Any, **__: Any) -> Any:
        return "results".pop()  # type: ignore[attr-defined]

    made = next_result.__code__ if gives else fails.__code__
    constants = tuple(results if part == "results" else part for part in made.co_consts)
    return made.replace(co_freevars=code.co_freevars, co_consts=constants)
