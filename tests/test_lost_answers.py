"""A connection breaks while an answer of the notebook to its cell is on the way; the cell ends as usual."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from end_to_end import Kernel, Service, wait_until
from end_to_end.network import Network
from end_to_end.service import stopped


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service.create()
    # So that a slow machine has time to connect again.
    service.start_broker(BATON_BROKER_WORKER_GRACE="60s", BATON_BROKER_PROXY_GRACE="60s")
    yield service
    left = service.close()
    assert not left, f"Processes left behind: {left}"


def test_a_complete_state_that_is_lost_is_sent_again(
    service: Service, new_kernel: Callable[..., Kernel], network: Network
) -> None:
    service.start_worker()
    relay = network.relay(service.address, f"unix:{service.place.folder}/run/notebook.sock")
    kernel = service.kernel(new_kernel, BATON_BROKER_ADDRESS=relay.address, BATON_TRANSPORT="http")
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)").ok()
    kernel.kill_session()
    with stopped(service.process("worker-0")):
        cell = kernel.begin("%%gpu\nvalues.append(3)")
        wait_until(lambda: service.jobs()[0]["state"] == "assigned", "the worker has the cell")
        relay.swallow("there")
    wait_until(lambda: relay.has_swallowed("there"), "the state is on its way")
    relay.break_off()
    cell.finish().ok()
    assert kernel.evaluate("values") == [1, 2, 3]


def test_the_answer_to_a_question_that_is_lost_is_sent_again(
    service: Service, new_kernel: Callable[..., Kernel], network: Network
) -> None:
    relay = network.relay(service.address, f"unix:{service.place.folder}/run/worker.sock")
    service.start_worker(BATON_BROKER_ADDRESS=relay.address)
    kernel = service.kernel(new_kernel)
    cell = kernel.begin("%%gpu\nnames = [input('Name? ')]")
    cell.wait_for_question()
    relay.swallow("back")
    kernel.client.input("Ada")
    wait_until(lambda: relay.has_swallowed("back"), "the answer is on its way")
    relay.break_off()
    cell.finish().ok()
    assert kernel.evaluate("names") == ["Ada"]
