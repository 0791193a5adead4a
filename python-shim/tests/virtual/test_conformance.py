"""Questions of a notebook about CUDA: virtual CUDA answers like a real GPU."""

from __future__ import annotations

import conformance
import pytest


def test_virtual_cuda_answers_as_a_gpu() -> None:
    version = conformance.version_here()
    found = conformance.differences("virtual", version=version if conformance.has_own_list(version) else None)
    assert not found, "\n".join(found)


@pytest.mark.gpu
def test_a_gpu_answers_as_the_list_says() -> None:
    found = conformance.differences("real")
    assert not found, "\n".join(found)


def test_the_list_is_long_enough() -> None:
    expressions = [line.expression for line in conformance.lines()]
    assert len(expressions) > 400  # the number in docs/concepts/virtual-cuda.md
    assert len(set(expressions)) == len(expressions)
