# Cells that delete names: at once, perhaps, after an error, and names that another cell still sees under another name.

# %%
big = list(range(50_000))
same = big
file = open("a.txt", "w")
file.write("one")
file.close()
numbers = (n for n in [1, 2])
error = "an old value"
left = middle = right = [1]
next(numbers)

# %%
del big, numbers, file
len(same), "gone"

# %%
if len(same) > 10:
    del left
else:
    del middle
try:
    {}["missing"]
except KeyError as error:
    print(type(error).__name__)
middle

# %%
1 / 0
del right

# %%
right.append(2)
print("error" in dir(), "left" in globals(), "big" in dir())
del right

# %%
del right
