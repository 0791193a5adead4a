"""Each notebook of the corpus has the same results with and without `%%gpu`: outputs, values, sharing, and files.

The worker behaves as one that does not see the notebooks' folders.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from end_to_end import Service

sys.path.insert(0, str(Path(__file__).parent))

from notebooks import ENVIRONMENT, FOLDER, WAYS, Kernels, Notebook, differences, read

CORPUS = [read(path) for path in sorted((FOLDER / "corpus").glob("*.py"))]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    service = Service.create()
    service.start_broker()
    service.start_worker(slots=4, BATON_WORKER_FILES="mirror", **ENVIRONMENT)
    yield service
    left = service.close()
    assert not left, f"Processes left behind: {left}"


@pytest.fixture(scope="module")
def _kernels(service: Service) -> Iterator[Kernels]:
    kernels = Kernels(service)
    yield kernels
    kernels.end()


@pytest.fixture
def kernels(_kernels: Kernels, has_failed: Callable[[], bool]) -> Iterator[Kernels]:
    """After a failure, the next notebook gets new kernels."""
    yield _kernels
    if has_failed():
        _kernels.end()


@pytest.mark.parametrize("notebook", CORPUS, ids=lambda notebook: notebook.name)
def test_same_with_and_without_gpu(kernels: Kernels, notebook: Notebook) -> None:
    plain, *others = kernels.run(notebook)
    failed = [line for line in plain.state if " that fails: " in line]
    assert not failed, failed
    for way, found in zip(WAYS[1:], others, strict=True):
        lines = differences(plain.shown, found.shown) + differences(plain.state, found.state)
        assert not lines, f"{way.__name__} under %%gpu:\n" + "\n".join(lines)


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) >= 40
    assert all(4 <= len(notebook.cells) <= 8 for notebook in CORPUS), [
        (n.name, len(n.cells)) for n in CORPUS if not 4 <= len(n.cells) <= 8
    ]
