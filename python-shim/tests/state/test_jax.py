"""Arrays of JAX in the table."""

from __future__ import annotations

import pytest
from harness import Pair

pytest.importorskip("jax")


def test_an_array_of_64_bits_where_jax_makes_none_yet(pair: Pair) -> None:
    """Settings come after the variables."""
    pair.local(
        "import jax, jax.numpy as jnp\nwith jax.enable_x64(True):\n    x = jnp.arange(3.0) / 3; n = jnp.int64(2)**40"
    )
    assert pair.remote("found = str(x.dtype), float(x[1]), int(n); y = x", "x", "n", "found") == {"error": None}
    home = pair.namespace
    assert home["found"] == ("float64", 1 / 3, 2**40)
    assert home["y"] is home["x"]
    assert pair.remote("import jax\nwith jax.enable_x64(True):\n    z = x * 2", "x") == {"error": None}
    assert (str(home["z"].dtype), float(home["z"][1])) == ("float64", 2 / 3)
