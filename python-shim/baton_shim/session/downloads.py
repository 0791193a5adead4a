"""The hint for a cell whose download failed because no part of the network could be reached.

Libraries wrap the system's error in errors of their own, some only as text. So this module looks for known texts.

**Invariant:** pure.
"""

from __future__ import annotations

import re

from baton_shim.state import errors

HINT = (
    "this GPU machine may have no internet: download the data in an ordinary cell, because %%gpu cells see "
    "the files beside your notebook, or ask your course staff to publish it or to put it into a shared folder"
)
OF_PACKAGES = (
    "if the package exists, this GPU machine may have no internet: ask your course staff to install the package there"
)
UNREACHABLE = re.compile(
    r"Temporary failure in name resolution|Name or service not known|No address associated with hostname"
    r"|Network is unreachable|No route to host|Couldn't reach .+ on the Hub"
)
CODES = {"wget": (4,), "curl": (6, 7, 28)}
"""Exit statuses with which programs report that they could not connect."""
INSTALLS = re.compile(r"\bpip3? +install\b")
FAILED_INSTALLS = (1, 2)
"""Exit statuses with which pip and uv report that they have not found a package, among other things."""


def hint_for_error(error: BaseException) -> str | None:
    return HINT if any(UNREACHABLE.search(errors.short(link)) for link in errors.linked(error)) else None


def hint_for_command(command: str, exit_code: object) -> str | None:
    words = re.split(r"[\s;&|]+", command)
    if exit_code in FAILED_INSTALLS and INSTALLS.search(command):
        return OF_PACKAGES
    return HINT if any(exit_code in CODES.get(word, ()) for word in words) else None
