"""Questions of a notebook about TensorFlow's GPU, and the answers without one, with the real TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ANSWERS = {
    "[(gpu.name, gpu.device_type) for gpu in config.list_physical_devices('GPU')]": [["/physical_device:GPU:0", "GPU"]],
    "[gpu.device_type for gpu in config.list_physical_devices()]": ["CPU", "GPU"],
    "len(config.list_physical_devices('CPU'))": 1,
    "[gpu.name for gpu in config.experimental.list_logical_devices('GPU')]": ["/device:GPU:0"],
    "[config.experimental.set_memory_growth(gpu, True) for gpu in config.list_physical_devices('GPU')]": [None],
    "config.set_visible_devices(config.list_physical_devices('GPU')[0], 'GPU')": None,
    "[gpu.device_type for gpu in config.get_visible_devices()]": ["CPU", "GPU"],
    "config.set_visible_devices([], 'GPU')": None,
    "config.get_visible_devices('GPU') + config.list_logical_devices('GPU')": [],
    "len(config.list_physical_devices('GPU'))": 1,
    "config.set_visible_devices(config.list_physical_devices())": None,
    "config.set_logical_device_configuration(config.list_physical_devices('GPU')[0], [])": None,
    "sorted(config.experimental.get_device_details(config.list_physical_devices('GPU')[0]))": [
        "compute_capability",
        "device_name",
    ],
    "tf.test.is_gpu_available()": True,
    "tf.test.gpu_device_name()": "/device:GPU:0",
    "tf.test.is_built_with_cuda()": True,
    "on('/GPU:0', lambda: tf.reduce_sum(tf.ones((2, 2)) @ tf.ones((2, 2)))).numpy().item()": 8.0,
    "on('/GPU:0', tf.function(lambda: tf.range(3) * 2)).numpy().tolist()": [0, 2, 4],
    "on('/device:GPU:0', lambda: len(fitted().history['loss']))": 2,
    "tf.distribute.MirroredStrategy().num_replicas_in_sync": 1,
    "SWITCH.turn(False)": None,
    "config.list_physical_devices('GPU')": [],
    "(tf.test.is_gpu_available(), tf.test.is_built_with_cuda())": [False, False],
}
ASK = """
import json, sys
from baton_shim.virtual import SWITCH
SWITCH.begin(session=False)
import tensorflow as tf
config = tf.config
def on(device, work):
    with tf.device(device):
        return work()
def fitted():
    model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model.fit(tf.ones((8, 3)), tf.ones((8, 2)), epochs=2, verbose=0)
print(json.dumps([eval(question) for question in json.load(sys.stdin)]))
"""


def test_tensorflow_finds_a_gpu_and_computes_on_the_cpu() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "BATON_VIRTUAL_CUDA"}
    environment |= {"PYTHONPATH": str(Path(__file__).parent.parent.parent), "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, input=json.dumps(list(ANSWERS)), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert dict(zip(ANSWERS, json.loads(ended.stdout.splitlines()[-1]), strict=True)) == ANSWERS
