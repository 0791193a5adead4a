"""Tracebacks, reduced to what they show.

The real frames stay where they ran. The other kernel has frames with the same file, lines, columns and function names,
so a traceback prints and raises as before. Their only variables are stand-ins for the arguments.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Mapping
from itertools import islice
from typing import Any

from baton_shim.base import mirror
from baton_shim.state.refusal import StandIn

Place = tuple[types.CodeType, str, int, int]
"""Code, module, instruction index and line."""
Where = tuple[int, str, tuple[int | None, ...]]
"""Index among the described codes, module, and the first and last line and column."""
Described = tuple[list[tuple[Any, ...]], list[Where]]
"""Plain values: what is shown of each code, and the positions of the frames."""

_SHOWN = (
    "co_filename co_name co_qualname co_firstlineno co_argcount co_posonlyargcount co_kwonlyargcount co_varnames"
).split()
_MORE_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_VARIABLES = "this variable belongs to a frame, which is in the other kernel"


def places(trace: types.TracebackType | None) -> tuple[Place, ...]:
    """From the outermost frame to the innermost. Compares by value and does not keep a frame alive."""
    found: list[Place] = []
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename != mirror.__file__:
            found.append((frame.f_code, frame.f_globals.get("__name__", ""), trace.tb_lasti, trace.tb_lineno))
        trace = trace.tb_next
    return tuple(found)


def described(found: tuple[Place, ...]) -> Described:
    codes = {id(code): code for code, *_ in found}  # by id, because equal codes may be from different files
    numbers = {identity: number for number, identity in enumerate(codes)}
    known: dict[tuple[int, ...], tuple[int | None, ...]] = {}
    found_at: list[Where] = []
    for code, module, instruction, line in found:
        at = id(code), instruction, line
        if at not in known:
            known[at] = _where(code, instruction, line)
        found_at.append((numbers[id(code)], module, known[at]))
    return [_describe(code) for code in codes.values()], found_at


def _describe(code: types.CodeType) -> tuple[Any, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += sum(bool(code.co_flags & one) for one in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    file, *shown, variables = (getattr(code, name) for name in _SHOWN)
    return mirror.to_home(file), *shown, variables[:count], code.co_flags & _MORE_ARGUMENTS


def _where(code: types.CodeType, instruction: int, line: int) -> tuple[int | None, ...]:
    found = next(islice(code.co_positions(), instruction // 2, None), ()) if instruction >= 0 else ()
    return found if found and found[0] == line else (line, None, None, None)


def rebuilt(
    description: Described, main: Mapping[str, Any], present: types.TracebackType | None = None
) -> types.TracebackType | None:
    """A traceback of these places. If one is `present`, its unchanged frames are kept."""
    codes, rest = description[0], list(description[1])
    here: list[types.TracebackType] = []
    while present is not None:
        here.append(present)
        present = present.tb_next
    trace = None
    while rest and here and _is_at(here[-1], codes, rest[-1]):
        trace = here.pop()
        rest.pop()
    made: dict[Where, types.FrameType] = {}
    for where in reversed(rest):
        number, module, span = where
        if where not in made:
            made[where] = _frame(codes[number], module, span, main)
        trace = types.TracebackType(trace, made[where], 0, span[0] or 0)
    return trace


def without_variables(trace: types.TracebackType | None, main: Mapping[str, Any]) -> types.TracebackType | None:
    """A traceback that looks the same but keeps nothing alive."""
    return rebuilt(described(places(trace)), main)


def _is_at(trace: types.TracebackType, codes: list[tuple[Any, ...]], where: Where) -> bool:
    alone = types.TracebackType(None, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    return described(places(alone)) == ([codes[where[0]]], [(0, *where[1:])])


def _this() -> Any:
    return "sys"._getframe()  # type: ignore[attr-defined]


def _frame(shown: tuple[Any, ...], module: str, span: tuple[int | None, ...], main: Mapping[str, Any]) -> Any:
    """A frame of a function that has returned, with all instructions at this place."""
    file, *attributes, variables, more = shown
    code = _this.__code__
    code = code.replace(
        **dict(zip(_SHOWN, (mirror.to_here(file), *attributes, variables), strict=True)),
        co_consts=tuple(sys if constant == "sys" else constant for constant in code.co_consts),
        co_nlocals=len(variables),
        co_flags=code.co_flags | more,
        co_linetable=_table(len(code.co_code) // 2, (span[0] or 0) - shown[_SHOWN.index("co_firstlineno")], span),
    )
    names = main if module == "__main__" else vars(sys.modules.get(module, types.ModuleType(module)))
    stand_in = StandIn(_VARIABLES)
    named = variables[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    function = types.FunctionType(code, names)  # type: ignore[arg-type]
    return function(*[stand_in] * code.co_argcount, **dict.fromkeys(named, stand_in))


def _table(count: int, first: int, span: tuple[int | None, ...]) -> bytes:
    """A line table for `count` instructions at one place; see CPython's Objects/locations.md.

    `first` is the line, relative to that of the code.
    """
    line, end_line, column, end_column = span
    known = line is not None and end_line is not None and column is not None and end_column is not None
    table = bytearray()
    for start in range(0, count, 8):
        table.append(0x80 | (14 if known else 13) << 3 | min(8, count - start) - 1)
        delta = 0 if start else first
        table += _number(-2 * delta + 1 if delta < 0 else 2 * delta)
        if known:
            table += _number(end_line - line) + _number(column + 1) + _number(end_column + 1)  # type: ignore[operator]
    return bytes(table)


def _number(value: int) -> bytes:
    """Six bits per byte, the lowest first."""
    found = bytearray()
    while value >= 0x40:
        found.append(value & 0x3F | 0x40)
        value >>= 6
    return bytes([*found, value])
