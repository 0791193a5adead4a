"""List the functions of the CUDA driver that libraries look up, from the libraries' wheels.

Usage: cuda_names.py WHEEL... > gpu-worker/interposer/src/library/sys/asked.txt

`make cuda-names` does that with the newest wheels. The first lines of the output say which wheels were read; each
further line is a name. A test of the interposer fails if it has no decision about one of the names.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

# What follows `cu` in the names of the driver's functions. Names of other libraries' functions begin differently, or
# contain `cuda`.
GROUPS = (
    "Array Checkpoint Coredump Ctx Destroy Dev Device Driver EGL Event External Fabric Flush Func GL Get Graph "
    "Graphics Green Import Init Ipc Kernel Launch Library Link Logical Logs Mem Memcpy Memset Mipmapped Module "
    "Multicast Occupancy Param Pointer Profiler Semaphore Signal Stream Subgrid Surf Tensor Tex Thread User VDPAU Wait"
).split()
IN_LIBRARIES = re.compile(rb"(?<![\x20-\x7e])(cu[A-Z][A-Za-z0-9]+(?:_[a-z0-9]+)*)\0")
IN_TEXTS = re.compile(rb"\b(cu[A-Z][A-Za-z0-9]+(?:_[a-z0-9]+)*)\b")
FUNCTION = re.compile(rf"cu(?!\w*cuda)(?:{'|'.join(GROUPS)})(?:[A-Z0-9][A-Za-z0-9]*)?(?:_v\d+)?(?:_pt[sd][sz])?")


def names_in(wheel: Path) -> set[str]:
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            pattern = IN_LIBRARIES if ".so" in name else IN_TEXTS if name.endswith((".py", ".pyx", ".pxd")) else None
            if pattern is not None:
                found |= {match.decode() for match in pattern.findall(archive.read(name))}
    return {name for name in found if FUNCTION.fullmatch(name)}


def main() -> None:
    names: set[str] = set()
    for wheel in sorted(map(Path, sys.argv[1:])):
        distribution, version, *_ = wheel.name.split("-")
        print(f"# {distribution} {version}")
        names |= names_in(wheel)
    print("\n".join(sorted(names)))


if __name__ == "__main__":
    main()
