# Copies share or do not share; swaps; objects that move between owners.

# %%
import copy

inner = {"n": [0]}
outer = [inner, [inner]]
shallow, deep = copy.copy(outer), copy.deepcopy(outer)

# %%
inner["n"].append(1)
shallow.append("only here")
deep[1][0]["n"].append("deep")

# %%
print(outer, shallow, deep)
outer[0], outer[1] = outer[1], outer[0]
moved = outer.pop()

# %%
moved["self"] = moved
again = copy.deepcopy(moved)

# %%
again["self"] is again, moved is inner, deep[0] is deep[1][0], shallow[1][0] is inner

# %%
again["self"]["n"] = moved["n"]
inner, moved = moved, again
again["n"].append(2)
inner["n"], moved["n"] is inner["n"]
