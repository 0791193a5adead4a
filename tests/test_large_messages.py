"""What a cell sends may be too large for a message. Then only this cell fails, or its traceback is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from end_to_end import Kernel, Service

ARRAYS = "import numpy as np\nmany = [np.zeros(1) for _ in range(140_000)]"
SESSION = "import os\nos.getpid()"


@pytest.fixture
def kernel_of_another(service: Service, new_kernel: Callable[..., Kernel]) -> Iterator[Kernel]:
    """Its session is the same before and after the test."""
    service.start_broker()
    service.start_worker(BATON_TRANSPORT="http")
    kernel = service.kernel(new_kernel, BATON_TRANSPORT="http")
    before = kernel.gpu(SESSION).ok().value
    yield kernel
    assert kernel.gpu(SESSION).ok().value == before


@pytest.fixture
def notebook(service: Service, kernel_of_another: Kernel, new_kernel: Callable[..., Kernel]) -> Kernel:
    return service.kernel(new_kernel, BATON_TRANSPORT="http")


def text_of_error(notebook: Kernel, body: str) -> str:
    error = notebook.gpu(body).error
    assert error is not None
    return error[1]


def test_too_many_arrays_of_the_notebook_are_not_sent(notebook: Kernel) -> None:
    notebook.run(ARRAYS).ok()
    assert "many small objects" in text_of_error(notebook, "len(many)")
    notebook.run("del many").ok()
    assert notebook.gpu("6 * 7").ok().value == "42"


def test_too_many_arrays_of_a_session_are_not_returned(notebook: Kernel) -> None:
    assert "many small objects" in text_of_error(notebook, ARRAYS)
    assert notebook.evaluate("'many' in globals()") is False
    assert notebook.gpu("6 * 7").ok().value == "42"


def test_a_very_long_error_arrives_with_a_shorter_traceback(notebook: Kernel) -> None:
    result = notebook.gpu("before = 1\nraise ValueError('x' * 40_000_000)")
    assert result.error == ("ValueError", "x" * 40_000_000)
    assert "[Baton left out" in result.plain_traceback
    assert len(result.plain_traceback) < 2 << 20
    assert notebook.evaluate("before") == 1
