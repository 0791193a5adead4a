# Abstract classes, registration, properties, class and static methods, super.

# %%
from abc import ABC, abstractmethod

class Shape(ABC):
    count = 0

    def __init__(self):
        type(self).count += 1
        Shape.total = getattr(Shape, "total", 0) + 1

    @abstractmethod
    def area(self): ...

    @classmethod
    def made(cls):
        return cls.count

    @staticmethod
    def unit():
        return "m2"

# %%
class Square(Shape):
    def __init__(self, side):
        super().__init__()
        self.side = side

    def area(self):
        return self.side**2

    @property
    def diagonal(self):
        return self.side * 2**0.5

    @diagonal.setter
    def diagonal(self, value):
        self.side = value / 2**0.5

# %%
shapes = [Square(1), Square(2)]
shapes[0].diagonal = 2**0.5 * 3
print(Square.made(), Shape.made(), Shape.total, Shape.unit())

# %%
class Stranger:
    def area(self):
        return 7

Shape.register(Stranger)
shapes.append(Stranger())

# %%
[isinstance(shape, Shape) for shape in shapes], sum(shape.area() for shape in shapes)

# %%
try:
    Shape()
except TypeError as error:
    problem = error
Square.area = lambda self: -1
area = shapes[0].area

# %%
print(area(), Square(4).area(), Square.count, Shape.total, problem)
