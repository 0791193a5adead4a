"""How much memory objects keep alive, whatever they report about themselves."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from baton_shim.state.holding import MOST_OBJECTS, held_bytes

MOST = 1 << 30


class Plain:
    """A class that allows weak references."""


class Liar:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no class of mine")


def dead_proxy() -> Any:
    return weakref.proxy(Plain())


@pytest.mark.parametrize("wrap", [lambda odd: odd, lambda odd: [odd], lambda odd: {"a": odd}, lambda odd: (odd, [odd])])
@pytest.mark.parametrize("make", [dead_proxy, Liar])
def test_objects_that_do_not_say_what_they_are_are_counted_too(
    make: Callable[[], Any], wrap: Callable[[Any], Any]
) -> None:
    block = np.zeros(1000)
    held = held_bytes([wrap(make()), block], MOST)
    assert held is not None
    assert held >= block.nbytes


def test_too_much_and_too_many_are_told_apart_from_what_is_small() -> None:
    assert held_bytes([np.zeros(1000)], 7999) is None
    assert held_bytes([[Plain() for _ in range(60)] for _ in range(MOST_OBJECTS // 60 + 1)], MOST) is None
    view = np.zeros(1000)[:1]
    assert held_bytes([view], MOST) == 8000
