# What cells register with libraries and set on their objects.

# %%
import calendar
import codecs
import copy
import copyreg
import csv
import decimal
import io
import mimetypes
import os
import pathlib
import reprlib

import matplotlib as mpl
import matplotlib.figure
import matplotlib.units as units
import numpy as np
import pandas as pd


class Metres:
    def __init__(self, value):
        self.value = value


def reduced(metres):
    return rebuilt, (metres.value,)


def rebuilt(value):
    return Metres(value + 100)


class Converter(units.ConversionInterface):
    @staticmethod
    def convert(value, unit, axis):
        return [metres.value for metres in value]

    @staticmethod
    def axisinfo(unit, axis):
        return units.AxisInfo(label="metres")

    @staticmethod
    def default_units(values, axis):
        return "m"


def marked(error):
    return mark * (error.end - error.start), error.end


mark = "!"
csv.register_dialect("course", delimiter=";", quoting=csv.QUOTE_ALL)
codecs.register_error("marked", marked)
mpl.colormaps.register(mpl.colors.ListedColormap(["red", "blue"], name="two"))
units.registry[Metres] = Converter()
usual = os.umask(0o077)

# %%
text = io.StringIO()
csv.writer(text, "course").writerow([1, 2])
mark = "?"
copyreg.pickle(Metres, reduced)
mimetypes.add_type("course/x", ".crs")
calendar.setfirstweekday(calendar.SUNDAY)
pathlib.Path("private.txt").write_text("mine")
print(repr(text.getvalue()), "aéé".encode("ascii", "marked"), mpl.colormaps["two"](0.0)[:3] == (1, 0, 0))

# %%
reprlib.aRepr.maxlist = 2
decimal.DefaultContext.prec = 5
pd.options.display.float_format = lambda value: f"<{value:.1f}>"
np.set_printoptions(formatter={"float": lambda value: f"[{value:.2f}]"})
os.umask(usual)
print(copy.copy(Metres(1)).value, mimetypes.guess_type("a.crs"), calendar.weekheader(2))

# %%
figure = mpl.figure.Figure()
axes = figure.subplots()
axes.plot([Metres(1), Metres(2)], [1, 2])
label = axes.xaxis.get_label_text()
pathlib.Path("public.txt").write_text("everybody's")
texts = np.array(["a", "b" * 40], dtype=np.dtypes.StringDType())
print(reprlib.repr([1, 2, 3]), decimal.Context().prec, pd.Series([1.25]), np.ones(2), label)
del figure, axes

# %%
texts[0] = "c" * 30
both = [texts, texts]
pd.reset_option("display.float_format")
np.set_printoptions(formatter=None)
csv.unregister_dialect("course")
decimal.DefaultContext.prec = 28

# %%
both[1][1] = "d"
print(both[0].tolist(), both[0] is texts, "course" in csv.list_dialects(), pd.Series([1.25]), np.ones(2))
del texts, both
