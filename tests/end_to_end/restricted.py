"""Prefixes that run a command as if on a machine that allows less than this one."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
USER = 1000
"""An ordinary user. The machine need not know it."""
NAME = f"user{USER}"
TUN = Path("/dev/net/tun")


def as_ordinary_user(folder: Path) -> list[str]:
    """For root: runs a command as `USER`, without any privilege. `folder`: for its home (`HOME`) and for mounts."""
    home = folder / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    folder.chmod(0o755)
    commands = "\n".join([named(folder), with_network(folder), opened(folder), 'exec "$0" "$@"'])
    user = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups", "--inh-caps=-all"]
    variables = [f"HOME={home}", f"USER={NAME}", f"LOGNAME={NAME}"]
    # git refuses a repository of another user otherwise.
    variables += ["GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", f"GIT_CONFIG_VALUE_0={ROOT}"]
    return ["unshare", "--mount", "sh", "-ec", commands, *user, "env", "--unset=TMPDIR", *variables]


def named(aside: Path) -> str:
    """Shell commands after which the user has a name, which some programs require."""
    lines = {"passwd": f"{NAME}:x:{USER}:{USER}::{aside}/home:/bin/sh", "group": f"{NAME}:x:{USER}:"}
    return "\n".join(
        f"{{ echo {line}; cat /etc/{name}; }} > {aside}/{name}; mount --bind {aside}/{name} /etc/{name}"
        for name, line in lines.items()
    )


def with_network(aside: Path) -> str:
    """Shell commands after which every user may create network devices in namespaces, as on most machines."""
    if not TUN.exists() or stat.S_IMODE(TUN.stat().st_mode) == 0o666:
        return ""
    made = f"mkdir {aside}/net; mount -t tmpfs tmpfs {aside}/net; mknod -m 666 {aside}/net/tun c 10 200"
    return f"{made}; mount --bind {aside}/net/tun {TUN}"


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


WITHOUT_USER_NAMESPACES = [
    *("unshare", "--user", f"--map-user={os.getuid() or 1000}", f"--map-group={os.getgid() or 1000}", "--keep-caps"),
    *(
        "sh",
        "-c",
        'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all "$0" "$@"',
    ),
]
"""Runs a command as an ordinary user on a machine that allows no user namespaces."""
