"""A session that works in a mirror of the notebook's folder: the notebook's paths refer to the mirror's files.

Relative paths need no change, because the working directory is in the mirror. Absolute paths below the notebook's
folder are translated to the mirror when they are passed to Python itself or opened by `ctypes`, unless they belong to
the Python that runs the session, which may be installed below that path on the worker's machine. The working directory
is reported under the notebook's path. Other programs and C libraries get no translation; for them a path has to be
relative. A Python that `multiprocessing` starts finds the mirror's modules and works in its folder. An opened file
keeps the name that was asked for, and tracebacks do not show this module.

In a sandbox the mirror itself is at the notebook's path if it can be mounted there, and then nothing is replaced.

**Invariant:** without a mirror, nothing is replaced, and both translations return their argument.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import io
import os
import site
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from baton_shim.base.late import when_imported

SPAWN = "multiprocessing.spawn"
NOTEBOOK_FOLDER = "BATON_NOTEBOOK_FOLDER"
MIRROR_FOLDER = "BATON_MIRROR_FOLDER"

# By function: the names of the parameters that are paths.
PATHS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        "open stat lstat access listdir scandir mkdir rmdir remove unlink chmod chown lchown utime truncate chdir "
        "statvfs mkfifo mknod getxattr setxattr listxattr removexattr execv execve".split(),
        ("path",),
    ),
    "rename": ("src", "dst"),
    "replace": ("src", "dst"),
    "link": ("src", "dst"),
    "symlink": ("src", "dst"),
    "readlink": ("path",),
}


class Places(NamedTuple):
    home: str
    here: str
    python: tuple[str, ...]
    """The folders of this Python below the notebook's folder. The mirror does not have them."""


_places: Places | None = None


def to_here(path: Any) -> Any:
    """The notebook's path, as this process reaches it."""
    if _places is None or any(is_in(path, folder) for folder in _places.python):
        return path
    return moved(path, _places.home, _places.here)


def to_home(path: Any) -> Any:
    """The path as the notebook calls it."""
    return path if _places is None else moved(path, _places.here, _places.home)


def moved(path: Any, from_: str, to: str) -> Any:
    return to + path[len(from_) :] if is_in(path, from_) else path


def is_in(path: Any, folder: str) -> bool:
    return isinstance(path, str) and (path == folder or path.startswith(folder + "/"))


def hidden_part(path: str) -> str | None:
    """The first hidden name in the path below the notebook's folder."""
    if _places is None:
        return None
    within = os.path.relpath(os.path.abspath(path), _places.home).split(os.sep)
    if within[0] == os.pardir:
        return None
    return next((name for name in within if name.startswith(".") and name != os.curdir), None)


def work_in_mirror() -> None:
    """Called once, before importing anything else that opens files."""
    global _places
    home, here = os.environ.pop(NOTEBOOK_FOLDER, None), os.environ.pop(MIRROR_FOLDER, None)
    if home is None or here is None:
        return
    home = home.rstrip("/")
    folders = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    if site.ENABLE_USER_SITE:
        folders.add(site.getuserbase())
    _places = Places(home, here, tuple(folder for folder in folders if is_in(folder, home) and folder != home))
    if home == here:
        return
    before = {name: getattr(os, name) for name in (*PATHS, "getcwd", "getcwdb") if hasattr(os, name)}
    open_before = io.open
    for name, parameters in PATHS.items():
        if hasattr(os, name):
            replace(name, translating(getattr(os, name), parameters))
    dynamic: Any = ctypes
    dynamic._dlopen = translating(dynamic._dlopen, ("name",))
    builtins.open = io.open = named(translating(io.open, ("file",)))
    os.scandir = scandir(os.scandir)
    os.readlink = answering(os.readlink)
    os.getcwd = answering(os.getcwd)
    os.getcwdb = lambda: os.fsencode(os.getcwd())
    replaced = {id(function): getattr(os, name) for name, function in before.items()}
    replace_in_loaded_modules(replaced | {id(open_before): io.open})
    when_imported(SPAWN, start_children_here)
    if SPAWN in sys.modules:
        start_children_here()


def replace_in_loaded_modules(functions: dict[int, Any]) -> None:
    """`functions`: by the ids of those that they replace.

    A zygote has loaded IPython and libraries before, some of which have imported such functions by name.
    """
    for name, module in list(sys.modules.items()):
        if name in ("builtins", "io", "os", "posix", "_io") or name.partition(".")[0] == "baton_shim":
            continue
        contents = getattr(module, "__dict__", {})
        for key, value in list(contents.items()):
            if id(value) in functions:
                contents[key] = functions[id(value)]


def start_children_here() -> None:
    """A child that is a Python of its own knows the mirror's paths only."""
    spawn: Any = sys.modules[SPAWN]
    prepare = spawn.get_preparation_data

    @functools.wraps(prepare)
    def prepared(name: str) -> dict[str, Any]:
        said: dict[str, Any] = prepare(name)
        said["sys_path"] = [to_here(path) for path in said["sys_path"]]
        return said | {key: to_here(said[key]) for key in ("orig_dir", "dir", "init_main_from_path") if key in said}

    spawn.get_preparation_data = prepared


def replace(name: str, function: Callable[..., Any]) -> None:
    before = getattr(os, name)
    setattr(os, name, function)
    for features in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        if before in features:
            features.add(function)


def translating(function: Any, parameters: tuple[str, ...]) -> Any:
    count = len(parameters)

    @functools.wraps(function)
    def translated(*arguments: Any, **named: Any) -> Any:
        if named:
            named.update((name, translate(named[name])) for name in parameters if name in named)
        try:
            return function(*map(translate, arguments[:count]), *arguments[count:], **named)
        except OSError as error:
            for attribute in ("filename", "filename2"):
                if getattr(error, attribute) is not None:  # setting None would still change the message
                    setattr(error, attribute, to_home(getattr(error, attribute)))
            raise

    return translated


def named(function: Any) -> Any:
    """The file's name is the path that was passed."""

    @functools.wraps(function)
    def opened(file: Any, *arguments: Any, **named: Any) -> Any:
        found = function(file, *arguments, **named)
        if translate(file) is not file:
            lowest = getattr(found, "buffer", found)
            getattr(lowest, "raw", lowest).name = file
        return found

    return opened


def translate(path: Any) -> Any:
    if type(path) is int or path is None:
        return path
    try:
        text = os.fspath(path)
    except TypeError:  # the function itself reports wrong arguments
        return path
    found = to_here(os.fsdecode(text))
    if found == os.fsdecode(text):
        return path
    return os.fsencode(found) if isinstance(text, bytes) else found


def answering(function: Any) -> Any:
    """Translates the path that the function returns."""

    @functools.wraps(function)
    def answered(*arguments: Any, **named: Any) -> Any:
        path = function(*arguments, **named)
        return os.fsencode(to_home(os.fsdecode(path))) if isinstance(path, bytes) else to_home(path)

    return answered


def scandir(function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def scanned(path: Any = ".") -> Any:
        entries = function(path)
        return Entries(entries, path) if type(path) is not int and translate(path) is not path else entries

    return scanned


class Entries:
    """The entries of a folder that was named by its path in the notebook."""

    def __init__(self, entries: Any, folder: Any) -> None:
        self._entries = entries
        self._folder = os.fspath(folder)

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        entry = next(self._entries)
        return Entry(entry, os.path.join(self._folder, entry.name))

    def __enter__(self) -> Entries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._entries.close()


class Entry:
    """An `os.DirEntry` under the notebook's path."""

    def __init__(self, entry: Any, path: Any) -> None:
        self._entry = entry
        self.path = path
        self.name = entry.name

    def __fspath__(self) -> Any:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __repr__(self) -> str:
        return repr(self._entry)
