"""Virtual CUDA in a program: obeys the setting `virtual_cuda`, as in a kernel.

**Invariant:** the setting is read only when a library that has virtual CUDA is imported.
"""

from __future__ import annotations

import re
import subprocess

from baton_shim.base.binary import find_binary
from baton_shim.virtual import SWITCH

_SAYS_OFF = re.compile(rb"^virtual_cuda\s+false\b", re.MULTILINE)


def read_setting() -> None:
    SWITCH.ask = is_on


def is_on() -> bool:
    """True also if the setting cannot be read; the first block reports a wrong configuration."""
    binary = find_binary()
    if binary is None:
        return True
    try:
        shown = subprocess.run([binary, "config", "show"], capture_output=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return _SAYS_OFF.search(shown.stdout) is None
