# Functions that a library creates from the notebook's (`singledispatch`, `contextmanager`), read-only views of dicts.

# %%
import contextlib
import functools
import types

@functools.singledispatch
def show(x):
    return f"any {x}"

@show.register
def _(x: int):
    return f"int {x}"

@contextlib.contextmanager
def section(name, log=[]):
    section.used = getattr(section, "used", 0) + 1
    log.append(name)
    yield log
    log.append(f"end of {name}")

settings = {"lr": 0.1}
fixed = types.MappingProxyType(settings)

# %%
settings["epochs"] = 2

@show.register(str)
def show_text(x):
    return f"text {x}"

with section("first") as log:
    log.append("inside")
print(show(3), show("s"), fixed, section.used)

# %%
@show.register
def _(x: list):
    return f"list of {len(x)}"

with section("second") as again:
    pass
print(again is log, log, section.used, show([1]), show(True), sorted(kind.__name__ for kind in show.registry))

# %%
class Circle:
    def __init__(self, radius):
        self.radius = radius

    @functools.cached_property
    def area(self):
        print("computing")
        return 3 * self.radius**2

    def scale(self, by):
        self.radius *= by
        return self

    def power(self, base, n):
        return base**n

    square = functools.partialmethod(power, n=2)

circle = Circle(2)
circle.area, show("s"), show.dispatch(list) is _

# %%
del settings["lr"]
print(circle.area, circle.scale(3).radius, circle.square(5), fixed, dict(fixed))
del circle.area
circle.area

# %%
circle.scale(2)
circle.area, show([1, 2]), show(2.5), section.used
