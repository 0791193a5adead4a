# Lists, dicts and sets that share parts with each other.

# %%
shared = [1, 2]
rows = [shared, shared, [3]]
table = {"shared": shared, "rows": rows}
pair = (shared, rows)

# %%
shared.append(3)
rows[2] += [4, 5]
table["new"] = {"inner": shared}

# %%
print(rows, table)
rows.sort(key=len)
del table["shared"]

# %%
words = {"a", "b"}
frozen = frozenset([pair[0][0], "z"])
words |= {"c"}
holder = [words, words]

# %%
words.discard("a")
rows[:] = [row for row in rows if row is not shared]
shared

# %%
rows.append(rows)
table["rows"] is rows, holder[0] is words
