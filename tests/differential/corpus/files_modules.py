# A module that the notebook writes itself, edits and loads anew.

# %%
import importlib
import sys
from pathlib import Path

sys.dont_write_bytecode = True
Path("shapes.py").write_text("""
class Square:
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side ** 2
""")
Path("tools").mkdir()
Path("tools/__init__.py").write_text("from tools.numbers import double\n")
Path("tools/numbers.py").write_text("def double(number):\n    return 2 * number\n")

# %%
importlib.invalidate_caches()
import shapes
from tools import double

small = shapes.Square(2)
areas = [small.area(), shapes.Square(double(2)).area()]
areas

# %%
Path("shapes.py").write_text(Path("shapes.py").read_text() + """
    def scaled(self, factor):
        return Square(self.side * factor)
""")
kept = hasattr(shapes.Square, "scaled")
importlib.reload(shapes)
large = shapes.Square(3).scaled(double(5))
kept, large.area(), isinstance(small, shapes.Square)

# %%
print(Path(shapes.__file__).name, double.__module__, shapes.Square.__module__)
areas.append(large.area())
names = sorted(path.name for path in Path.cwd().iterdir())

# %%
import traceback
try:
    open(Path.cwd() / "nowhere")
except OSError:
    traceback.print_exc()
