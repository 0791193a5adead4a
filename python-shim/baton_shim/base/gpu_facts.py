"""What the driver reports about a session's GPU before the session uses it: `python gpu_facts.py` prints it as JSON.

This is a separate program, because a process that has called the driver can no longer fork. It creates no context, so
it needs no GPU memory and no GPU lease. If the driver fails, it prints the error, and nothing else is known.

**Invariant:** the program imports only the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import uuid
from typing import Any

ATTRIBUTES = {
    "major": 75,
    "minor": 76,
    "multi_processor_count": 16,
    "warp_size": 10,
    "max_threads_per_block": 1,
    "max_threads_per_multi_processor": 39,
    "regs_per_multiprocessor": 82,
    "shared_memory_per_block": 8,
    "shared_memory_per_block_optin": 97,
    "shared_memory_per_multiprocessor": 81,
    "L2_cache_size": 38,
    "clock_rate": 13,
    "memory_clock_rate": 36,
    "memory_bus_width": 37,
    "is_integrated": 18,
    "is_multi_gpu_board": 84,
    "pci_domain_id": 50,
    "pci_bus_id": 33,
    "pci_device_id": 34,
}
"""The driver's numbers for these attributes, under torch's names."""


ERROR = "error"


class Asking:
    """One run of this program, started ahead of the moment at which the facts are needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Starts the program without the interposer, so it needs no GPU lease."""
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def answer(self) -> dict[str, Any] | None:
        """The facts, as soon as they are known; returned once."""
        if self._process is None or self._process.poll() is None:
            return None
        found = self._said()
        return None if ERROR in found else found

    def error(self) -> str | None:
        """Waits, and says why the driver does not start. Afterwards there is no answer."""
        return self._said().get(ERROR)

    def _said(self) -> dict[str, Any]:
        if self._process is None:
            return {}
        text, _ = self._process.communicate()
        self._process = None
        said: dict[str, Any] = json.loads(text or "{}")
        return said


ASKING = Asking()


def facts() -> dict[str, Any]:
    """About the first visible GPU. Raises `OSError` if there is no GPU or no driver."""
    driver = ctypes.CDLL("libcuda.so.1")

    def ask(function: str, *arguments: Any) -> None:
        code = getattr(driver, function)(*arguments)
        if code:
            raise OSError(f"{function} answered {code}")

    device, number, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name, identity = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    ask("cuInit", 0)
    ask("cuDeviceGet", ctypes.byref(device), 0)
    ask("cuDeviceGetName", name, len(name), device)
    ask("cuDeviceTotalMem_v2", ctypes.byref(size), device)
    ask("cuDeviceGetUuid", identity, device)
    found: dict[str, Any] = {"name": name.value.decode(), "total_memory": size.value}
    for attribute, code in ATTRIBUTES.items():
        ask("cuDeviceGetAttribute", ctypes.byref(number), code, device)
        found[attribute] = number.value
    return found | {"uuid": str(uuid.UUID(bytes=bytes(identity))), "gcnArchName": found["name"]}


if __name__ == "__main__":
    try:
        print(json.dumps(facts()))
    except (OSError, AttributeError) as error:  # no driver, or one that lacks a function
        print(json.dumps({ERROR: str(error)}))
        sys.exit(1)
