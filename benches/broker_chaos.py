"""A class whose broker is killed (-9) at random moments: 200 cells of 20 notebooks, for at least a minute.

This is a test, not a measurement: it fails unless every cell ran once and each line of output arrived once, in order.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from measuring import report

# isort: split
from end_to_end import Kernel, Place, Service
from end_to_end.chaos import chaos

NOTEBOOKS = 20
CELLS = 10
KILL_SECONDS = 60.0
SEED = 2026


def main() -> None:
    service = Service.create()
    os.environ.update(service.place.environment)
    with ExitStack() as stack:
        stack.callback(service.close)

        def new_kernel(name: str = "baton", at: Place = service.place, **environment: str) -> Kernel:
            kernel = Kernel.start(at, name, **environment)
            stack.callback(kernel.shutdown)
            return kernel

        service.start_broker()
        service.start_worker(slots=4)
        done = chaos(
            service,
            new_kernel,
            notebooks=NOTEBOOKS,
            cells=CELLS,
            seed=SEED,
            kill_seconds=KILL_SECONDS,
            patience=900,
        )
    facts = {"notebooks": NOTEBOOKS, "cells": done.cells, "kills": done.kills, "seconds": round(done.seconds)}
    report(
        "broker-chaos",
        {"a class": facts},
        {"cells that ran once": done.cells, "lines lost, doubled or out of order": 0},
    )


if __name__ == "__main__":
    main()
