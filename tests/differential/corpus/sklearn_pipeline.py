# Pipelines whose steps are held elsewhere, own transformers, clones, grid search.

# %%
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline

class Shift(BaseEstimator, TransformerMixin):
    def __init__(self, by=1.0):
        self.by = by

    def fit(self, x, y=None):
        self.mean_ = x.mean(axis=0)
        return self

    def transform(self, x):
        return x - self.mean_ + self.by

shift, ridge = Shift(), Ridge()
pipe = Pipeline([("shift", shift), ("ridge", ridge)])
x = np.arange(20.0).reshape(10, 2) % 7
y = x @ [1.0, 2.0] + 3

# %%
pipe.fit(x, y)
ridge.coef_ is pipe[-1].coef_, shift.mean_

# %%
pipe.set_params(shift__by=5.0)
copy = clone(pipe)
print(pipe.predict(x[:2]).round(6), copy.named_steps["shift"].by)

# %%
copy.fit(x, y * 2)
pipe.steps.append(pipe.steps.pop(0)) if False else None
ridge.coef_[:] = 0

# %%
from sklearn.model_selection import GridSearchCV
search = GridSearchCV(pipe, {"ridge__alpha": [0.1, 10]}, cv=2).fit(x, y)
best = search.best_estimator_
parameters = search.best_params_
del search  # it holds wall times
parameters

# %%
best["ridge"].alpha, pipe.predict(x[:1]), pipe.steps[0][1] is shift, copy["ridge"] is ridge
