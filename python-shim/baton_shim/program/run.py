"""`python -m baton train.py …`: like `python train.py …`, but `with gpu:` works in the program's own file.

Python compiles a program's file before any of it runs, so an import in the file would come too late.

**Invariant:** the program finds nothing of this module: not in `sys.argv`, the path, `__main__` or its tracebacks.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, TracebackType
from typing import Any, NamedTuple

USAGE = "Usage: python -m baton PROGRAM.py [ARGUMENT ...]\n       python -m baton -m MODULE [ARGUMENT ...]\n"


class Program(NamedTuple):
    name: str
    """The program's name as `sys.argv` shows it."""
    path: str
    """Its file."""
    folder: str
    """The folder in which it finds its own modules first."""
    spec: Any = None
    """The spec of a module; None for a script."""


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return
    if not arguments or (arguments[0].startswith("-") and (arguments[0] != "-m" or len(arguments) < 2)):
        sys.stderr.write(USAGE)
        sys.exit(2)
    program = module(arguments[1]) if arguments[0] == "-m" else script(arguments[0])
    sys.argv[:] = [program.name, *arguments[2 if program.spec else 1 :]]
    if sys.path:
        sys.path[0] = program.folder
    namespace = as_main(program)
    try:
        exec(compiled(program), namespace)
    except BaseException as error:
        hook, own = sys.excepthook, error.__traceback__
        sys.excepthook = lambda kind, raised, trace: hook(kind, raised, without_first(raised, trace, own))
        raise


def script(path: str) -> Program:
    return Program(path, os.path.abspath(path), os.path.dirname(os.path.realpath(path)))


def module(name: str) -> Program:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        sys.exit(f"{sys.executable}: No module named {name}, or it has no source")
    return Program(spec.loader.path, spec.loader.path, os.getcwd(), spec)


def as_main(program: Program) -> dict[str, Any]:
    """`__main__` as Python makes it for such a program."""
    namespace = vars(sys.modules["__main__"])
    for name in set(namespace) - {"__name__", "__builtins__", "__doc__"}:
        del namespace[name]
    loader = SourceFileLoader("__main__", program.path)
    package = program.spec.parent if program.spec is not None else None
    namespace.update(
        __doc__=None, __file__=program.path, __cached__=None, __loader__=loader, __package__=package, __annotations__={}
    )
    namespace["__spec__"] = program.spec
    return namespace


def compiled(program: Program) -> CodeType:
    from baton_shim.base.with_gpu import transformed

    try:
        with open(program.path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(
            f"{sys.executable}: can't open file {program.path!r}: [Errno {error.errno}] {error.strerror}\n"
        )
        sys.exit(2)
    options: dict[str, Any] = {"dont_inherit": True}
    compile(source, program.path, "exec", **options)  # code that Python itself refuses
    tree: Any = compile(source, program.path, "exec", ast.PyCF_ONLY_AST, **options)
    try:
        tree = transformed(tree, lambda name: False, cell=True)
    except SyntaxError as error:
        lines = source.decode(errors="replace").splitlines()
        text = lines[error.lineno - 1] if error.lineno is not None and error.lineno <= len(lines) else ""
        raise SyntaxError(error.msg, (program.path, error.lineno, error.offset, text)) from None
    code: CodeType = compile(tree, program.path, "exec", **options)
    return code


def without_first(error: BaseException, trace: TracebackType | None, own: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of `python -m` and of this module."""
    while trace is not None and trace is not own:
        trace = trace.tb_next
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    return trace
