# Reference cycles: dropped and collected; weak references to their objects.

# %%
import gc
import weakref

class Node:
    def __init__(self, name):
        self.name = name
        self.other = None

def pair(left, right):
    one, two = Node(left), Node(right)
    one.other, two.other = two, one
    return one

kept = pair("a", "b")
lost = pair("c", "d")
looks = [weakref.ref(kept), weakref.ref(lost), weakref.ref(lost.other)]

# %%
kept.other.name = "changed"
lost.other.name = "changed, too"

# %%
back = lost.other
del lost

# %%
print(looks[1]() is back.other, [look().name for look in looks])
here = pair("e", "f")
here.other.held = [here, kept]

# %%
back.other.name = "held by the circle only"
alone = here.other
del here

# %%
alone.other.name, back.other.name, looks[1]().name, kept.other.name, alone.held[1] is kept
