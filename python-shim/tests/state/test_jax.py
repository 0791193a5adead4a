"""JAX arrays in the table."""

from __future__ import annotations

import pytest
from harness import Pair

pytest.importorskip("jax")


def test_an_array_of_64_bits_where_jax_makes_none_yet(pair: Pair) -> None:
    """Settings are applied after the variables."""
    pair.local(
        "import jax, jax.numpy as jnp\nwith jax.enable_x64(True):\n    x = jnp.arange(3.0) / 3; n = jnp.int64(2)**40"
    )
    assert pair.remote("found = str(x.dtype), float(x[1]), int(n); y = x", "x", "n", "found") == {"error": None}
    home = pair.namespace
    assert home["found"] == ("float64", 1 / 3, 2**40)
    assert home["y"] is home["x"]
    assert pair.remote("import jax\nwith jax.enable_x64(True):\n    z = x * 2", "x") == {"error": None}
    assert (str(home["z"].dtype), float(home["z"][1])) == ("float64", 2 / 3)


def test_functions_of_jax_stay_its_own(pair: Pair) -> None:
    pair.local("import jax\nacts = {'relu': jax.nn.relu, 'silu': jax.nn.silu, 'softmax': jax.nn.softmax}")
    look = "found = [act is getattr(jax.nn, name) for name, act in acts.items()]"
    assert pair.remote(f"import jax\n{look}\nmore = [jax.nn.relu, jax.nn.gelu]", "acts", "found") == {"error": None}
    home = pair.namespace
    assert home["found"] == [True] * 3
    assert home["more"] == [home["jax"].nn.relu, home["jax"].nn.gelu]


def test_rules_for_derivatives(pair: Pair) -> None:
    pair.local(
        "import jax\n@jax.custom_vjp\ndef f(x): return x\n"
        "f.defvjp(lambda x: (x, None), lambda kept, g: (g * 3,))\n"
        "@jax.custom_jvp\ndef h(x): return x\n"
        "@h.defjvp\ndef rule(primals, tangents): return h(*primals), tangents[0] * 5"
    )
    cell = "found = float(jax.grad(f)(1.0)), float(jax.grad(h)(1.0)); g = f"
    assert pair.remote(cell, "jax", "f", "h", "found") == {"error": None}
    assert pair.namespace["found"] == (3.0, 5.0)
    assert pair.namespace["g"] is pair.namespace["f"]
