# %%
import numba
import numpy as np

factor = 3


@numba.njit
def scaled(value):
    return value * factor


@numba.njit
def total(values):
    result = 0.0
    for value in values:
        result += scaled(value)
    return result


@numba.vectorize
def larger(value):
    return scaled(value) + 1


held = [scaled, larger]
# %%
total(np.arange(4.0)), larger(np.ones(2)), held[0] is scaled
# %%
scaled(2.5), larger(1), total(np.ones(3)), held[1] is larger


# %%
@numba.vectorize(["float64(float64)"])
def smaller(value):
    return value - factor


held.append(smaller)
smaller(np.ones(2)), scaled(1j), scaled.py_func(1)
# %%
smaller(np.zeros(1)), scaled(2), larger(2.5), held[2] is smaller, held[0] is scaled
# %%
done = held[1](3), scaled.py_func(4)
del scaled, total, larger, smaller, held
done
