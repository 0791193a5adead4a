"""1 GB into a cell and back by each transport, alternating, compared with a plain copy of the same bytes.

Everything is on one machine, so the numbers compare the work and not a network. The object store is SeaweedFS, with its
files on the same disk as the broker's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from measuring import milliseconds, report, summary

# isort: split
from end_to_end import Kernel, Service
from end_to_end.object_store import SeaweedFS

MEGABYTES = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
BYTES = MEGABYTES * 1_000_000
RUNS = 5
TRANSPORTS = ("memory", "http", "object store")
ROOM = {"BATON_BROKER_PERSON_CHUNK_LIMIT": "64GiB"}


def main() -> None:
    with ExitStack() as stack:
        kernels = {name: stack.enter_context(kernel(name)) for name in TRANSPORTS}
        times: dict[str, list[float]] = {f"{name}, {way}": [] for name in TRANSPORTS for way in ("in", "back")}
        times["memcpy"] = []
        source = np.random.default_rng().integers(0, 256, BYTES, dtype="uint8")
        target = np.zeros_like(source)
        for _ in range(RUNS):
            for name, one in kernels.items():
                # New bytes each time, so that none of them has been sent before.
                one.run(f"x = np.random.default_rng().integers(0, 256, {BYTES}, dtype='uint8')").ok()
                times[f"{name}, in"].append(milliseconds(lambda one=one: one.gpu("first = x[0]").ok()))
                times[f"{name}, back"].append(milliseconds(lambda one=one: back(one)))
            times["memcpy"].append(milliseconds(lambda: np.copyto(target, source)))
    rows: dict[str, dict[str, Any]] = {name: summary(each) for name, each in times.items()}
    for row in rows.values():
        row["MB/s"] = round(MEGABYTES / row["p50_ms"] * 1e3)
    report("transports", rows, {"megabytes": MEGABYTES})


def back(kernel: Kernel) -> None:
    """The second cell waits for the bytes."""
    kernel.gpu("x ^= 255").ok()
    kernel.run("last = x[-1]").ok()


@contextmanager
def kernel(transport: str) -> Iterator[Kernel]:
    """A notebook with a separate broker and worker."""
    service = Service.create()
    with ExitStack() as stack:
        stack.callback(service.close)
        os.environ.update(service.place.environment)
        settings = dict(ROOM)
        if transport == "object store":
            store = SeaweedFS(service.place.folder / "store", volumes=200)
            stack.callback(store.kill)
            settings |= store.settings
        service.start_broker(**settings)
        service.start_worker()
        way = "auto" if transport == "memory" else "http"
        one = Kernel.start(service.place, **service.access, BATON_TRANSPORT=way)
        stack.callback(one.shutdown)
        one.run("import numpy as np").ok()
        one.gpu("pass").ok()
        yield one


if __name__ == "__main__":
    main()
