# Sparse matrices, interpolation, optimisation results, distributions, KD-trees.

# %%
import numpy as np
from scipy import sparse, interpolate, optimize, spatial, stats

matrix = sparse.csr_array(np.eye(4))
values = matrix.data
points = np.random.default_rng(2).normal(size=(50, 2))

# %%
matrix.data *= 3
matrix[0, 1] = 5
listed = sparse.lil_array((3, 3))

# %%
listed[1, 2] = 7
spline = interpolate.CubicSpline([0, 1, 2, 3], [0, 1, 4, 9])
print(matrix.toarray()[0], float(spline(1.5)), values)

# %%
found = optimize.minimize(lambda p: ((p - 3) ** 2).sum(), np.zeros(2))
tree = spatial.KDTree(points)
law = float(stats.norm(loc=1, scale=2).cdf(1))

# %%
listed[0, 0] = 1
found.extra = tree
found.x.round(3), tree.query(points[3])[1], law, listed.toarray().tolist()

# %%
spline.c[:] = 0
product = matrix @ matrix.T
float(spline(1.5)), product.nnz, found.extra is tree, law
