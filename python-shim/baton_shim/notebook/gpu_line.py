"""The line after `%%gpu`, and the same options as arguments of `gpu(...)`: how they are declared and read."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from baton_shim.notebook.options import Options, gpu_bytes, gpu_model, milliseconds, names, variable

_ARGUMENTS: tuple[Callable[[Any], Any], ...] = (
    argument("--quiet", action="store_true", help="hide the queue position and the worker of the cell"),
    argument(
        "--timeout", metavar="DURATION", help="stop the cell after it has run for this time, such as 90s, 5m or 1h30m"
    ),
    argument("--gpu", metavar="MODEL", help="run only on this GPU, such as a100"),
    argument(
        "--mem",
        metavar="SIZE",
        help="run only where the session may use this much GPU memory, such as 8G, and let it use no more",
    ),
    argument("--env", metavar="NAME", help="run in this environment of the course"),
    argument("--priority", choices=("normal", "low"), default="normal", help="low: batch work; other cells run first"),
    argument(
        "--keep", nargs="+", metavar="NAMES", help="also send these variables, although the code does not name them"
    ),
    argument("--drop", nargs="+", metavar="NAMES", help="do not send or return these variables"),
    argument(
        "--background",
        nargs="?",
        const="",
        metavar="NAME",
        help="run the cell in the background; the variable NAME gets a handle with result() and cancel()",
    ),
    argument(
        "--no-return",
        action="store_true",
        help="return only the output; the next cell starts again from the notebook's variables",
    ),
)


def with_options(magic: Callable[..., Any]) -> Any:
    """Declares the options of `%%gpu` on the magic."""
    for declare in reversed(_ARGUMENTS):
        magic = declare(magic)
    return magic_arguments()(magic)


@functools.cache
def without_magic() -> Any:
    """A parser with the same options, for `gpu(...)` in a program."""

    @with_options
    def gpu(line: str) -> None:
        pass

    return gpu


def read(line: str, *, quiet: bool = False, magic: Any = None) -> Options:
    """Raises UsageError."""
    magic = magic or without_magic()
    if line.strip() and not line.lstrip().startswith("-"):
        raise UsageError("Only options may follow %%gpu on its line\nhint: code goes on the lines below %%gpu")
    try:
        options = parse_argstring(magic, line)
    except UsageError as error:
        raise UsageError(f"{error}\nhint: {hint(line, magic.parser)}") from None
    except ValueError as error:  # of shlex
        raise UsageError(f"{error} in the options of %%gpu\nhint: names need no quotes") from None
    return Options(
        quiet=options.quiet or quiet,
        keep=names(options.keep, "--keep"),
        drop=names(options.drop, "--drop"),
        returns=not options.no_return,
        background=variable(options.background),
        timeout_ms=milliseconds(options.timeout),
        gpu_memory_bytes=gpu_bytes(options.mem),
        gpu=gpu_model(options.gpu),
        environment=options.env,
        priority=options.priority,
    )


def hint(line: str, parser: Any) -> str:
    """What to do about options that cannot be read."""
    import difflib

    known = [name for action in parser._actions for name in action.option_strings]
    unknown = (word.partition("=")[0] for word in line.split() if word.startswith("-"))
    for word in unknown:
        if word not in known and (near := difflib.get_close_matches(word, known, 1)):
            return f"did you mean {near[0]}?"
    return "'%%gpu?' lists the options"


def of_arguments(given: dict[str, Any], parse: Callable[[str], Options] = read) -> Options:
    """Raises ValueError."""
    if "background" in given:
        raise ValueError("'background' is not an option here\nhint: call an @gpu function with f.background(...)")
    try:
        return parse(line_of(given))
    except UsageError as error:
        raise ValueError(str(error)) from None


def line_of(given: dict[str, Any]) -> str:
    """The options as they would be written after `%%gpu`."""
    words: list[str] = []
    for name, value in given.items():
        if value is None or value is False:
            continue
        several = value if isinstance(value, (list, tuple, set, frozenset)) else () if value is True else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, several)]
    return shlex.join(words)
