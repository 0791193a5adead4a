"""Each notebook of the corpus has the same results with and without `%%gpu`: outputs, values, sharing, and files.

The worker behaves as one that does not see the notebooks' folders.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from differential.notebooks import ENVIRONMENT, FOLDER, WAYS, Kernels, Notebook, differences, read, run
from end_to_end import Service

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
    kernels = Kernels(service, *WAYS.values())
    yield kernels
    kernels.end()


@pytest.mark.parametrize("notebook", CORPUS, ids=lambda notebook: notebook.name)
def test_same_with_and_without_gpu(kernels: Kernels, notebook: Notebook) -> None:
    ways = list(WAYS)
    plain, *others = kernels.each(notebook, lambda number, *at: run(*at, notebook, ways[number]))
    failed = [line for line in plain.state if " that fails: " in line]
    assert not failed, failed
    for way, found in zip(ways[1:], others, strict=True):
        lines = differences(plain.shown, found.shown) + differences(plain.state, found.state)
        assert not lines, f"{way.__name__} under %%gpu:\n" + "\n".join(lines)


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) >= 40
    assert all(4 <= len(notebook.cells) <= 8 for notebook in CORPUS), [
        (n.name, len(n.cells)) for n in CORPUS if not 4 <= len(n.cells) <= 8
    ]
