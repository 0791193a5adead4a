"""The session: the kernel on a worker that runs the `%%gpu` cells of one notebook.

**Invariant:** imports nothing of `notebook/`.
"""
