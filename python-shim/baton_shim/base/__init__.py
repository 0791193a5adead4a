"""What both kernels use and nothing else of the package is needed for.

**Invariant:** imports nothing of the package but this folder.
"""
