"""A variable of the name of IPython's last result, and its end."""
# %%
for _ in range(3): pass
5
# %%
del _
6
# %%
print(_)
_ = "mine"
# %%
7
# %%
print(_)
del _
# %%
8
# %%
_
