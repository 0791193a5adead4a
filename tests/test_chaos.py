"""kill -9 of the broker at random moments: every cell finishes once, each line of output arrives once, in order.

`benches/broker_chaos.py` does the same with a class of twenty notebooks for a minute.
"""

from __future__ import annotations

from collections.abc import Callable

from end_to_end import Kernel, Service
from end_to_end.chaos import chaos


def test_a_broker_that_dies_all_the_time(service: Service, new_kernel: Callable[..., Kernel]) -> None:
    service.start_broker()
    service.start_worker(slots=2)
    report = chaos(service, new_kernel, notebooks=4, cells=6, seed=1, kill_seconds=20, patience=400, least_kills=5)
    assert report.kills >= 5, report
