# Errors that are kept and examined later: where they were raised, printed, logged, raised again, the last error.

# %%
import json, sys, traceback

def read(text, *more, key=None):
    return parse(text)["value"]

def parse(text):
    return json.loads(text)

kept = {}

# %%
for text in ("{}", "{", "[]"):
    try:
        read(text)
    except (KeyError, TypeError, ValueError) as error:
        kept[text] = error

# %%
for error in kept.values():
    traceback.print_exception(error)
kept["{"].lineno, [len(traceback.extract_tb(error.__traceback__)) for error in kept.values()]

# %%
try:
    try:
        raise kept["{}"]
    except KeyError as error:
        raise RuntimeError("again") from error
except RuntimeError as error:
    kept["again"] = error
print("".join(traceback.format_exception(kept["again"])))

# %%
read("{", key=1)

# %%
print(type(sys.last_value).__name__, sys.last_value.pos, sys.last_type.__name__)
traceback.print_last()

# %%
raise kept["again"].with_traceback(None) from KeyError("cause")

# %%
frame = traceback.extract_tb(kept["[]"].__traceback__)[-1]
print(sys.last_value is kept["again"], vars(sys.last_value), repr(sys.last_value.__cause__))
print(frame.name, frame.lineno, frame.line); del frame
kept["{}"].with_traceback(None) is kept["again"].__context__
