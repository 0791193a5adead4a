# Classes that change: new methods, redefinition, __class__ assignment, class attributes, descriptors.

# %%
class Animal:
    sounds = []

    def speak(self):
        self.sounds.append("...")
        return "..."

class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, kind=None):
        return self if obj is None else getattr(obj, self.name)

    def __set__(self, obj, value):
        if value <= 0:
            raise ValueError(value)
        setattr(obj, self.name, value)

# %%
old = Animal()
old.speak()

class Dog(Animal):
    weight = Positive()

    def speak(self):
        return "wau " + super().speak()

dog = Dog()

# %%
dog.weight = 5
Animal.legs = 4
def run(self):
    return f"{type(self).__name__} runs on {self.legs}"
Animal.run = run
print(dog.run(), dog.speak(), Animal.sounds)

# %%
class Animal:
    def speak(self):
        return "new"

type(old) is Animal, isinstance(dog, Animal), old.speak(), Animal().speak()

# %%
old.__class__ = Animal
old.speak(), Dog.__mro__[1] is Animal, Dog.__mro__[1].legs

# %%
try:
    dog.weight = -1
except ValueError as error:
    print("refused", error)
del Dog.speak
dog.speak(), dog.weight, vars(dog)
