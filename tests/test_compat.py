"""`compat.py` lists everything undocumented that Baton uses of other packages, and moved places are reported."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from baton_shim.base import compat
from baton_shim.base.compat import Part
from end_to_end import Kernel

PACKAGE = Path(__file__).parent.parent / "python-shim/baton_shim"
PARTS = (*(one for one in vars(compat).values() if isinstance(one, Part)), *compat.OF_CELLS, *compat.VIRTUAL.values())

OF_PYTHON = frozenset(
    "_abc_impl _actions _asyncio _base_executable _bootstrap_inner _contextvars _csv _current_frames _data _exit "
    "_fields_ _fmt _get_dump _getframe _initializing _io _length_ _local _lru_cache_wrapper _name _Pointer _replace "
    "_signal _SimpleCData _slotnames _sre _style _target _thread _tkinter _type_ _walk_tb_with_full_positions "
    "_startTime _Environ _value_ _name_ _sort_order_ _inverted_ _clear_cache _new_member_ _generate_next_value_ "
    "_use_args_ _member_type_ _member_names_ _member_map_ _value2member_map_ _hashable_values_ _unhashable_values_ "
    "_unhashable_values_map_ _value_repr_ _flag_mask_ _singles_mask_ _all_bits_ _boundary_ "
    "_FuncPtr _handle _flags_ _restype_ _argtypes_ _objects _b_base_ _dlopen _Unpickler _be _le".split()
)
"""Names of CPython's own library."""
OF_IPYTHON = frozenset("_ih _oh _dh _ _repr_latex_ _repr_png_ _repr_svg_ _repr_disabled".split())
"""Names that IPython documents: variables of a notebook, and methods by which objects display themselves."""
NAMED = frozenset({"_internal", "_pydevd_bundle", "_sym_sizes_capsule", "_sym_strides_capsule"})
"""`pip`, which runs as a separate program and reports errors itself; a package whose threads are debugpy's; pointers of
torch that are not sent, and that older versions do not have."""

SUBCLASSED = {
    "IPython.core.interactiveshell": "InteractiveShell",
    "IPython.core.events": "EventManager",
    "IPython.core.formatters": "DisplayFormatter",
    "IPython.core.displayhook": "DisplayHook",
    "ipykernel.ipkernel": "IPythonKernel",
    "ipykernel.kernelapp": "IPKernelApp",
    "ipykernel.iostream": "IOPubThread",
    "comm.base_comm": "CommManager",
    "jupyter_client.session": "Session",
}
"""Classes whose objects get replaced methods."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != "" and "_baton" not in name


@cache
def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py") if path.name != "compat.py"}


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in sources().items():
        for node in ast.walk(tree):
            yield path, node


def names_in(node: ast.AST) -> list[str]:
    """Names in a piece of code: an attribute, a text that consists of names, an import."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w. ]+", node.value):
        return re.split(r"[. ]", node.value)
    if isinstance(node, ast.ImportFrom):
        return [*(node.module or "").split("."), *(one.name for one in node.names)]
    if isinstance(node, ast.Import):
        return [part for one in node.names for part in one.name.split(".")]
    return []


@cache
def replaced_methods() -> frozenset[str]:
    found = (vars(importlib.import_module(module))[name] for module, name in SUBCLASSED.items())
    return frozenset(name for kind in found for name in dir(kind) if callable(getattr(kind, name, None)))


@cache
def own() -> frozenset[str]:
    """Names that the package itself defines, and that no class of IPython or ipykernel has."""
    defined = set()
    for _, node in nodes():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for part in (part for target in targets for part in ast.walk(target)):
                if isinstance(part, ast.Name):
                    defined.add(part.id)
                elif isinstance(part, ast.Attribute) and ast.unparse(part.value) in ("self", "made"):
                    defined.add(part.attr)
    return frozenset(defined - replaced_methods())


def listed() -> set[str]:
    return {name for part in PARTS for place in part.needs for name in re.split(r"[.:]", place)}


def test_every_private_name_that_is_touched_is_listed() -> None:
    known = listed() | own() | OF_PYTHON | OF_IPYTHON | NAMED
    unlisted = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {name}"  # type: ignore[attr-defined]
        for path, node in nodes()
        for name in names_in(node)
        if is_private(name) and name not in known
    ]
    assert not unlisted, "\n".join(unlisted)


def test_every_method_that_is_replaced_is_listed() -> None:
    unlisted = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(target)}"
        for path, node in nodes()
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) not in ("self", "cls", "home", "sys")
        if target.attr in replaced_methods() - listed() and not target.attr.startswith("__")
    ]
    assert not unlisted, "\n".join(unlisted)


def test_nothing_is_listed_that_is_not_touched() -> None:
    used = {name for _, node in nodes() for name in names_in(node)}
    unused = [place for part in PARTS for place in part.needs if re.split(r"[.:]", place)[-1] not in used]
    assert unused == []


def test_what_is_listed_is_there() -> None:
    needed = [place for part in PARTS if part.without for place in part.needs]
    for place in needed:
        importlib.import_module(place.partition(":")[0])
    assert [place for place in needed if not compat.is_there(place)] == []
    assert [place for place in needed if compat.is_there(f"{place}_that_nobody_has")] == []


def test_the_lists_of_the_test_are_true() -> None:
    """Names of CPython and of IPython would hide others of the same name, so the lists contain only names in use."""
    used = {name for _, node in nodes() for name in names_in(node)}
    assert sorted((OF_PYTHON | OF_IPYTHON | NAMED) - used) == []


MOVED = {
    "options of pandas": (
        "import pandas",
        "del pandas._config.config._registered_options",
        "warning: Baton is not compatible with the installed pandas {version}: options of pandas are not sent with "
        "%%gpu cells (pandas:_config.config._registered_options is gone)",
    ),
    "callbacks of comms": (
        "import comm.base_comm, comm",
        "comm.base_comm.CommManager.unregister_comm = property(lambda self: self)\n"
        "del comm.base_comm.CommManager.unregister_comm",
        "warning: Baton is not compatible with the installed comm {version}: widgets of %%gpu cells do not answer "
        "(comm.base_comm:CommManager.unregister_comm is gone)",
    ),
}


@pytest.mark.parametrize("what", MOVED)
def test_a_cell_says_once_what_a_library_lacks(new_kernel: object, what: str) -> None:
    importing, moving, line = MOVED[what]
    library = importing.split()[-1]
    kernel: Kernel = new_kernel()  # type: ignore[operator]
    assert kernel.run(f"{importing}\n{moving}").ok().stderr == ""
    version = kernel.run(f"print({library}.__version__)").ok().stdout.strip()
    assert kernel.gpu("x = 1").ok().stderr.splitlines()[0] == line.format(version=version)
    assert "is not compatible" not in kernel.gpu("x += 1\nx").ok().stderr
    assert kernel.run("x").ok().value == "2"
