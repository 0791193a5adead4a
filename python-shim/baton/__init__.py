"""Baton's public package: `from baton import gpu`.

`with gpu:` runs its block on a GPU, and `@gpu` each call of a function, with the promises of a `%%gpu` cell.
"""

from baton_shim.base.blocks import RUNTIME, Gpu, gpu

__all__ = ["Gpu", "gpu"]

RUNTIME.imported()
