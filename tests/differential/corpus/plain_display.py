# Outputs: rich displays, streams, results, representations of own classes, errors in functions.

# %%
from IPython.display import HTML, Markdown, display
import sys

class Rich:
    def __init__(self, text):
        self.text = text

    def _repr_html_(self):
        return f"<b>{self.text}</b>"

    def __repr__(self):
        return f"Rich {self.text}"

rich = Rich("one")

# %%
display(rich, HTML("<i>x</i>"))
print("out", end="")
print("err", file=sys.stderr)
rich

# %%
rich.text = "two"
handle = display(Markdown("*a*"), display_id="fixed")
_ = 5

# %%
def fails(depth):
    if not depth:
        raise RuntimeError(f"at {rich.text}")
    fails(depth - 1)

fails(2)

# %%
rich.text = "three";
[rich, {"r": rich}]

# %%
Out[5][0] is rich, 7 if rich.text == "three" else 8
