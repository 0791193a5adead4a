# Trees, forests, neighbours, clusters, kernels: models with state in C.

# %%
import numpy as np
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeRegressor

rng = np.random.default_rng(1)
x = rng.normal(size=(80, 3))
y = (x.sum(axis=1) > 0).astype(int)
tree = DecisionTreeRegressor(max_depth=3, random_state=0)

# %%
tree.fit(x, y)
inner = tree.tree_
forest = RandomForestClassifier(5, random_state=0, warm_start=True)

# %%
forest.fit(x, y)
members = forest.estimators_
print(inner.node_count, len(members))

# %%
forest.n_estimators = 7
forest.fit(x, y)
members is forest.estimators_, len(members), inner is tree.tree_

# %%
near = KNeighborsClassifier(3).fit(x, y)
clusters = KMeans(2, n_init=1, random_state=0).fit(x)
inner.value[0].tolist()

# %%
tree.fit(x[:40], y[:40])
near.predict(x[:5]), clusters.labels_[:5], inner is tree.tree_, forest.predict(x[:3]), tree.predict(x[:2])
