"""Prefixes that run a command as if on a machine that allows less than this one."""

from __future__ import annotations

import os

WITHOUT_USER_NAMESPACES = [
    *("unshare", "--user", f"--map-user={os.getuid() or 1000}", f"--map-group={os.getgid() or 1000}", "--keep-caps"),
    *(
        "sh",
        "-c",
        'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all "$0" "$@"',
    ),
]
"""Runs a command as an ordinary user on a machine that allows no user namespaces."""
