"""torch's data loaders with persistent workers work in both kernels."""

from __future__ import annotations

import pytest
from harness import Pair

_LOADER = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(4.)), num_workers=1, persistent_workers=True, batch_size=2)
held = [loader]
"""
_READ = "seen = [batch.tolist() for batch, in iter(loader)]"
_END = "loader._iterator._shutdown_workers()"


@pytest.mark.parametrize("start", ["local", "remote"])
def test_persistent_workers(pair: Pair, start: str) -> None:
    pair.local(_LOADER)
    first, then = (pair.local, pair.remote) if start == "local" else (pair.remote, pair.local)
    loader = pair.namespace["loader"]
    first("next(iter(loader)); kept = id(loader._iterator)", *(("loader", "held") if start == "remote" else ()))
    then(_READ, *(("loader", "held") if start == "local" else ()))
    assert pair.namespace["seen"] == [[0, 1], [2, 3]]
    assert pair.namespace["loader"] is pair.namespace["held"][0] is loader
    first("same = kept == id(loader._iterator)", *(("loader", "kept") if start == "remote" else ()))
    assert pair.namespace["same"] is True
    pair.local(_END)  # the processes would keep the connection to the session open
    pair.remote(_END, "loader")
