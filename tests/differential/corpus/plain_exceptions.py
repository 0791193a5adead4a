# Own exceptions, chains, notes, groups, errors that stop a cell half-way.

# %%
class Lost(Exception):
    def __init__(self, place, things):
        super().__init__(f"lost {len(things)} at {place}")
        self.place, self.things = place, things

things = ["key"]
done = []

# %%
try:
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise Lost("home", things) from error
except Lost as error:
    kept = error
    kept.add_note("look again")

# %%
things.append("phone")
print(kept, kept.things, type(kept.__cause__).__name__, kept.__notes__)

# %%
done.append("before")
raise Lost("street", things)

# %%
done.append("after")
group = ExceptionGroup("many", [kept, ValueError(1)])
found = group.split(Lost)

# %%
kept.things.append("coat")
found[0].exceptions[0] is kept, len(things), group.exceptions[1].args

# %%
errors = {}
for text in ("1", "x"):
    try:
        int(text)
    except ValueError as problem:
        errors[text] = problem
errors["x"].args, done, "problem" in globals()
