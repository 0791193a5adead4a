"""Code of both kernels that needs nothing else of the package.

**Invariant:** imports nothing of the package outside this folder.
"""
