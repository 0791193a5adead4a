# Types that are made with `typing`: variables, new types, generic classes, protocols, typed dicts.

# %%
from typing import Annotated, Callable, NewType, Optional, ParamSpec, Protocol, TypedDict, TypeVar, runtime_checkable
Number = TypeVar("Number", int, float)
Item = TypeVar("Item", bound=list)
Arguments = ParamSpec("Arguments")
UserId = NewType("UserId", int)

# %%
@runtime_checkable
class Quacks(Protocol):
    def quack(self) -> str: ...

class Box:
    def __init__(self, held: Item):
        self.held = held

class Options(TypedDict, total=False):
    size: int

def next_user(user: UserId) -> UserId:
    return UserId(user + 1)

# %%
class Duck:
    def quack(self):
        return "quack"

box = Box([1])
next_user(UserId(3)), isinstance(Duck(), Quacks), isinstance(box, Quacks), UserId.__supertype__

# %%
def logged(function: Callable[Arguments, Number]) -> Callable[Arguments, Number]:
    def wrapper(*arguments: Arguments.args, **named: Arguments.kwargs) -> Number:
        print("called with", arguments)
        return function(*arguments, **named)
    return wrapper

add = logged(lambda x, y: x + y)
Item.__bound__, len(Number.__constraints__), Number.__module__, UserId.__module__, Arguments

# %%
print(add(1, 2), next_user(4), Box.__init__.__annotations__["held"] is Item)
maybe = Optional[UserId]
maybe.__args__[0] is UserId, Options.__optional_keys__, Annotated[UserId, "x"].__metadata__

# %%
box.held.append(UserId(7))
next_user.__annotations__["user"] is UserId, box.held, maybe
