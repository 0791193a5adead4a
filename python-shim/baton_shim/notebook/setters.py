"""Finds calls in ordinary cells that set something in a library and that Baton does not carry; each is reported once.

The hidden state of libraries cannot be seen in general. So the cells' code is read for statements that call a function
of an imported module with literal arguments, if its name says that it sets something. If a later `%%gpu` cell uses that
library, one line names the call and `%%both`.

**Invariant:** looks only at code and at the namespace; a cell that cannot be read is skipped.
"""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from baton_shim.base.closure import own_module
from baton_shim.surroundings.registered import is_noted

SETS = re.compile(r"(set|enable|register|use)_\w+|seed|\w*policy\w*")
MAY_SET = re.compile(r"set_|enable_|register_|use_|seed|policy")
READS = re.compile(r"get_\w+|is_\w+|has_\w+|list_\w+")
# Library seeds are carried by `surroundings.randomness`; a verbosity is the level of a logger.
ELSEWHERE = re.compile(r"set_\w*(seed|verbosity)\w*")
# For these libraries, Baton carries everything that such calls set, or they set something in another of these.
CARRIED = frozenset(
    "IPython ipywidgets jax keras matplotlib matplotlib_inline mpmath numpy pandas scipy seaborn sklearn sympy".split()
)
# For other libraries, only these calls, and the calls that `registered.py` records.
CARRIED_CALLS = frozenset(
    {
        "torch.autograd.set_detect_anomaly",
        "torch.cuda.set_device",  # there is one device
        "torch.set_anomaly_enabled",
        "torch.set_default_device",
        "torch.set_default_dtype",
        "torch.set_deterministic_debug_mode",
        "torch.set_float32_matmul_precision",
        "torch.set_grad_enabled",
        "torch.set_num_threads",
        "torch.set_printoptions",
        "torch.set_rng_state",
        "torch.use_deterministic_algorithms",
    }
)
NOT_CARRIED_CALLS = frozenset({"polars.set_random_seed"})


class Setter(NamedTuple):
    library: str
    call: str
    """As the cell wrote it."""


class Setters:
    """The setters of one notebook: which were called, and which have been reported."""

    def __init__(self) -> None:
        self._called: dict[Setter, int] = {}
        self._said: set[Setter] = set()

    def cell_ended(self, number: int, code: str, namespace: Mapping[str, Any], both: bool) -> None:
        """`both`: the sessions run this cell, too."""
        for setter in setters(code, namespace):
            if both:
                self._called.pop(setter, None)
            elif setter not in self._said:
                self._called[setter] = number

    def lines(self, names: Iterable[str], code: str, namespace: Mapping[str, Any]) -> list[str]:
        """The hints for a `%%gpu` cell with this code and these names."""
        if not self._called:
            return []
        used = libraries(names, code, namespace)
        found = {setter: number for setter, number in self._called.items() if setter.library in used}
        self._said.update(found)
        for setter in found:
            del self._called[setter]
        return [
            f"hint: {setter.call}() of In[{number}] applies only in the notebook; "
            "write %%both on the first line of that cell and run it again if this cell needs it"
            for setter, number in found.items()
        ]


def setters(code: str, namespace: Mapping[str, Any]) -> list[Setter]:
    """`code`: that of a cell, as IPython transformed it."""
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    calls = (one.value for one in statements if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call))
    found = (setter_of(call, namespace) for call in calls if all(map(is_literal, arguments(call))))
    return [setter for setter in found if setter is not None]


def arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def setter_of(call: ast.Call, namespace: Mapping[str, Any]) -> Setter | None:
    """None for a method, which belongs to its object, and for what Baton carries."""
    path = ast.unparse(call.func)
    first, *parts = path.split(".")
    name = parts[-1] if parts else first
    if not re.fullmatch(r"\w+(\.\w+)*", path) or not SETS.fullmatch(name) or READS.fullmatch(name):
        return None
    found: Any = namespace.get(first)
    if parts and not isinstance(found, types.ModuleType):
        return None
    full = ".".join((found.__name__, *parts)) if parts else f"{getattr(found, '__module__', None)}.{name}"
    for part in parts:
        if not isinstance(found, types.ModuleType):
            return None
        found = getattr(found, part, None)
    if not isinstance(found, (types.FunctionType, types.BuiltinFunctionType)) or is_noted(found):
        return None
    if own_module(found) is not None:  # its variables travel
        return None
    library = full.partition(".")[0]
    if library in ("__main__", "None", *CARRIED) or library in sys.stdlib_module_names:
        return None
    if full not in NOT_CARRIED_CALLS and (full in CARRIED_CALLS or ELSEWHERE.fullmatch(name)):
        return None
    return Setter(library, path)


def libraries(names: Iterable[str], code: str, namespace: Mapping[str, Any]) -> set[str]:
    """The libraries that a cell uses, according to its names and imports."""
    found: set[str] = set()
    for name in names:
        value = namespace.get(name)
        of_value = (value.__name__,) if isinstance(value, types.ModuleType) else (module_of(value),)
        modules = (*of_value, type(value).__module__)
        found.update(str(module).partition(".")[0] for module in modules)
    for line in re.finditer(r"^[ \t]*(?:import|from)[ \t]+(\w+)", code, re.MULTILINE):
        found.add(line[1])
    return found


def module_of(value: Any) -> Any:
    return value.__module__ if isinstance(value, (type, types.FunctionType)) else None
