# Sentinels and singletons compared by identity, classes with __new__, metaclasses.

# %%
MISSING = object()

class Single:
    _only = None

    def __new__(cls):
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

class Meta(type):
    registry = {}

    def __new__(meta, name, bases, body):
        made = super().__new__(meta, name, bases, body)
        meta.registry[name] = made
        return made

# %%
options = {"a": 1, "b": MISSING}
single = Single()

# %%
class Plugin(metaclass=Meta):
    pass

class Better(Plugin):
    default = MISSING

print([key for key, value in options.items() if value is MISSING], Single() is single)

# %%
def get(key, default=MISSING):
    value = options.get(key, default)
    return "missing" if value is MISSING else value

options["c"] = Better.default
single.state = [MISSING]

# %%
get("a"), get("b"), get("z"), single.state[0] is Better.default, sorted(Meta.registry)

# %%
Meta.registry["Better"] is Better, type(Better) is Meta, Single()._only is single, single.state
