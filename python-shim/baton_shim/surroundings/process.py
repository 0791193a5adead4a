"""The process: environment, folder, where modules are looked for, arguments, the interpreter's limits, the locale."""

from __future__ import annotations

import gc
import locale
import os
import re
import socket
import sys
import time
from typing import Any

from baton_shim.base.mirror import to_here, to_home
from baton_shim.surroundings.kind import Kind, Settings, edited, edits

# Each machine, login and service has its own of these; a change of one stays where it was made.
OF_THE_MACHINE = re.compile(
    r"(?!BATON_TRACEBACKS$)"
    r"(?:PATH|HOME|USER|LOGNAME|SHELL|HOSTNAME|HOST|PWD|OLDPWD|SHLVL|_|TMPDIR|TMP|TEMP|TERM|COLUMNS|LINES|DISPLAY|"
    r"MPLBACKEND|VIRTUAL_ENV|TF_FORCE_GPU_ALLOW_GROWTH|XLA_PYTHON_CLIENT_PREALLOCATE|"
    r"(?:BATON|CONDA|CUDA|DBUS|DYLD|HIP|JPY|JUPYTER|JUPYTERHUB|KERNEL|KUBERNETES|LD|NVIDIA|PYTHON|ROCR|SLURM|SSH|"
    r"WAYLAND|XDG)_.*|PYTHON[A-Z]*)"
)


class Environment(Settings):
    name, title = "environment", "The environment"

    def look(self) -> dict[Any, Any]:
        return dict(vars(os.environ)["_data"])  # as bytes: decoding a hundred of them takes longer than all the rest

    def difference(self, before: Any, now: Any) -> Any:
        new, gone = super().difference(before, now)
        return {name: new[name] for name in new if travels(name)}, [name for name in gone if travels(name)]

    def set(self, name: Any, value: Any) -> None:
        os.environb[name] = value

    def unset(self, name: Any) -> None:
        os.environb.pop(name, None)

    def apply(self, difference: Any) -> list[str] | None:
        super().apply(difference)
        new, gone = difference
        if "polars.config" in sys.modules and any(name.startswith(b"POLARS_") for name in (*new, *gone)):
            reread = getattr(sys.modules["polars.config"].plr, "config_reload_env_vars", None)  # polars 2 keeps them
            if reread is not None:
                reread()
        return None


def travels(name: bytes) -> bool:
    return OF_THE_MACHINE.fullmatch(os.fsdecode(name)) is None


class Folder(Kind):
    name, title, whole = "folder", "The working directory", True

    def look(self) -> str | None:
        try:
            return os.getcwd()
        except OSError:  # it was deleted
            return None

    def apply(self, difference: Any) -> list[str] | None:
        if difference is None or difference == self.look():
            return None
        try:
            os.chdir(difference)
        except OSError as error:
            return [f"The working directory stays {self.look()!r}, because {difference!r}: {error.strerror}"]
        return None


class SearchPath(Kind):
    name, title = "sys.path", "sys.path"

    def look(self) -> list[Any]:
        return [to_home(entry) for entry in sys.path]

    def difference(self, before: Any, now: Any) -> Any:
        return edits(before, now)

    def apply(self, difference: Any) -> None:
        sys.path[:] = [to_here(entry) for entry in edited(self.look(), difference)]


class Arguments(Kind):
    """A session has the notebook kernel's own from its first cell on."""

    name, title, whole = "sys.argv", "sys.argv", True

    def look(self) -> list[Any]:
        return list(sys.argv)

    def fresh(self) -> None:
        return None

    def apply(self, difference: Any) -> None:
        sys.argv[:] = difference


class Interpreter(Settings):
    """And the collector of garbage, the time that sockets wait, and the time zone."""

    name, title = "interpreter", "The interpreter's limits"

    def look(self) -> dict[str, Any]:
        return {
            "recursion": sys.getrecursionlimit(),
            "digits": sys.get_int_max_str_digits(),
            "switches": sys.getswitchinterval(),
            "collector": gc.isenabled(),
            "thresholds": gc.get_threshold(),
            "timeout": socket.getdefaulttimeout(),
            "zone": (*time.tzname, time.timezone),
        }

    def set(self, name: str, value: Any) -> None:
        if name == "collector":
            (gc.enable if value else gc.disable)()
        elif name == "thresholds":
            gc.set_threshold(*value)
        elif name == "zone":
            time.tzset()  # of the environment, which is here
        else:
            OF_PYTHON[name](value)


OF_PYTHON: dict[str, Any] = {
    "recursion": sys.setrecursionlimit,
    "digits": sys.set_int_max_str_digits,
    "switches": sys.setswitchinterval,
    "timeout": socket.setdefaulttimeout,
}


class Locale(Kind):
    name, title, whole = "locale", "The locale", True

    def look(self) -> str:
        return locale.setlocale(locale.LC_ALL)

    def apply(self, difference: Any) -> None:
        locale.setlocale(locale.LC_ALL, difference)


PROCESS: tuple[Kind, ...] = (Environment(), Folder(), SearchPath(), Arguments(), Interpreter(), Locale())
