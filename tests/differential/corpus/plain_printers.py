# How IPython formats values: printers by class name, those of libraries, and IPython's own restored.

# %%
from collections import Counter
from fractions import Fraction
from IPython.lib import pretty

formatters = get_ipython().display_formatter.formatters
plain, html = formatters["text/plain"], formatters["text/html"]

def show(value, printer, cycle):
    printer.text(f"<{value.numerator} of {value.denominator}>")

def count(counter, printer, cycle):
    printer.text(f"{sum(counter.values())} things")

plain.for_type_by_name("fractions", "Fraction", show)
usual = plain.for_type(Counter, count)

# %%
Fraction(3, 4)

# %%
html.for_type(int, "<i>{:,}</i>".format)
[Counter("aab"), Fraction(1, 2)]

# %%
12345

# %%
html.pop(int)
plain.for_type(Counter, usual)
pretty.for_type(set, lambda value, printer, cycle: printer.text(f"set of {len(value)}"));

# %%
print(pretty.pretty({1, 2}), pretty.pretty(Counter("a")))
Counter("ab"), Fraction(5, 6), 7

# %%
pretty._type_pprinters.pop(set)
del plain.type_printers[Fraction]
del plain, html, formatters, usual, pretty
Fraction(7, 8)
