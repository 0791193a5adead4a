"""Names in annotations that are text. `typing.get_type_hints`, `singledispatch` and others evaluate such text.

**Invariant:** no annotation is evaluated, and no attribute look-up runs the student's code.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import Any, ForwardRef, Literal, get_args, get_origin

from baton_shim.base.bytecode import constants
from baton_shim.base.examine import of_type

Annotations = tuple[tuple[tuple[str, Any], ...] | None, Any]


def annotations_of(function: FunctionType) -> Annotations:
    """The annotations; or, from Python 3.14 on, the function that computes them when they are first read.

    Computing them may fail on a name that is bound later. So this looks for the dict among the function's referents,
    where it is if the annotations have been computed or set (PEP 649).
    """
    annotate = getattr(function, "__annotate__", None)
    if annotate is None:
        return tuple(function.__annotations__.items()), None
    others = (function.__globals__, function.__builtins__, function.__dict__, function.__kwdefaults__)
    for part in gc.get_referents(function):
        if type(part) is dict and not any(part is other for other in others):
            return tuple(part.items()), None
    return None, annotate


def names_annotating(value: FunctionType | type) -> frozenset[str]:
    """The names in the text of a function's or class's annotations."""
    if type(value) is FunctionType:
        items, annotate = annotations_of(value)
        found: Iterable[object] = (annotation for _, annotation in items or ())
    else:
        content = of_type(value, "__dict__")
        annotate, annotations = content.get("__annotate_func__"), content.get("__annotations__")
        found = annotations.values() if type(annotations) is dict else ()
    computed = constants(annotate.__code__) if type(annotate) is FunctionType else ()
    texts = (text for annotation in (*found, *computed) for text in texts_in(annotation))
    return frozenset[str]().union(*map(names_in_text, texts))


def texts_in(annotation: object) -> Iterator[str]:
    if type(annotation) is str:
        yield annotation
    elif type(annotation) is ForwardRef:
        yield annotation.__forward_arg__
    elif of_type(type(annotation), "__module__") in ("types", "typing") and get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            yield from texts_in(argument)


@lru_cache(maxsize=4096)
def names_in_text(text: str) -> frozenset[str]:
    try:
        return frozenset(names_in_tree(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()


def names_in_tree(annotation: ast.AST) -> Iterator[str]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from names_in_text(node.value)
