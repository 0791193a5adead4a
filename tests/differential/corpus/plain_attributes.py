# Attributes whose dictionary is also reached in another way.

# %%
class Options(dict):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.__dict__ = self


options = Options(rate=0.1)
options.epochs = 3
options["epochs"], options.rate, options

# %%
options.rate = 0.5
options["new"] = [1]
options, options.new, options.__dict__ is options

# %%
options.late = 9
options["new"].append(options.late)
options["late"], options.new, vars(options) is options


# %%
class Shared:
    everything = {}

    def __init__(self):
        self.__dict__ = Shared.everything


first = Shared()
first.x = 5
second = Shared()
second.x

# %%
second.x = 6
first.x, Shared.everything, first.__dict__ is second.__dict__

# %%
third = Shared()
third.y = 1
first.y, first.x

# %%
third.__dict__ = {"alone": 1}
third.z = 2
first.x, vars(third), vars(second)

# %%
third.z = 3
second.x = 7
first.x, vars(third), Shared.everything


# %%
class Point:
    pass


point = Point()
point.x = 1
found = vars(point)
found["y"] = 2
point.y

# %%
point.x = 10
found["z"] = 3
found["x"], point.z

# %%
found["x"], point.z, found is point.__dict__

# %%
late = vars(first)
late["w"] = 8
second.w

# %%
second.v = 9
late["v"], first.v

# %%
other = Point()
other.x = 1

# %%
seen = vars(other)

# %%
other.x = 2
seen["x"]

# %%
seen["x"] = 3
other.x
