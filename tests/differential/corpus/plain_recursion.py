# Trees, linked lists, graphs with cycles, recursive functions, mutual references.

# %%
class Tree:
    def __init__(self, value):
        self.value, self.left, self.right = value, None, None

    def insert(self, value):
        side = "left" if value < self.value else "right"
        child = getattr(self, side)
        if child is None:
            setattr(self, side, Tree(value))
        else:
            child.insert(value)

    def __iter__(self):
        if self.left:
            yield from self.left
        yield self.value
        if self.right:
            yield from self.right

tree = Tree(5)

# %%
for value in (3, 8, 1, 4):
    tree.insert(value)
left = tree.left

# %%
tree.insert(2)
left.value = 2.5
print(list(tree))

# %%
a, b = [], []
a.append(b)
b.append(a)
ring = {"a": a}
ring["self"] = ring

# %%
a.append(tree)
b[0][1].extra = ring
def even(n):
    return n == 0 or odd(n - 1)
def odd(n):
    return n != 0 and even(n - 1)

# %%
even(10), ring["a"][0][0] is a, tree.extra["self"] is ring, list(left)

# %%
ring.pop("self")
b.clear()
left.left = None
list(tree), tree.extra is ring, a[0]
