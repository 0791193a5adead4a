"""Objects that a library has exactly one of, such as `os.environ`, `sys.path` and the generator behind
`random.randint`.

Each kernel has its own, and the relevant state is sent separately (`surroundings`). So a name that a notebook took from
the library, or a method bound to the object, refers to the other kernel's object there.
"""

from __future__ import annotations

import argparse
import builtins
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from baton_shim.state.kinds.base import Here, Kind, imported

_TYPES = {
    "builtins": ("object",),  # a mark that is compared by identity
    "ctypes": ("LibraryLoader",),
    "os": ("_Environ",),
    "random": ("Random",),
    "numpy.random.mtrand": ("RandomState",),
    "matplotlib": ("RcParams",),
    "matplotlib.cm": ("ColormapRegistry",),
    "matplotlib.colors": ("ColorSequenceRegistry",),
    "matplotlib.font_manager": ("FontManager",),
    "matplotlib.units": ("Registry",),
    "reprlib": ("Repr",),
    "sys": ("flags", "float_info", "hash_info", "int_info", "thread_info", "version_info"),
    "mimetypes": ("MimeTypes",),
    "pandas._config.config": ("DictWrapper",),
    "jax._src.config": ("Config",),
    "mpmath.ctx_mp": ("MPContext",),
    "mpmath.ctx_fp": ("FPContext",),
    "mpmath.ctx_iv": ("MPIntervalContext",),
    "sympy.core.cache": ("LazyFunction",),
    "sympy.polys.domains.integerring": ("IntegerRing",),
    "sympy.polys.domains.rationalfield": ("RationalField",),
    "sympy.polys.domains.realfield": ("RealField",),
    "sympy.polys.domains.complexfield": ("ComplexField",),
    "sympy.polys.domains.gaussiandomains": ("GaussianIntegerRing", "GaussianRationalField"),
    "sympy.polys.domains.expressiondomain": ("ExpressionDomain",),
    "sympy.polys.domains.expressionrawdomain": ("ExpressionRawDomain",),
}


def of_interpreter() -> list[Any]:
    """Lists, dicts and a text that Python has once, in the same order on both ends. Contents are not sent."""
    of_sys = sys.path, sys.argv, sys.modules, sys.meta_path, sys.path_hooks, sys.path_importer_cache
    return [*of_sys, vars(builtins), argparse.SUPPRESS]


def may_be_singleton(kind: type) -> bool:
    return kind.__name__ in _TYPES.get(kind.__module__, ()) or is_scattered(kind)


def is_scattered(kind: type) -> bool:
    """Whether any module may have objects of this kind: marks, and JAX's primitives, which JAX looks up by identity."""
    return kind is object or issubclass(kind, imported("jax._src.core", "Primitive"))


def place_of(obj: Any) -> tuple[str, str] | None:
    """The module that has it, which is its class's or a parent of that, and the name there."""
    if is_scattered(type(obj)):
        return SCATTERED.place_of(obj)
    for module in modules_above(type(obj).__module__):
        for name, value in tuple(vars(sys.modules[module]).items()):
            if value is obj:
                return module, name
    return None


def modules_above(name: str) -> Iterator[str]:
    while name:
        if name in sys.modules:
            yield name
        name = name.rpartition(".")[0]


class Scattered:
    """The places of such objects: `functools._initial_missing`, `jax.lax.sin_p`."""

    def __init__(self) -> None:
        self._looked_at = 0
        self._places: dict[int, tuple[str, str]] = {}

    def place_of(self, obj: object) -> tuple[str, str] | None:
        if len(sys.modules) != self._looked_at:
            self._looked_at = len(sys.modules)
            modules = [
                (name, vars(one)) for name, one in tuple(sys.modules.items()) if isinstance(one, types.ModuleType)
            ]
            self._places = {
                id(value): (name, attribute)
                for name, held in modules
                if held.get("__name__") != "__main__"  # it has a second name in `sys.modules`, `__mp_main__`
                for attribute, value in tuple(held.items())
                if is_scattered(type(value))
            }
        module, name = self._places.get(id(obj), ("", ""))
        return (module, name) if getattr(sys.modules.get(module), name, None) is obj else None


SCATTERED = Scattered()


class SingletonKind(Kind):
    name = "singleton"
    blind = True

    def __init__(self, here: Here) -> None:
        super().__init__(here)
        self._anchors = (self.find,)
        self._known: dict[int, tuple[Any, tuple[str, str]]] = {}

    def is_one(self, obj: Any) -> bool:
        if id(obj) not in self._known:
            place = place_of(obj)
            if place is None:
                return False
            self._known[id(obj)] = obj, place
        return True

    def reduce(self, obj: Any) -> Any:
        return self._anchors[0], place_of(obj) or self._known[id(obj)][1]

    def find(self, module: str, name: str) -> Any:
        return getattr(importlib.import_module(module), name)
