"""Classes of a module that `%autoreload` updates: in place where it can, and anew where it cannot."""
# %%
%load_ext autoreload
%autoreload 2
import pathlib

def edit(body):
    pathlib.Path("net.py").write_text("class Net:\n" + body)

one = "    def go(self): return 'one'\n"
# %%
edit(one)
import net
from net import Net

first = Net()
first.go(), net.Net is Net
# %%
edit("    def go(self): return 'two!'\n")
# %%
second = Net()
print(first.go(), isinstance(first, Net), net.Net is Net, type(first) is type(second), second.go())
edit(one)
# %%
print(first.go(), isinstance(first, Net), net.Net is Net)
edit("    size = 3\n    def go(self): return 'three' * self.size\n    def more(self): return [self.go()]\n")
# %%
print(first.go(), first.more(), isinstance(first, Net), net.Net is Net, Net.size)
edit("    def go(self): return 'four'\nfor _ in 'a': pass\n")
# %%
print(first.go(), second.go(), isinstance(first, net.Net), isinstance(second, Net), net.Net is Net)
# %%
first.go(), isinstance(first, net.Net), net.Net is Net, hasattr(Net, "more")
