# Own `__new__` methods: the only instance of a class, counted instances, numbers with a unit.

# %%
class Config:
    _instance = None
    made = 0
    def __new__(cls):
        cls.made += 1
        if cls._instance is None:
            print("making")
            cls._instance = super().__new__(cls)
        return cls._instance
    def __init__(self):
        self.settings = getattr(self, "settings", {})

one = Config()

# %%
two = Config()
two.settings["lr"] = 0.1
print(one is two, Config.made)

# %%
three = Config()
print(three is one, three.settings, Config.made, Config._instance is one)

# %%
class Celsius(float):
    made = []
    def __new__(cls, value, unit):
        self = super().__new__(cls, value)
        self.unit = unit
        cls.made.append(value)
        return self
t = Celsius(3.5, "C")
temps = [t, Celsius(4.0, "C")]

# %%
print(t.unit, t, t is temps[0], Celsius.made, sum(temps))
class Counted:
    count = 0
    def __new__(cls, *args):
        cls.count += 1
        return super().__new__(cls)
    def __init__(self, n): self.n = n
items = [Counted(i) for i in range(3)]

# %%
items.append(Counted(5))
print(Counted.count, [i.n for i in items])
