# Weak references and weak collections whose targets live on.

# %%
import weakref

class Node:
    def __init__(self, name, parent=None):
        self.name = name
        self.children = []
        self.parent = weakref.ref(parent) if parent else None
        if parent:
            parent.children.append(self)

    def __repr__(self):
        return self.name

root = Node("root")
leaf = Node("leaf", root)
by_name = weakref.WeakValueDictionary(root=root, leaf=leaf)

# %%
leaf.parent().name = "changed"
new = Node("new", leaf)
by_name["new"] = new

# %%
print(root.name, new.parent() is leaf, sorted(by_name), by_name["leaf"] is leaf)
known = weakref.WeakSet([root, new])
notes = weakref.WeakKeyDictionary({leaf: "a leaf"})

# %%
notes[root] = ["the root"]
known.add(leaf)
len(known), notes[leaf]

# %%
del by_name["leaf"], notes[leaf]
known.discard(leaf)
root.children.clear()
sorted(by_name), len(known), len(notes), new.parent() is leaf

# %%
notes[root].append(new.name)
list(notes.values()), root in known, sorted(by_name)
