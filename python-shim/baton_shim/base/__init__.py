"""What both kernels use, and what needs nothing else of the package.

**Invariant:** imports nothing of the package outside this folder.
"""
