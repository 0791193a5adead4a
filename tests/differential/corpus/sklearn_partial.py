# Models that learn a bit in each cell.

# %%
import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

rng = np.random.default_rng(0)
x = rng.normal(size=(200, 4))
y = (x[:, 0] + x[:, 1] > 0).astype(int)
model = SGDClassifier(random_state=1)
scaler = StandardScaler()

# %%
scaler.partial_fit(x[:100])
model.partial_fit(scaler.transform(x[:100]), y[:100], classes=[0, 1])
weights = model.coef_

# %%
scaler.partial_fit(x[100:])
model.partial_fit(scaler.transform(x[100:]), y[100:])
weights is model.coef_

# %%
print(model.score(scaler.transform(x), y), model.t_)
model.set_params(alpha=0.01)
model.note = [weights]

# %%
model.partial_fit(x, y)
model.note[0].round(6), scaler.n_samples_seen_
