# Classes that derive from property, classmethod and staticmethod.

# %%
class shared(property):
    def __get__(self, one, kind=None):
        return self.fget(kind)

class noted(property):
    """A property with notes."""

class counted(staticmethod):
    calls = 0

class Pool:
    held = []

    @shared
    def size(kind):
        "How many there are."
        return len(kind.held)

    @noted
    def first(self):
        return self.held[0]

    @counted
    def fresh(value, made=[]):
        made.append(value)
        return made

pool = Pool()

# %%
Pool.held.append(pool.size)
Pool.first = vars(Pool)["first"].setter(lambda self, value: self.held.insert(0, value))
vars(Pool)["first"].note = Pool.held

# %%
pool.first = "a"
print(Pool.size, pool.first, Pool.fresh(1), vars(Pool)["size"].__doc__, vars(Pool)["first"].note)

# %%
Pool.last = shared(lambda kind: kind.held[-1])
vars(Pool)["fresh"].calls = len(pool.fresh(2))

# %%
Pool.held.append(vars(Pool)["first"].note is Pool.held)

# %%
pool.last, Pool.size, Pool.fresh(3), vars(Pool)["fresh"].calls, type(vars(Pool)["first"]).__name__
