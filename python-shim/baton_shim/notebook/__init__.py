"""The notebook kernel: the magics, the analysis of names, and the notebook's end of a `%%gpu` cell.

**Invariant:** imports nothing of `session/`.
"""
