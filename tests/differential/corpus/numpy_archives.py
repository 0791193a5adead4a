# Archives that read their arrays on demand, and objects that lie about themselves.

# %%
import numpy as np

np.savez("x.npz", a=np.arange(5), b=np.ones((200, 300)))
archive = np.load("x.npz")
values = [1, 2]

# %%
archive.files, archive["a"], archive["b"].sum()

# %%
class Bag:
    def __getattribute__(self, name):
        raise AttributeError(name)

other = np.load("x.npz")
values.append(float(other["b"].sum()))
bag = type("Bag", (), {"__class__": property(lambda self: int)})()
repr(other)

# %%
values.append(other.f.a.tolist())
values, "b" in archive, type(bag).__name__, isinstance(bag, int)

# %%
archive.close()
other.close()
with np.load("x.npz") as last:
    values.append(sorted(last))
del archive, other, last, bag
values
