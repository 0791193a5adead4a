# Files as libraries read and write them, most of them in C or Rust.

# %%
import sqlite3
import zipfile

import numpy as np
import pandas as pd
import polars as pl
from PIL import Image

table = pd.DataFrame({"x": np.arange(5), "y": np.arange(5) ** 2, "kind": list("aabbc")})
table.to_csv("table.csv", index=False)
np.savez("arrays.npz", a=np.eye(3), b=np.arange(4))
np.arange(6.0).reshape(2, 3).tofile("raw.bin")

# %%
again = pd.read_csv("table.csv")
lazy = pl.scan_csv("table.csv").group_by("kind").agg(pl.col("y").sum()).sort("kind").collect()
arrays = dict(np.load("arrays.npz"))
mapped = np.memmap("raw.bin", dtype="float64", mode="r+", shape=(2, 3))
mapped[1] = -mapped[1]
mapped.flush()
total = float(mapped.sum())
del mapped
total, again.equals(table)

# %%
with sqlite3.connect("results.sqlite") as database:
    database.execute("create table results (kind text, total integer)")
    database.executemany("insert into results values (?, ?)", lazy.rows())
database.close()
del database
pixels = (np.arange(64).reshape(8, 8) * 3).astype("uint8")
Image.fromarray(pixels).save("picture.png")

# %%
with sqlite3.connect("results.sqlite") as database:
    database.execute("update results set total = total + 1 where kind = 'b'")
    results = database.execute("select * from results order by kind").fetchall()
database.close()
del database
with Image.open("picture.png") as picture:
    seen = np.asarray(picture).copy()
raw = np.fromfile("raw.bin")
results, int(seen.sum())

# %%
with zipfile.ZipFile("all.zip", "w") as archive:
    for name in ("table.csv", "raw.bin"):
        archive.writestr(zipfile.ZipInfo(name), open(name, "rb").read())
with zipfile.ZipFile("all.zip") as archive:
    archive.extract("raw.bin", "unpacked")
    names = archive.namelist()
unpacked = np.fromfile("unpacked/raw.bin")
np.array_equal(raw, unpacked), names
