"""Settings of the process: environment, folder, module path, arguments, the interpreter's limits, the locale."""

from __future__ import annotations

import gc
import locale
import os
import re
import sys
import time
from typing import Any

from baton_shim.base.mirror import to_here, to_home
from baton_shim.surroundings.kind import Kind, changed, edited, edits, rows

# Each machine, login and service has its own values; a change takes effect only where it is made.
OF_THE_MACHINE = re.compile(
    r"(?!BATON_TRACEBACKS$)"
    r"(?:PATH|HOME|USER|LOGNAME|SHELL|HOSTNAME|HOST|PWD|OLDPWD|SHLVL|_|TMPDIR|TMP|TEMP|TERM|COLUMNS|LINES|DISPLAY|"
    r"MPLBACKEND|VIRTUAL_ENV|TF_FORCE_GPU_ALLOW_GROWTH|XLA_PYTHON_CLIENT_PREALLOCATE|"
    r"(?:BATON|CONDA|CUDA|DBUS|DYLD|HIP|JPY|JUPYTER|JUPYTERHUB|KERNEL|KUBERNETES|LD|NVIDIA|PYTHON|ROCR|SLURM|SSH|"
    r"WAYLAND|XDG)_.*|PYTHON[A-Z]*)"
)


def environment(_: Any) -> dict[Any, Any]:
    return dict(vars(os.environ)["_data"])  # as bytes: decoding a hundred of them takes longer than everything else


def environment_at_start() -> dict[Any, Any]:
    """The environment that the system gave to this process."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    except OSError:
        return environment(None)
    return {name: value for name, found, value in entries if found}


def of_everywhere(before: Any, now: Any) -> Any:
    new, gone = changed(before, now)
    return {name: new[name] for name in new if is_sent(name)}, [name for name in gone if is_sent(name)]


def is_sent(name: bytes) -> bool:
    return OF_THE_MACHINE.fullmatch(os.fsdecode(name)) is None


def give_environment(_: Any, difference: Any) -> None:
    new, gone = difference
    for name, value in new.items():
        os.environb[name] = value
    for name in gone:
        os.environb.pop(name, None)
    if "polars.config" in sys.modules and any(name.startswith(b"POLARS_") for name in (*new, *gone)):
        reread = getattr(sys.modules["polars.config"].plr, "config_reload_env_vars", None)  # polars 2 keeps them
        if reread is not None:
            reread()


def folder(_: Any) -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


def change_folder(_: Any, wanted: str | None) -> list[str] | None:
    here = folder(_)
    if wanted is None or wanted == here:
        return None
    try:
        os.chdir(wanted)
    except OSError as error:
        return [f"The working directory stays {here!r}, because {wanted!r}: {error.strerror}"]
    return None


def search_path(_: Any) -> list[Any]:
    return [to_home(entry) for entry in sys.path]


def installed_path() -> list[Any]:
    """The path without the folders of a program's own modules."""
    return [entry for entry in search_path(None) if is_of_python(str(entry))]


def is_of_python(entry: str) -> bool:
    shared = os.path.basename(entry) in ("site-packages", "dist-packages")
    return shared or entry.startswith((f"{sys.base_prefix}{os.sep}lib", f"{sys.prefix}{os.sep}lib"))


def give_search_path(_: Any, difference: Any) -> None:
    sys.path[:] = [to_here(entry) for entry in edited(search_path(_), difference)]


def give_arguments(_: Any, arguments: list[str]) -> None:
    sys.argv[:] = arguments


def set_locale(_: Any, name: str) -> None:
    locale.setlocale(locale.LC_ALL, name)


LIMITS = "The interpreter's limits"

ENVIRONMENT = Kind(
    "environment", "The environment", "os", environment, give_environment, difference=of_everywhere, whole=False
)
PATH = Kind("sys.path", "sys.path", "sys", search_path, give_search_path, difference=edits, whole=False)
PROCESS: tuple[Kind, ...] = (
    ENVIRONMENT,
    Kind("folder", "The working directory", "os", folder, change_folder),
    PATH,
    # From its first cell on, a session has the notebook kernel's own arguments.
    Kind("sys.argv", "sys.argv", "sys", lambda _: [*sys.argv], give_arguments, None),
    *rows(
        LIMITS,
        "sys",
        ("recursion", "getrecursionlimit", "setrecursionlimit"),
        ("digits", "get_int_max_str_digits", "set_int_max_str_digits"),
        ("switches", "getswitchinterval", "setswitchinterval"),
    ),
    *rows(
        LIMITS,
        "gc",
        ("collector", "isenabled", lambda _, on: gc.enable() if on else gc.disable()),
        ("thresholds", "get_threshold", lambda _, thresholds: gc.set_threshold(*thresholds)),
    ),
    *rows(LIMITS, "socket", ("timeout", "getdefaulttimeout", "setdefaulttimeout")),
    # The zone is that of the environment, which is set first.
    *rows(LIMITS, "time", ("zone", lambda _: (*time.tzname, time.timezone), lambda _, zone: time.tzset())),
    *rows("The locale", "locale", ("all", lambda _: locale.setlocale(locale.LC_ALL), set_locale)),
)
