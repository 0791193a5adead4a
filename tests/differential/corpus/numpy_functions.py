# %%
import numpy as np

calls = []


def doubled(value):
    calls.append(value)
    return 2 * value


vectorized = np.vectorize(doubled, otypes=[float])
of_elements = np.frompyfunc(doubled, 1, 1)
held = {"f": of_elements}
vectorized([1])
# %%
vectorized([2, 3]), of_elements([4]), held["f"] is of_elements, calls
# %%
larger = np.frompyfunc(max, 2, 1)
product = np.frompyfunc(lambda a, b: a * b, 2, 1, identity=1)
vectorized([5]), of_elements.__name__, calls
# %%
larger([1, 2], 2), larger.reduce([3, 1, 2]), product.reduce([]), held["f"] is of_elements
