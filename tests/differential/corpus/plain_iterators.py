# Iterators half used, own iterators, itertools, zip, enumerate.

# %%
import itertools

numbers = [10, 20, 30, 40]
walking = iter(numbers)
first = next(walking)
counted = enumerate("abc", 5)
endless = itertools.count(3)

class Countdown:
    def __init__(self, start):
        self.left = start

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

down = Countdown(4)

# %%
second = next(walking)
next(counted), next(endless), next(down)

# %%
numbers.append(50)
third = next(walking)
print(next(endless), next(counted), next(down))

# %%
rest = list(walking)
list(down), next(endless)

# %%
keys = iter({"a": 1, "b": 2})
pairs = zip([1, 2, 3], "xyz")
next(pairs), next(keys)

# %%
next(pairs), next(keys), list(counted), rest

# %%
text = iter("hello")
next(text)
"".join(text), list(pairs), down.left
