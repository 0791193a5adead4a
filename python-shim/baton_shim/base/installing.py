"""Runs inside the `pip` and `uv` that a `%%gpu` cell starts from the session's overlay (`packages.py`).

Each Python of the overlay imports this first (`baton.pth`), so `python -m pip` is noticed, too.

**Invariant:** pip and uv behave as usual, except that a worker may refuse. Any other Python loses no time.
"""

from __future__ import annotations

import os
import re
import sys
from itertools import pairwise

from baton_shim.base.packages import NO_NETWORK, REFUSAL, canonical, remember, shared

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
CHANGES = ("install", "uninstall", "sync")
OF_SOURCES = {
    **dict.fromkeys(("-i", "--index-url", "--default-index"), "--index-url"),
    **dict.fromkeys(("--extra-index-url", "--index"), "--extra-index-url"),
    **dict.fromkeys(("-f", "--find-links"), "--find-links"),
    "--trusted-host": "--trusted-host",
}
"""Options whose value says where packages come from, and the name that both pip and uv accept for each."""
SETTINGS = (
    "/etc/pip.conf",
    "/etc/xdg/pip/pip.conf",
    "~/.config/pip/pip.conf",
    "/etc/uv/uv.toml",
    "~/.config/uv/uv.toml",
)
HERE = re.compile(r"(?:index|find[-_]links)[-_a-z]*[ \t]*=(?![ \t]*[\"']?https?:)", re.IGNORECASE)
"""A setting or option that names another place for packages than the internet."""


def begin(may_install: bool, has_network: bool) -> None:
    words = words_of_pip(sys.orig_argv[1:])
    if words is not None:
        watch(words, may_install, has_network)


def pip() -> None:
    try:
        from pip._internal.cli.main import main
    except ImportError:
        refuse("pip is not installed on this worker\nhint: ask your course staff to install it\n")
    sys.exit(main())


def uv(program: str, may_install: bool, has_network: bool) -> None:
    words = sys.argv[1:]
    if "pip" in words:
        command = words[words.index("pip") + 1 :]
        watch(command, may_install, has_network)
        if "install" in command and "--no-deps" not in command:
            words += ["--override", without_shared(command)]
    os.execv(program, [program, *words])


def without_shared(words: list[str]) -> str:
    """Writes a file of overrides that keeps uv from installing what the worker has, and returns its path.

    uv does not see the worker's packages from here. A package that the command names is not left out.
    """
    named = {canonical(match[0]) for word in (*words, *lines_of_requirements(words)) if (match := NAME.match(word))}
    outside = [entry for entry in sys.path if not entry.startswith(sys.prefix + os.sep)]
    path = os.path.join(sys.prefix, "shared.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{name} ; python_version < '0'\n" for name in sorted(shared(outside) - named))
    return path


def lines_of_requirements(words: list[str]) -> list[str]:
    lines: list[str] = []
    for option, place in pairwise(words):
        if option in ("-r", "--requirement", "--requirements") and os.path.isfile(place):
            with open(place, encoding="utf-8", errors="replace") as file:
                lines += file
    return lines


def words_of_pip(words: list[str]) -> list[str] | None:
    """What follows `pip` on this Python's command line; None if it runs something else."""
    for number, word in enumerate(words):
        if word == "-m":
            return words[number + 2 :] if words[number + 1 : number + 2] == ["pip"] else None
        if not word.startswith("-"):
            return words[number + 1 :] if os.path.basename(word) in ("pip", "pip3") else None
    return None


def watch(words: list[str], may_install: bool, has_network: bool) -> None:
    command = next((word for word in words if not word.startswith("-")), "")
    if command in CHANGES and not may_install:
        refuse(REFUSAL)
    if command == "install":
        if not has_network and needs_network(words[words.index(command) + 1 :]):
            refuse(NO_NETWORK)
        remember(sys.prefix, sources(words))


def refuse(reason: str) -> None:
    sys.stderr.write(reason)
    sys.stderr.flush()
    os._exit(os.EX_NOPERM)


def needs_network(words: list[str]) -> bool:
    """Whether the command names a package that is not here and that can come only from the internet."""
    given = ["=".join((*option, "")[:2]) for option in sources(words)]
    if any(map(HERE.search, [*given, *map("=".join, os.environ.items()), *map(text_of, SETTINGS)])):
        return False
    here = shared(sys.path)
    wanted = [word for word in (*words, *lines_of_requirements(words)) if not os.path.exists(word)]
    named = {canonical(match[0]) for word in wanted if (match := NAME.match(word))}
    return bool(named - here)


def text_of(file: str) -> str:
    try:
        with open(os.path.expanduser(file), encoding="utf-8", errors="replace") as content:
            return content.read()
    except OSError:
        return ""


def sources(words: list[str]) -> list[tuple[str, ...]]:
    """The options that say where packages come from, with absolute paths."""
    found: list[tuple[str, ...]] = []
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if word == "--no-index":
            found.append((word,))
        elif option in OF_SOURCES:
            place = value if equals else next(rest, "")
            path = place if "://" in place or not os.path.exists(place) else os.path.abspath(place)
            found.append((OF_SOURCES[option], path))
    return found
