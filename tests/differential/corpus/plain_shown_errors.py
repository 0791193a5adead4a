# Errors that a cell shows and survives, what a property's error says, and programs that ask where they run.

# %%
class Picky:
    @property
    def size(self):
        return 3

    def _repr_html_(self):
        raise ValueError("no html today")


def in_notebook():
    return type(get_ipython()).__name__, "zmq" in str(type(get_ipython()))


picky = Picky()
in_notebook()

# %%
picky

# %%
try:
    picky.size = 4
except AttributeError as error:
    said = str(error)
said, in_notebook()

# %%
try:
    [1, 2][5]
except IndexError:
    get_ipython().showtraceback()
print("and on")

# %%
del picky.size

# %%
%tb
