# Files as Python itself reads and writes them, with every kind of path.

# %%
import csv
import glob
import json
import os
import shutil
from pathlib import Path

here = Path.cwd()
(here / "data/raw").mkdir(parents=True)
for number in range(3):
    with open(f"data/raw/{number}.csv", "w", newline="") as file:
        csv.writer(file).writerows([["x", "y"], [number, number**2]])
del file
Path("settings.json").write_text(json.dumps({"rate": 0.5, "names": ["größe"]}))

# %%
rows = []
for name in sorted(glob.glob("data/*/*.csv")):
    with open(name, newline="") as file:
        rows += [(name, *map(int, row.values())) for row in csv.DictReader(file)]
del file
settings = json.loads((here / "settings.json").read_text())
settings["rows"] = len(rows)
(here / "settings.json").write_text(json.dumps(settings))
rows

# %%
with open("log.txt", "w") as log:
    print("one", file=log)
with open("log.txt", "a") as log:
    print("two", file=log)
opened = log.name
del log
shutil.copytree("data", "copy")
shutil.rmtree("data/raw")
os.rename("copy/raw/0.csv", "first.csv")
os.replace("copy/raw/1.csv", "settings.json")
os.symlink("first.csv", "link")
os.chmod("log.txt", 0o600)

# %%
found = sorted(str(path.relative_to(here)) for path in here.rglob("*"))
sizes = {entry.name: entry.stat().st_size for entry in os.scandir(here) if entry.is_file()}
print(os.getcwd() == str(here), os.path.exists("data/raw"), Path("link").resolve().name)
found

# %%
with open(here / "log.txt", "r+") as log:
    text = log.read()
    log.seek(0)
    log.write("ONE")
    log.truncate()
    opened += " " + str(log.name)
del log
os.remove("first.csv")
problems = []
for name in ("first.csv", "link", "data", here / "nowhere/a"):
    try:
        open(name).close()
    except OSError as error:
        problems.append((type(error).__name__, error.strerror, str(error.filename)))
problems

# %%
os.chdir("copy")
Path("here.txt").write_text("beside the copy")
left = sorted(os.listdir()), sorted(os.listdir(".."))
open("../missing.txt")
