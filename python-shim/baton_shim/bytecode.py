"""Which global names a piece of bytecode loads, stores and deletes.

**Invariant:** reads code objects only.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

_EXTENDED_ARGUMENT = dis.opmap["EXTENDED_ARG"]
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]  # the lowest bit of its argument is a flag
_IN_NAMESPACE = {dis.opmap[name]: name.partition("_")[0] for name in ("LOAD_NAME", "STORE_NAME", "DELETE_NAME")}
_GLOBAL = {
    dis.opmap[name]: name.partition("_")[0]
    for name in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
    if name in dis.opmap
}


class CodeNames(NamedTuple):
    loads: frozenset[str]
    stores: frozenset[str]
    deletes: frozenset[str]


@lru_cache(maxsize=4096)
def code_names(code: CodeType, module_level: bool = False) -> CodeNames:
    """With all nested functions. What a class body binds is its own; what it loads may be global."""
    found: dict[str, set[str]] = {"LOAD": set(), "STORE": set(), "DELETE": set()}
    for part in nested(code):
        own = module_level and part is code
        for kind, name, is_global in accesses(part):
            if kind == "LOAD" or is_global or own:
                found[kind].add(name)
    return CodeNames(frozenset(found["LOAD"]), frozenset(found["STORE"]), frozenset(found["DELETE"]))


def nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def accesses(code: CodeType) -> Iterator[tuple[str, str, bool]]:
    extended = 0
    instructions = code.co_code
    for operation, argument in zip(instructions[::2], instructions[1::2], strict=True):
        if operation == _EXTENDED_ARGUMENT:
            extended = (extended | argument) << 8
            continue
        argument |= extended
        extended = 0
        kind = _GLOBAL.get(operation)
        if kind is not None:
            yield kind, code.co_names[argument >> 1 if operation == _LOAD_GLOBAL else argument], True
        elif operation in _IN_NAMESPACE:
            yield _IN_NAMESPACE[operation], code.co_names[argument], False
