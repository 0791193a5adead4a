# Names that one cell binds anew, and that the next one binds to what they were before.

# %%
n, kept = 1, [1]
first = kept
items = {"a": kept}

# %%
n, first = 2, [2]
items["b"] = first

# %%
n = 1
first = kept

# %%
print(n, first is kept)
n, first = 5, items["b"]

# %%
for n in range(2):
    first = items["a"]

# %%
print(n, first is kept)
n, first = 5, items["b"]

# %%
def reset():
    global n, first
    n, first = 1, kept

reset()

# %%
n, first, first is items["a"], items["b"]
