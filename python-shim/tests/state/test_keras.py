"""Models of Keras 3 with each of its backends, and functions and variables of TensorFlow.

Keras chooses its backend when it is imported, so each test runs in a notebook and a session of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
from harness import Pair
from baton_shim.state.refusal import StandInError
pair = Pair()
home = pair.namespace
def remote(code, *names):
    error = pair.remote(code, *names)["error"]
    if error is not None:
        raise error
"""
MODEL = """
import keras, numpy as np
keras.utils.set_random_seed(1)
inputs = keras.Input((3,))
first = keras.layers.Dense(2, name='first')
hidden = first(inputs)
model = keras.Model(inputs, keras.layers.add([hidden, keras.layers.Dense(2)(hidden)]))
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
model.compile(optimizer=optimizer, loss='mse', metrics=['mae'])
kernel = first.kernel
x, y = np.ones((4, 3), 'float32'), np.zeros((4, 2), 'float32')
parts = [first, optimizer, kernel]
"""
NAMES = ("model", "first", "optimizer", "kernel", "x", "y", "parts", "np", "keras")
FIT = "losses = losses + model.fit(x, y, epochs=2, shuffle=False, verbose=0).history['loss']"
LOOK = (
    "same = (model.get_layer('first') is first is parts[0], model.optimizer is optimizer is parts[1],"
    " first.kernel is kernel is parts[2], first in model.layers, model.compiled)"
)


def run(code: str, **environment: str) -> str:
    """Runs code between a notebook and its session, and returns what both wrote to stderr."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "KERAS_TORCH_DEVICE": "cpu"}
    folders = Path(__file__).parent, Path(__file__).parent.parent, *filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join(map(str, folders))
    constants = f"MODEL, NAMES, FIT, LOOK = {(MODEL, NAMES, FIT, LOOK)!r}"
    command = [sys.executable, "-c", f"{constants}\n{BEGIN}\n{code}\npair.close()"]
    done = subprocess.run(
        command, env={**os.environ, **quiet, **environment, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_models_are_trained_in_both_kernels_as_in_one(backend: str) -> None:
    pytest.importorskip("keras")
    pytest.importorskip(backend)
    code = """
alone = {}
exec('\\n'.join((MODEL, 'losses = []', FIT, FIT, FIT)), alone)
pair.local(MODEL + 'losses = []')
remote(FIT + '\\n' + LOOK + '\\nsize = len(str(model.get_config()))', *NAMES, 'losses')
assert home['same'] == (True,) * 5, home['same']
pair.local(FIT + '\\n' + LOOK)
assert home['same'] == (True,) * 5, home['same']
assert int(home['optimizer'].iterations.value) == 4
assert home['size'] == len(str(home['model'].get_config()))
remote(FIT, *NAMES, 'losses')
assert home['np'].allclose(home['losses'], alone['losses'], rtol=1e-4), (home['losses'], alone['losses'])
before = home['first']
remote("model.add_metric = keras.metrics.Mean(); first.trainable = False", *NAMES)
assert not before.trainable and home['model'].add_metric in home['model'].metrics
cell = '''
import keras, numpy as np
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [keras.layers.Dense(2), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()]
    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x)
        return x
net = Net()
net.compile('adam', 'mse')
x, y = np.ones((4, 3), 'float32'), np.zeros((4, 2), 'float32')
net.fit(x, y, verbose=0)
there = net.predict(x, verbose=0)
bare = Net()
'''
remote(cell)
pair.local("here = net.predict(x, verbose=0); net.fit(x, y, verbose=0); bare.more = keras.layers.Dense(1)")
assert home['np'].allclose(home['here'], home['there'], atol=1e-5)
assert home['net'].blocks[0] in home['net'].layers and type(home['net']) is home['Net']
remote("found = bare.more in bare.layers; bare.again = bare.more; left = len(bare.layers)", "bare", "net")
assert home['found'] and home['left'] == 4 == len(home['bare'].layers)
"""
    assert "Exception ignored" not in run(code, KERAS_BACKEND=backend)


def test_a_model_of_another_backend_says_so() -> None:
    pytest.importorskip("keras")
    pytest.importorskip("jax")
    code = """
remote("import os\\nos.environ['KERAS_BACKEND'] = 'torch'\\nimport keras\\nlayer = keras.layers.Dense(1)")
try:
    home["layer"].name
except StandInError as error:
    assert str(error) == (
        "this Dense of Keras was made on the GPU machine with the backend 'torch', but Keras uses 'jax' in your notebook"
    ), error
    assert "set KERAS_BACKEND" in error.hint
else:
    raise AssertionError
remote("units = layer.units", "layer")
assert home["units"] == 1
"""
    run(code, KERAS_BACKEND="jax")


def test_traced_functions_and_variables_of_tensorflow() -> None:
    pytest.importorskip("tensorflow")
    code = """
pair.local('''
import tensorflow as tf
v = tf.Variable(2.0)
alias = [v]
def add(x):
    v.assign_add(1.0)
    return v * x + k
f = tf.function(add, autograph=False)
k = 1.0
here = float(f(3.0)); concrete = f.get_concrete_function(1.0)
''')
assert home["here"] == 10
remote("there = float(f(3.0)); g = tf.function(lambda x: f(x) * 2, autograph=False); twice = float(g(1.0))", *"f v alias tf k".split())
assert (home["there"], home["twice"], float(home["v"])) == (13, 12, 5) and home["alias"][0] is home["v"]
pair.local("again = float(g(1.0))")
assert home["again"] == 14 and float(home["v"]) == 6
remote("same = alias[0] is v; value = float(v)", "v", "alias")
assert home["same"] and home["value"] == 6
remote("pass", "v", "alias", "f")
assert pair.up[0] < 400, pair.up
try:
    remote("concrete(1.0)", "concrete")
except StandInError as error:
    assert str(error) == "a concrete function of TensorFlow stayed in your notebook", error
else:
    raise AssertionError
"""
    assert "Exception ignored" not in run(code)


def test_datasets_of_tensorflow_are_refused_by_name() -> None:
    pytest.importorskip("tensorflow")
    code = """
import sys
from baton_shim.state.refusal import Refused
pair.local('import tensorflow as tf; ds = tf.data.Dataset.range(3).batch(2); steps = iter(ds)')
for name in ("ds", "steps"):
    try:
        remote("pass", name)
    except Refused as refusal:
        print(refusal, refusal.hint, sep="; ", file=sys.stderr)
"""
    said = run(code)
    assert "'ds' is a dataset of tf.data and cannot move to the GPU machine; make it inside the %%gpu cell" in said
    assert "'steps' is an iterator over a dataset of tf.data and cannot move" in said
