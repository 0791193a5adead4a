"""Each type has one claim, or the order of its claims is on purpose (`state/kinds/claims.py`)."""

from __future__ import annotations

import array
import collections
import enum
import importlib
import pathlib
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations

import pytest
from baton_shim.state.kinds.claims import OF_LIBRARIES, OF_PYTHON, PRECEDES

CLAIMS = [claims for _, claims in (*OF_LIBRARIES, *OF_PYTHON)]
LIBRARIES = """
    IPython PIL.Image bs4 ctypes decimal ipykernel.iostream jax logging matplotlib.pyplot numba numpy pandas pyarrow
    scipy.spatial sklearn.tree torch torch.utils.data traitlets uuid
"""
"""Those that the tables name, but for TensorFlow and Keras, which take long to import."""


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Metres(float): ...


class Pixels(array.array): ...  # type: ignore[type-arg]


class Shared(property): ...


class Failed(Exception): ...


class Thing: ...


Point = collections.namedtuple("Point", "x y")
OWN = [Colour, Level, Metres, Pixels, Shared, Failed, Thing, Point, type(pathlib.Path())]


@pytest.fixture(scope="module")
def every_type() -> list[type]:
    """Those of the notebook, and those in the modules of all libraries there are, with all derived ones."""
    for name in LIBRARIES.split():
        with suppress(ImportError):
            importlib.import_module(name)
    found = {id(kind): kind for kind in (*OWN, *types_in_modules())}
    for kind in tuple(found.values()):
        found.update((id(one), one) for one in derived(kind))
    return list(found.values())


def types_in_modules() -> Iterator[type]:
    for module in tuple(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            yield from (one for one in tuple(vars(module).values()) if type(one) is type or issubclass(type(one), type))


def derived(kind: type) -> Iterator[type]:
    for one in type.__subclasses__(kind):
        yield one
        yield from derived(one)


def test_the_order_of_claims_matters_only_where_a_table_says_so(
    every_type: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in OWN:
        monkeypatch.setattr(kind, "__module__", "__main__")
    claimed = [(kind, [claims for claims in CLAIMS if claims(kind)]) for kind in every_type]
    both = {pair: kind for kind, several in claimed for pair in combinations(several, 2)}
    assert {pair: kind for pair, kind in both.items() if pair not in PRECEDES} == {}
    assert both.keys() == PRECEDES


def test_a_claim_on_some_types_of_another_claim_precedes_it() -> None:
    for first, second in PRECEDES:
        assert CLAIMS.index(first) < CLAIMS.index(second)
