# lru_cache, cached_property, partial, singledispatch, wraps.

# %%
from functools import lru_cache, cached_property, partial, wraps, reduce

calls = []

@lru_cache(maxsize=None)
def slow(n):
    calls.append(n)
    return n * n

class Lazy:
    @cached_property
    def value(self):
        calls.append("lazy")
        return [1]

# %%
slow(2), slow(3), slow(2)
lazy = Lazy()

# %%
lazy.value.append(slow(3))
add = partial(pow, 2)
calls

# %%
def loud(function):
    @wraps(function)
    def inner(*args):
        inner.count += 1
        return function(*args)

    inner.count = 0
    return inner

@loud
def greet(name):
    return f"hello {name}"

# %%
greet("a")
more = partial(greet, "b")
more()
lazy.value, greet.count, slow(2)

# %%
@lru_cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

fib(20), fib.cache_info()

# %%
print(more(), greet.count, add(10), fib(21), fib.cache_info(), slow.cache_info())
slow(7), calls
