"""If a course wants it, a notebook's variables are saved when its kernel ends, and the next kernel says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end import Gate, Kernel, Place, Service, background, wait_until

LOADS = "%gpu_load auto-train restores them"


@pytest.fixture
def course(service: Service, place: Place, tmp_path: Path, new_kernel: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """Kernels of one notebook in a course that saves."""
    courses = tmp_path / "courses.toml"
    courses.write_text("[default]\nautosave = true\n")
    service.start_broker(BATON_BROKER_COURSES_FILE=str(courses))
    service.start_worker(BATON_WORKER_READABLE=str(place.signs))
    return lambda: service.kernel(new_kernel, JPY_SESSION_NAME="lessons/train.ipynb")


def told_first(kernel: Kernel, gate: Gate) -> str:
    """What is said with the kernel's first `%%gpu` cell, which runs until then."""
    cell = kernel.begin(f"%%gpu\n{gate.closed()}")
    cell.wait_for(lambda result: LOADS in result.stderr, "it is said")
    gate.open()
    return cell.finish().ok().stderr


def test_the_next_kernel_says_what_it_can_restore(course: Callable[..., Kernel], gate: Gate) -> None:
    first = course()
    first.run("values = [1]; alias = values").ok()
    assert "saved" not in first.gpu("values.append(2)").ok().stderr
    first.run("values.append(3)").ok()
    first.shutdown()
    second = course()
    told = told_first(second, gate)
    assert told.startswith("The variables of this notebook's last kernel were saved ")
    assert told.rstrip().endswith(LOADS)
    assert LOADS not in second.gpu("1").ok().stderr
    second.run("%gpu_load auto-train").ok()
    assert second.evaluate("values, alias is values") == ([1, 2, 3], True)


def test_a_restart_saves_nothing_and_no_kernel_without_gpu_cells(course: Callable[..., Kernel]) -> None:
    kernel = course()
    kernel.run("values = [1]").ok()
    kernel.gpu("values.append(2)").ok()
    kernel.restart()
    kernel.run("other = 1").ok()
    kernel.shutdown()
    assert "saved" not in course().gpu("1").ok().stderr


def test_a_cell_in_the_background_goes_on_and_the_other_variables_are_saved(
    course: Callable[..., Kernel], gate: Gate
) -> None:
    first = course()
    first.run("values = [1]; other = 'other'").ok()
    cell = background(first, f"print('begun')\n{gate.closed()}values.append(2)")
    cell.wait_for_text("begun")
    first.shutdown()
    gate.open()
    second = course()
    wait_until(
        lambda: "%gpu_attach" in second.run("%gpu_jobs").ok().stdout, "the broker knows that the kernel has ended"
    )
    told = told_first(second, gate)
    assert "A background cell of this notebook's last kernel can be attached: %gpu_jobs shows it" in told
    second.run("%gpu_load auto-train").ok()
    assert second.evaluate("values, other") == ([1], "other")
    second.run("%gpu_attach").ok()
    assert second.evaluate("values") == [1, 2]


SLOW = """
import os, signal
class Slow:
    def __getstate__(self):
        if not os.path.exists({marker!r}):
            open({marker!r}, 'x').close()
            os.kill(os.getppid(), signal.SIGTERM)  # as Jupyter does to a kernel that takes long to end
        return {{'told': True}}
slow = Slow()
"""


def test_a_kernel_that_is_told_to_hurry_saves_all_the_same(
    course: Callable[..., Kernel], tmp_path: Path, gate: Gate
) -> None:
    first = course()
    first.run(SLOW.format(marker=str(tmp_path / "told"))).ok()
    first.gpu("1").ok()
    first.shutdown()
    second = course()
    told_first(second, gate)
    second.run("%gpu_load auto-train").ok()
    assert second.evaluate("slow.told") is True


def test_a_broker_that_is_gone_holds_nobody_up(service: Service, course: Callable[..., Kernel]) -> None:
    kernel = course()
    kernel.gpu("values = [1]").ok()
    service.kill("broker")
    proxy = kernel.proxy
    kernel.shutdown()
    assert not proxy.is_running()
    service.start_broker()
