# Code that runs when a class or an object is made: metaclasses, `__init_subclass__`, `__set_name__`, `__new__`.

# %%
class Meta(type):
    made = []
    def __new__(m, name, bases, ns, **k):
        Meta.made.append(name)
        return super().__new__(m, name, bases, ns, **k)
    def __init__(cls, name, bases, ns, **k):
        super().__init__(name, bases, ns)
        cls.number = len(Meta.made)
    def __setattr__(cls, k, v):
        Meta.made.append(k)
        super().__setattr__(k, v)
class Base(metaclass=Meta):
    kinds = []
    def __init_subclass__(cls, tag="none", **kw):
        super().__init_subclass__(**kw)
        cls.tag = tag
        Base.kinds.append(cls)

# %%
class Dog(Base, tag="dog"):
    pass
print(Meta.made, [k.__name__ for k in Base.kinds])

# %%
class Cat(Base, tag="cat"):
    pass
print(Meta.made, [k.__name__ for k in Base.kinds], Dog.number, Cat.number, Dog.tag, Cat.tag)

# %%
class Field:
    names = []
    def __set_name__(self, owner, name):
        self.name = name
        Field.names.append(name)
    def __get__(self, o, t=None): return self if o is None else o.__dict__.get(self.name, 0)
    def __set__(self, o, v): o.__dict__[self.name] = int(v)
class Model:
    a = Field()
    b = Field()
m = Model(); m.a = "4"
print(Field.names, m.a, m.b)

# %%
class Sub(Model):
    c = Field()
s = Sub(); s.c = 3; s.a = 1
print(Field.names, s.a, s.c, [k.__name__ for k in Base.kinds], Meta.made)

# %%
import abc
class AM(abc.ABCMeta):
    seen = []
    def __call__(cls, *a):
        AM.seen.append(cls.__name__)
        return super().__call__(*a)
class Shape(metaclass=AM):
    @abc.abstractmethod
    def area(self): ...
class Sq(Shape):
    def area(self): return 4
q = Sq()
try:
    Shape()
except TypeError as e:
    print(e)
print(AM.seen)
