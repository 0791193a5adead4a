# Ranges and slices that are equal and not the same.

# %%
splits = range(0, 3, 2)
windows = {"a": slice(0, 1), "b": slice(None, [1])}
inner = windows["b"].stop

# %%
splits = range(0, 4, 2)
windows["a"] = slice(0, True)

# %%
print(splits.stop, windows)
windows["b"] = slice(None, inner)
empty = [range(0), range(2, 2)]

# %%
inner.append(2)
empty.sort(key=len)
empty[0] = range(1, 1)

# %%
splits, windows, windows["b"].stop is inner, empty
