"""Functions whose global variables belong to no imported module, such as those of a script under `%run`."""

from __future__ import annotations

import gc

from harness import Pair

SCRIPT = """
net, losses, rate, unused = [0], [], 1, [open(__file__)]
def train():
    net[0] += rate
    losses.append(net[0])
def set_rate(value):
    global rate
    rate = value
def forget():
    global rate
    del rate
def seen():
    return rate, losses, "unused" in globals()
"""
RUN = f"script = {{'__file__': {__file__!r}}}; exec({SCRIPT!r}, script)\nglobals().update(script); del script"


def test_functions_share_their_variables_in_both_kernels(pair: Pair) -> None:
    pair.local(RUN)
    assert pair.remote("train()", "train") == {"error": None}
    pair.local("train(); found = net, losses")
    assert pair.namespace["found"] == ([2], [1, 2])
    pair.remote("train(); same = net is train.__globals__['net']", "train", "net")
    assert pair.namespace["losses"] == [1, 2, 3]
    assert pair.namespace["same"] is True


def test_an_assignment_reaches_functions_that_travelled_before_or_travel_later(pair: Pair) -> None:
    pair.local(RUN)
    pair.remote("train()", "train")
    pair.remote("set_rate(5); train()", "train", "set_rate")
    pair.local("train(); set_rate(7)")
    assert pair.namespace["net"] == [11]
    pair.remote("train(); rates = train.__globals__ is set_rate.__globals__, net", "train", "set_rate", "net")
    assert pair.namespace["rates"] == (True, [18])


def test_a_deleted_variable_is_deleted_and_only_named_ones_travel(pair: Pair) -> None:
    pair.local(RUN)
    pair.remote("forget(); names = sorted(train.__globals__)", "train", "forget")
    assert "rate" not in pair.namespace["train"].__globals__
    assert pair.namespace["names"] == ["__builtins__", "losses", "net"]
    pair.local("set_rate(3)")
    pair.remote("train()", "train")
    assert pair.namespace["net"] == [3]


def test_a_function_that_reads_the_dictionary_has_all_variables(pair: Pair) -> None:
    pair.local(RUN)
    pair.remote("found = seen()", "seen")
    assert pair.namespace["found"] == (1, pair.namespace["losses"], True)


def test_functions_of_the_session_share_their_variables(pair: Pair) -> None:
    pair.remote(RUN)
    pair.local("set_rate(2); train()")
    pair.remote("train()", "train")
    assert pair.namespace["net"] == [4]


def test_methods_of_a_class_share_variables_with_functions(pair: Pair) -> None:
    script = "class Net:\n    def run(self): return scale\ndef set_scale(value): global scale; scale = value"
    pair.local(f"script = {{'__name__': '__main__'}}; exec({script!r}, script)")
    pair.local("Net, change = script['Net'], script['set_scale']; del script")
    pair.remote("net = Net(); change(3)", "Net", "change")
    pair.local("found = net.run(); change(4)")
    pair.remote("found = found, net.run()", "net", "found")
    assert pair.namespace["found"] == (3, 4)


def test_variables_are_freed_with_their_functions(pair: Pair) -> None:
    pair.local("class Large: pass\nimport weakref")
    pair.local("script = {}; exec('def use(): return held', script)")
    pair.local("script['held'] = Large(); seen = weakref.ref(script['held']); use = script.pop('use'); del script")
    pair.remote("use()", "use")
    pair.local("del use")
    pair.table._pace.is_due = lambda *size: True  # type: ignore[method-assign]
    for _ in range(3):
        pair.remote("pass")
        gc.collect()
    assert pair.namespace["seen"]() is None
