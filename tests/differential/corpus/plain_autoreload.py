"""A module that is edited while `%autoreload` is on. Each edit is loaded, and prints, once."""
# %%
%load_ext autoreload
%autoreload 2
from pathlib import Path

def edit(value):
    Path("edited.py").write_text(f"print('loading', {value!r})\n\ndef f():\n    return {value!r}\n")
# %%
edit("first")
import edited
from edited import f
f(), edited.f()
# %%
edit("the second")
# %%
f(), edited.f()
# %%
edit("the third one")
print(f(), edited.f())
# %%
f(), edited.f()
# %%
%autoreload 0
edit("four")
# %%
f(), edited.f()
