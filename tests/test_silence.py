"""A notebook without its connection to the broker, while cells run or their results wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from end_to_end import Gate, Kernel, Service, wait_until
from end_to_end.background import background
from end_to_end.network import Network, Relay
from end_to_end.service import stopped


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service.create()
    service.start_broker(BATON_BROKER_PROXY_GRACE="100ms")
    service.start_worker()
    yield service
    left = service.close()
    assert not left, f"Processes left behind: {left}"


@pytest.fixture
def relay(service: Service, network: Network) -> Relay:
    return network.relay(service.address, f"unix:{service.place.folder}/run/notebook.sock")


@pytest.fixture
def kernel(request: pytest.FixtureRequest, service: Service, relay: Relay, new_kernel: Callable[..., Kernel]) -> Kernel:
    patience = {"BATON_BROKER_PATIENCE": request.param} if hasattr(request, "param") else {}
    kernel = service.kernel(new_kernel, BATON_BROKER_ADDRESS=relay.address, BATON_TRANSPORT="http", **patience)
    kernel.run("values = [1]; hidden_name = 42").ok()
    kernel.gpu("values.append(2)").ok()
    return kernel


@pytest.fixture
def gate(service: Service) -> Iterator[Gate]:
    """In a folder that sessions see."""
    gate = Gate(service.place.signs)
    yield gate
    gate.open_all()


def state(service: Service) -> str:
    return str(service.jobs()[0]["state"])


@pytest.mark.parametrize("kernel", ["5s"], indirect=True)
def test_a_background_cell_is_followed_however_long_the_notebook_is_offline(
    service: Service, relay: Relay, kernel: Kernel, gate: Gate
) -> None:
    cell = background(kernel, f"print('begun')\n{gate.closed()}time.sleep(7)\nvalues.append(3)")
    cell.wait_for_text("begun")
    relay.cut()
    gate.open()
    # The cell ends much later than the broker's patience.
    wait_until(lambda: state(service) == "finished", "the cell ends")
    relay.mend()
    kernel.run("job.result()").ok()
    assert kernel.evaluate("values") == [1, 2, 3]


def test_a_background_cell_asks_its_notebook_again_when_it_is_back(
    service: Service, relay: Relay, kernel: Kernel, gate: Gate
) -> None:
    cell = background(kernel, f"print('begun')\n{gate.closed()}values.append(eval('hidden' + '_name'))")
    cell.wait_for_text("begun")
    relay.cut()
    wait_until(lambda: "goes on without its notebook kernel" in service.log("broker"), "the broker gives it up")
    relay.mend()
    wait_until(lambda: "is connected" in service.log("worker-0"), "the notebook is back")
    gate.open()
    kernel.run("job.result()").ok()
    assert kernel.evaluate("values") == [1, 2, 42]


def test_a_cell_that_ended_meanwhile_is_returned(service: Service, relay: Relay, kernel: Kernel, gate: Gate) -> None:
    cell = kernel.begin(f"%%gpu\nprint('begun')\n{gate.closed()}values.append(3)")
    cell.wait_for_text("begun")
    relay.swallow()
    gate.open()
    wait_until(lambda: state(service) == "finished", "the cell ends")
    with stopped(kernel.proxy):
        relay.cut()
        relay.mend()
        wait_until(lambda: "does not respond; the job's result" in service.log("broker"), "the broker gives up waiting")
    cell.finish().ok()
    assert kernel.evaluate("values") == [1, 2, 3]
