"""Prefixes that run a command as if on a machine that allows less than this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USER = 1000
"""An ordinary user. It needs no entry in `/etc/passwd`."""


def opened(aside: Path) -> str:
    """Shell commands after which every user can reach the repository and Python, for example below `/root`.

    They change the mounts of the namespace. `aside`: a folder for mounts.
    """
    needed = [path for path in (ROOT, Path(sys.base_prefix).resolve()) if closed_above(path)]
    asides = {path: aside / f"aside-{number}" for number, path in enumerate(needed)}
    commands = [f"mkdir -p {kept}; mount --bind {path} {kept}" for path, kept in asides.items()]
    commands += [f"mount -t tmpfs -o mode=755 tmpfs {closed}" for closed in {closed_above(path) for path in needed}]
    commands += [f"mkdir -p {path}; mount --bind {kept} {path}" for path, kept in asides.items()]
    return "\n".join(commands)


def closed_above(path: Path) -> Path | None:
    """The first folder above it that other users may not enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def need_root(why: str) -> None:
    """Skips the test if an ordinary user runs it. `why`: what only root can do."""
    if os.geteuid() != 0:
        pytest.skip(f"NOT TESTED: only root can {why}")


def as_ordinary_user(aside: Path) -> list[str]:
    """For root: runs a command as `USER`. `aside`: a folder for mounts."""
    user = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    return ["unshare", "--mount", "sh", "-ec", f'{opened(aside)}\nexec "$0" "$@"', *user]


WITHOUT_USER_NAMESPACES = [
    *("unshare", "--user", f"--map-user={os.getuid() or 1000}", f"--map-group={os.getgid() or 1000}", "--keep-caps"),
    *(
        "sh",
        "-c",
        'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all "$0" "$@"',
    ),
]
"""Runs a command as an ordinary user on a machine that allows no user namespaces."""
