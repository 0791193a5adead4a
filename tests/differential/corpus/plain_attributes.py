# Objects whose attributes are also reached through a dictionary.

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
