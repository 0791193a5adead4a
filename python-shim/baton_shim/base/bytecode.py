"""Which global names a piece of bytecode loads, stores and deletes.

**Invariant:** only reads code objects.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import resolve_name
from itertools import chain
from types import CodeType
from typing import Any, NamedTuple

_EXTENDED_ARGUMENT = dis.opmap["EXTENDED_ARG"]
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]  # the lowest bit of its argument is a flag
_IMPORT = dis.opmap["IMPORT_NAME"]
_BETWEEN = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"})
_IN_NAMESPACE = {dis.opmap[name]: name.partition("_")[0] for name in ("LOAD_NAME", "STORE_NAME", "DELETE_NAME")}
_GLOBAL = {
    dis.opmap[name]: name.partition("_")[0]
    for name in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
    if name in dis.opmap
}


class CodeNames(NamedTuple):
    """The global names that some code reads, binds and deletes."""

    loads: frozenset[str]
    stores: frozenset[str]
    deletes: frozenset[str]


@lru_cache(maxsize=4096)
def code_names(code: CodeType, module_level: bool = False) -> CodeNames:
    """Includes all nested functions. Names that a class body binds are its own; those that it loads may be global."""
    found: dict[str, set[str]] = {"LOAD": set(), "STORE": set(), "DELETE": set()}
    for part in nested(code):
        own = module_level and part is code
        for kind, name, is_global in accesses(part):
            if kind == "LOAD" or is_global or own:
                found[kind].add(name)
    return CodeNames(frozenset(found["LOAD"]), frozenset(found["STORE"]), frozenset(found["DELETE"]))


@lru_cache(maxsize=4096)
def imports(code: CodeType, package: str) -> frozenset[str]:
    """The modules that it imports, also in nested functions, and what may be parts of packages.

    `package`: the one to which the code belongs, for relative imports.
    """
    found = set[str]()
    for part in nested(code):
        if _IMPORT not in part.co_code[::2]:
            continue
        module = ""
        instructions = [each for each in dis.get_instructions(part) if each.opname not in _BETWEEN]
        for level, _, each in zip(instructions, instructions[1:], instructions[2:], strict=False):
            if each.opname == "IMPORT_NAME":
                module = absolute("." * level.argval + each.argval, package)
                found |= {module, module.partition(".")[0]}
            elif each.opname == "IMPORT_FROM":
                found.add(f"{module}.{each.argval}")
    return frozenset(found)


def absolute(name: str, package: str) -> str:
    """The full name of a module; empty if the relative name leads out of all packages, because its import fails."""
    try:
        return resolve_name(name, package)
    except ImportError:
        return ""


def nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def constants(code: CodeType) -> Iterator[object]:
    return chain.from_iterable(part.co_consts for part in nested(code))


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


_CALLS = frozenset({"CALL", "CALL_FUNCTION"})
_SUBSCRIPTS = frozenset({"BINARY_SUBSCR", "DELETE_SUBSCR"})
_READ_ONE = frozenset({"get", "pop", "setdefault"})
NO_KEYS: frozenset[str] = frozenset()


@lru_cache(maxsize=256)
def keys_of_call(code: CodeType, offset: int) -> frozenset[str] | None:
    """Which entries of a call's result are used, as in `globals()["x"]`; None: possibly all.

    The function is loaded at `offset`. Raises LookupError if it is not called there, or is called with arguments.
    """
    found = [each for each in dis.get_instructions(code) if each.opname not in _BETWEEN]
    place = next((n for n, each in enumerate(found) if each.offset == offset), len(found))
    before = found[place - 1] if place else None
    call, first, second = [*found[place + 1 : place + 4], None, None, None][:3]
    if call is None or call.opname not in _CALLS or call.arg != 0:
        raise LookupError(offset)
    if first is None or second is None:
        return None
    if first.opname == "CONTAINS_OP" and is_text(before):
        return frozenset({before.argval})  # type: ignore[union-attr]
    if is_text(first) and second.opname == "STORE_SUBSCR":
        return NO_KEYS
    if is_text(first) and (second.opname in _SUBSCRIPTS or second.argrepr == "[]"):
        return frozenset({first.argval})
    if first.opname in ("LOAD_ATTR", "LOAD_METHOD") and first.argval in _READ_ONE and is_text(second):
        return frozenset({second.argval})
    return None


def is_text(instruction: Any) -> bool:
    return instruction is not None and instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, str)
