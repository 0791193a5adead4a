"""`%reset` clears the results, in whichever kind of cell it is."""
# %%
import contextlib, io

big = [1]
big
# %%
sorted(Out), _1
# %%
with contextlib.redirect_stdout(io.StringIO()):
    %reset -f out
"after"
# %%
print(sorted(Out), "_1" in globals(), big)
big
# %%
%reset -f
# %%
print(sorted(Out), "big" in globals())
