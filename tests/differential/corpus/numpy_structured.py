# Structured arrays, records, fields as views, dates, text, booleans, complex numbers.

# %%
import numpy as np

people = np.array([("ann", 30, 1.5), ("bob", 40, 1.7)], dtype=[("name", "U8"), ("age", "i4"), ("size", "f8")])
ages = people["age"]
dates = np.array(["2024-01-01", "2024-02-01"], dtype="datetime64[D]")

# %%
ages += 1
people["size"][0] = 2.5
dates[1] += 5

# %%
print(people)
people[1] = ("cid", 5, 0.1)
one = people[0]

# %%
one["age"] = 99
mask = people["size"] > 1
z = np.array([1 + 2j, 3]).conj()
real = z.real

# %%
real[:] = 0
words = np.array(["a", "bb"], dtype=object)
words[0] = people
flags = np.packbits(mask)

# %%
people["age"].tolist(), z, words[0] is people, dates, flags, ages.base is people
