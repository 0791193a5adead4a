"""Baton's public package: `from baton import gpu`.

`with gpu:` runs its block on a GPU, and `@gpu` runs each call of a function there, with the promises of a `%%gpu` cell.
`python -m baton train.py` runs a program that has such blocks in its own file.
"""

from baton_shim.base.blocks import RUNTIME, Gpu, gpu

__all__ = ["Gpu", "gpu"]

if RUNTIME.imported is not None:
    RUNTIME.imported()
elif RUNTIME.kernel is None:
    from baton_shim.program import start

    RUNTIME.kernel = start.begin()
