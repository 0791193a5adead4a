"""Which names of the notebook a cell may use.

In: the cell's source, IPython's transformation of it, and the notebook's namespace. Out: the names that the session
needs before the cell runs. Most names are found in the bytecode, because it knows scopes as the interpreter does. The
syntax tree adds names that are hidden in strings: magics, shell commands, `eval`. Calls are followed into the functions
and classes of the notebook (`closure.py`). A name that the analysis missed is requested when the cell looks it up
(`name_faults.py`). A name that the cell binds before it can read it is not needed (`first_uses.py`).

**Invariant:** none of the student's code runs here, and nothing is changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

from baton_shim.base.annotations import names_in_tree
from baton_shim.base.block_scopes import EVALUATES_TEXT
from baton_shim.base.bytecode import code_names
from baton_shim.base.closure import names_in_query, reach
from baton_shim.notebook.first_uses import FirstUses
from baton_shim.state.session_names import of_ipython

# Attributes that are the namespace itself. A look-up in it cannot request a missing name.
NAMESPACES = frozenset({"user_ns", "user_module", "user_global_ns", "f_globals", "f_locals", "__globals__"})
# Code that loads one of these may look up names that appear only in strings.
LOOK_UP = frozenset({"eval", "exec", "globals", "locals", "vars", "dir", "builtins", "__builtins__"})
# Attributes that concern the error of an earlier cell.
LAST_ERROR = frozenset({"last_exc", "last_type", "last_value", "last_traceback", "print_last"})
# Functions and methods whose string argument is Python.
CODE_CALLS = frozenset({"eval", "exec"})
# Magics whose argument is Python, after their options.
CODE_MAGICS = frozenset("time timeit prun memit mprun lprun pyinstrument snakeviz scalene".split())
# Cell magics whose body is in another language.
FOREIGN_MAGICS = frozenset(
    "bash sh script html HTML js javascript latex markdown svg SVG writefile file perl ruby sql R julia".split()
)
# Text that may be a call.
CALL = re.compile(r"\A\s*[^\W\d][\w.]*\s*\(")
# The source of an earlier cell. A notebook has one for each cell, so they count only if a cell names one.
INPUT = re.compile(r"_i{1,3}|_i\d+")
OF_EVERY_MODULE = re.compile(r"__(?:name|doc|package|loader|spec|builtin|builtins|annotations|session)__")
# Magics that use and bind only variables named in their line and, as Python, in their body.
PLAIN_MAGICS = (
    CODE_MAGICS
    | FOREIGN_MAGICS
    | frozenset(
        "capture matplotlib load_ext reload_ext autoreload pip conda uv cd pwd ls env set_env precision config both "
        "gpu gpu_config gpu_jobs gpu_load gpu_output gpu_reset gpu_save gpu_states gpu_status gpu_undo".split()
    )
)
NAME = re.compile(r"(?<![\w.'\"])[^\W\d]\w*")
EXPANSION = re.compile(r"\{([^{}]+)\}|\$\$?([^\W\d][\w.]*)")

Transform = Callable[[str], str]


@dataclass
class CellNames:
    """What the text of a cell shows about the names that the cell uses."""

    loads: set[str] = field(default_factory=set)
    """Names that may be read before the cell has bound them."""
    deletes: set[str] = field(default_factory=set)
    """Names that may be deleted, by `del` or at the end of `except ... as name`."""
    certain: set[str] = field(default_factory=set)
    """Those of these names that the cell certainly reads before it binds them."""
    stores: set[str] = field(default_factory=set)
    hinted: set[str] = field(default_factory=set)
    """Words of a magic's line or of a string that may be names."""
    everything: bool = False
    """The code looks into a namespace itself."""
    dynamic: bool = False
    """The code may look up names that appear only in strings."""
    star_import: bool = False
    """The code may bind any name."""
    last_error: bool = False
    """The code looks at the error of the last cell that had one."""
    magics: set[str] = field(default_factory=set)
    empty: bool = True


@dataclass(frozen=True)
class Needed:
    """What a cell needs of the notebook, once its calls have been followed."""

    names: frozenset[str]
    """Names that exist and that the code uses."""
    wished: frozenset[str]
    """Names that exist and that the code may use: they are sent if possible."""
    certain: frozenset[str]
    """Those of `names` that the cell certainly uses: if one cannot be sent, the cell does not run."""
    deleted: frozenset[str]
    """Names that exist and that the cell may delete but cannot read: the session needs only to know that they exist."""
    stores: frozenset[str]
    """Names that the cell's code binds."""
    files: frozenset[str]
    """File names of the functions that were followed."""
    dynamic: bool
    """The code may look up names that appear only in strings."""


def needed(
    cell: CellNames, namespace: Mapping[str, Any], visible: set[str], objects: Collection[object] = ()
) -> Needed:
    """What a cell with these names needs.

    `visible`: the names that it may refer to. `objects`: what it may also use without naming it.
    """
    visible = visible | {name for name in cell.loads & namespace.keys() if INPUT.fullmatch(name)}
    direct = cell.loads & visible
    around = reach((), namespace, objects)
    wished = ((cell.hinted | around.names) & visible) - direct
    reached = reach(direct | wished, namespace)
    dynamic = cell.dynamic or reached.dynamic or not LOOK_UP.isdisjoint(cell.loads)
    everything = cell.everything or reached.everything
    if everything or dynamic:
        wished |= ((of_student(visible) if everything else set()) | (cell.deletes & visible)) - direct
        reached = reach(direct | wished, namespace)
    called = reached.names & visible
    return Needed(
        names=frozenset(direct | called),
        wished=frozenset(wished - direct - called),
        certain=frozenset((direct & cell.certain) - reached.binds),
        deleted=frozenset((cell.deletes & visible) - direct - called - wished),
        stores=frozenset(cell.stores),
        files=frozenset(reached.files | around.files),
        dynamic=dynamic or reached.dynamic,
    )


def visible_names(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> set[str]:
    """The student's names and IPython's results; `hidden` holds what IPython itself defined, with the values."""
    # Most names are IPython's, several for each cell.
    own = {name for name, value in tuple(namespace.items()) if hidden.get(name, hidden) is not value}
    results = {name for name in namespace.keys() - own if of_result(name)}
    return results | {name for name in own if isinstance(name, str) and not OF_EVERY_MODULE.fullmatch(name)}


def of_student(names: set[str]) -> set[str]:
    """The names without those of IPython's results."""
    return {name for name in names if not of_ipython(name)}


@lru_cache(maxsize=1 << 16)  # a notebook has thousands of `_i7` in the end, and each cell checks all of them
def of_result(name: str) -> bool:
    """`_`, `__`, `_7`, `Out`: names that IPython binds for the student's use."""
    rest = name.lstrip("_")
    return not rest or name in ("Out", "In", "_oh", "_ih") or (rest.isdecimal() and name[1:] == rest)


def of_cell(source: str, transform: Transform) -> CellNames:
    """The names of a cell; `transform` is that of IPython. Raises SyntaxError for a cell that would not run."""
    return of_tree(parse(transform(source)), transform)


def of_tree(tree: ast.Module, transform: Transform) -> CellNames:
    """The names of a cell that has been parsed already."""
    names = CellNames()
    names.empty = not tree.body
    names.certain = add_tree(tree, transform, names).certain
    return names


@lru_cache(maxsize=64)  # a block in a loop is analysed once
def of_function(code: CodeType, source: str) -> CellNames:
    """Names of a function that is called, whose `source` is known."""
    found = code_names(code)
    names = CellNames(loads=set(found.loads), stores=set(found.stores), deletes=set(found.deletes), empty=False)
    add_words(ast.parse(source), str, names)
    return names


def parse(source: str) -> ast.Module:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree: ast.Module = compile(source, "<cell>", "exec", flags, dont_inherit=True)
    return tree


def add_tree(tree: ast.Module, transform: Transform, names: CellNames) -> FirstUses:
    code = compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    found = code_names(code, module_level=True)
    uses = FirstUses(tree, code_names(code).stores)
    names.loads |= found.loads - uses.overwritten()
    names.stores |= found.stores
    names.deletes |= found.deletes
    add_words(tree, transform, names)
    return uses


def add_words(tree: ast.Module, transform: Transform, names: CellNames) -> None:
    """Adds names that are hidden in strings, and uses of the namespace itself."""
    for node in ast.walk(tree):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                names.hinted.update(names_in_tree(annotation))
        if isinstance(node, ast.Call):
            add_call(node, transform, names)
        elif isinstance(node, ast.Attribute):
            names.everything |= node.attr in NAMESPACES
            names.last_error |= node.attr in LAST_ERROR
        elif isinstance(node, ast.Constant):
            names.hinted.update(names_in_query(node.value))
        elif isinstance(node, ast.Import):
            names.everything |= any(alias.name == "__main__" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.star_import |= any(alias.name == "*" for alias in node.names)


def add_call(call: ast.Call, transform: Transform, names: CellNames) -> None:
    function = call.func
    if is_ipython_call(function):
        assert isinstance(function, ast.Attribute)
        texts = constant_texts(call.args)
        names.dynamic |= len(texts) < len(call.args)
        add_ipython_call(function.attr, texts, transform, names)
    else:
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        arguments = [*call.args, *(word.value for word in call.keywords)]
        for text in constant_texts(arguments):
            if called in CODE_CALLS:
                add_source(text, transform, names)
            if CALL.search(text):
                names.hinted |= names_of_call(text)
        # f-strings and concatenations have their text in several constants. Names in those of `eval` can be requested.
        parts = (node for argument in arguments for node in ast.walk(argument))
        for text in constant_texts(arguments if getattr(function, "id", "") in CODE_CALLS else parts):
            if EVALUATES_TEXT.fullmatch(called) or "~" in text:
                names.hinted |= set(NAME.findall(text))


def names_of_call(text: str) -> set[str]:
    """Names in a text that is a call in Python, such as the job of `jobs.new("train(model)")`."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    is_call = isinstance(tree.body, ast.Call)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if is_call else set()


def constant_texts(nodes: Iterable[ast.AST]) -> list[str]:
    """The texts of those of the nodes that are string constants."""
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def is_ipython_call(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Call)
        and isinstance(function.value.func, ast.Name)
        and function.value.func.id == "get_ipython"
    )


def add_ipython_call(method: str, texts: list[str], transform: Transform, names: CellNames) -> None:
    if method in ("run_line_magic", "run_cell_magic", "magic") and texts:
        name, line, *body = [*texts, ""] if len(texts) == 1 else texts
        name = name.strip("%")
        names.magics.add(name)
        names.hinted |= set(NAME.findall(line))
        names.dynamic |= name == "run" and "-i" in line.split()
        names.last_error |= name == "tb"
        if name in CODE_MAGICS:
            names.dynamic |= EXPANSION.search(line) is not None
            add_source_after_options(line, transform, names)
        for text in body:
            if name not in FOREIGN_MAGICS:
                add_source(text, transform, names)
    elif method in ("system", "getoutput"):
        for text in texts:
            names.hinted |= set(expanded_names(text))
    else:  # run_cell, ev, ex, push, pinfo and anything else that takes text
        names.dynamic = True
        for text in texts:
            add_source(text, transform, names)
            names.hinted |= set(NAME.findall(text))


def expanded_names(command: str) -> Iterator[str]:
    """`{expression}` and `$name` in a shell command."""
    for expression, name in EXPANSION.findall(command):
        yield from NAME.findall(expression or name)


def add_source_after_options(line: str, transform: Transform, names: CellNames) -> None:
    """Finds the statement in `-n 10 -o statement`: the longest rest that parses, as no option's value is Python."""
    rest = line.strip()
    while rest and not add_source(rest, transform, names):
        rest = rest.partition(" ")[2].lstrip()


def add_source(source: str, transform: Transform, names: CellNames) -> bool:
    """Returns whether it is Python."""
    try:
        tree = parse(transform(source))
        add_tree(tree, transform, names)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True
