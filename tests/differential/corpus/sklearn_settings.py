# Settings of scikit-learn and of how IPython shows values.

# %%
import pandas as pd, sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
sklearn.set_config(display="text", assume_finite=True)

# %%
model = LogisticRegression(C=2)
model

# %%
sklearn.set_config(transform_output="pandas")
frame = pd.DataFrame({"a": [1.0, 2.0, 4.0]})

# %%
StandardScaler().fit_transform(frame)

# %%
%precision 3
with sklearn.config_context(print_changed_only=False):
    print(LogisticRegression())

# %%
float(frame.a.mean()), sklearn.get_config()["assume_finite"]

# %%
%pprint
list(range(40))

# %%
[list(range(20)), float(frame.a.std())]
