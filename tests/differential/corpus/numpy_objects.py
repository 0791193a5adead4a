# Object arrays with shared elements, functions of numpy in containers, dtypes as values, nditer-free loops.

# %%
import numpy as np

shared = [1]
boxes = np.empty((2, 2), dtype=object)
boxes[0, 0] = boxes[1, 1] = shared
boxes[0, 1] = boxes
steps = {"sum": np.sum, "exp": np.exp, "kind": np.float32}

# %%
shared.append(2)
boxes[1, 0] = steps
view = boxes[1]

# %%
view[0]["mean"] = np.mean
print(boxes[0, 0] is boxes[1, 1], boxes[1, 1])
total = steps["sum"](np.ones((2, 3), dtype=steps["kind"]), axis=0)

# %%
poly = np.poly1d([1, 2, 3])
cut = np.s_[1:3, ::2]
number = np.float64(2.5)
dtype = np.dtype([("a", "i4"), ("b", "f8")])

# %%
made = np.zeros(2, dtype=dtype)
made["a"] = total[:2]
poly.coeffs[0] = 9
fast = np.vectorize(lambda x: x + number)

# %%
fast([1, 2]), poly(1), np.arange(16).reshape(4, 4)[cut], made.dtype == dtype, boxes[0, 1] is boxes, type(number)
