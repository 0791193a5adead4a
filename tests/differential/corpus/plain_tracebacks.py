# Errors: where a traceback points to, in functions of earlier cells, nested, chained, raised on purpose.

# %%
import math

def outer(value):
    return inner(value) + 1

def inner(value):
    if value < 0:
        raise ValueError(f"{value} is negative")
    return math.sqrt(value)

errors = []

# %%
errors.append(outer(4))
outer(-1)

# %%
try:
    outer(-2)
except ValueError as error:
    errors.append(error)
    raise RuntimeError("wrapped") from error

# %%
def checked(value):
    try:
        return inner(value)
    except ValueError:
        return {}["missing"]

checked(-3)

# %%
print("before")
assert len(errors) == 5, errors
print("never")

# %%
import json
try:
    json.loads("{")
except json.JSONDecodeError as error:
    print(error.lineno, error.msg)
errors.append(1)
[].pop()

# %%
len(errors), [type(one).__name__ for one in errors], undefined_name
