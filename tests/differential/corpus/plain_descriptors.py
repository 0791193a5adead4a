# Operators, context managers, callables, custom hashing and equality, getattr magic.

# %%
class Vector:
    def __init__(self, *parts):
        self.parts = list(parts)

    def __add__(self, other):
        return Vector(*(a + b for a, b in zip(self.parts, other.parts)))

    def __iadd__(self, other):
        self.parts[:] = (self + other).parts
        return self

    def __eq__(self, other):
        return self.parts == other.parts

    def __hash__(self):
        return hash(tuple(self.parts))

    def __repr__(self):
        return f"Vector{tuple(self.parts)}"

class Config:
    def __init__(self, **values):
        self.__dict__["_values"] = values

    def __getattr__(self, name):
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self._values[name] = value

# %%
v = w = Vector(1, 2)
places = {v: "start", Vector(0, 0): "origin"}
config = Config(rate=1)

# %%
w += Vector(10, 10)
config.depth = [v]
print(v, places[Vector(0, 0)], config.rate)

# %%
class Timer:
    def __init__(self):
        self.events = []

    def __enter__(self):
        self.events.append("in")
        return self

    def __exit__(self, *details):
        self.events.append(details[0])
        return True

    def __call__(self, *more):
        self.events.extend(more)

timer = Timer()
with timer as t:
    t(1, 2)
    raise KeyError("swallowed")

# %%
config.depth[0] is w, timer.events, list(places), Vector(1, 2) in places

# %%
with timer:
    config.depth.append(timer)
del places[Vector(0, 0)]
config.depth[1].events, len(places), config.depth[0]
