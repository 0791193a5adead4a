# What a notebook hangs on IPython: magics, formatters, callbacks of events, transformers of what is typed.

# %%
from IPython.core.magic import register_cell_magic, register_line_magic
factor = 2

@register_line_magic
def times(line):
    return int(line) * factor

seen = []
def note(*arguments):
    seen.append(len(seen))
get_ipython().events.register("pre_run_cell", note)

# %%
factor = 3
seven = %times 7
%times 5

# %%
@register_cell_magic
def shout(line, cell):
    print(line, cell.strip().upper())

class Point:
    def __init__(self, x):
        self.x = x

def as_text(point, printer, cycle):
    printer.text(f"<{point.x * factor}>")

point = Point(3)
get_ipython().display_formatter.formatters["text/plain"].for_type(Point, as_text)
point

# %%
get_ipython().run_cell_magic("shout", "so:", "quiet words")
[point], len(seen)

# %%
def answers(lines):
    return [line.replace("ANSWER", "42") for line in lines]
get_ipython().input_transformers_post.append(answers)
get_ipython().events.unregister("pre_run_cell", note)

# %%
print(ANSWER, len(seen))

# %%
get_ipython().input_transformers_post.remove(answers)
get_ipython().display_formatter.formatters["text/plain"].pop(Point)

# %%
text = str(point)[:16]
"ANSWER", text, seven
