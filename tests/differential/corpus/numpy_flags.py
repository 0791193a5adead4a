# Read-only arrays, own attributes, subclasses, masked arrays, zero-dimensional ones.

# %%
import numpy as np

fixed = np.arange(5)
fixed.flags.writeable = False
view = fixed[1:]
scalar = np.array(3.5)
masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])

class Signal(np.ndarray):
    def __new__(cls, data, rate):
        made = np.asarray(data, dtype=float).view(cls)
        made.rate = rate
        return made

    def __array_finalize__(self, other):
        self.rate = getattr(other, "rate", None)

# %%
try:
    view[0] = 1
except ValueError as error:
    print(error)
scalar[()] = 4
masked[0] = 10

# %%
fixed.flags.writeable = True
fixed[2] = 22
signal = Signal([1, 2, 3], rate=8)
half = signal[::2]

# %%
signal *= 2
half.rate = 4
masked.mask[2] = True
print(view, half, signal.rate, masked)

# %%
view.flags.writeable, scalar, masked.mean(), type(half).__name__, half.base is signal

# %%
frozen = np.frombuffer(b"abcdefgh", dtype="u1")
copy = frozen.copy()
copy[0] = 0
frozen.flags.writeable, copy[:2], signal + half.rate
