"""Reads folders of event files with stock TensorBoard and writes the contents: tensorboard_events.py OUT.json FOLDER...

Non-finite values are strings. The JSON maps each folder to
{"scalars": {tag: [[step, value], ...]}, "texts": {tag: [[step, text], ...]}}.
"""
import json
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util


def plain(value):
    return value if math.isfinite(value) else str(value)


def read(folder):
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    return {
        "scalars": {tag: [[e.step, plain(e.value)] for e in events.Scalars(tag)] for tag in tags["scalars"]},
        "texts": {tag: [[e.step, tensor_util.make_ndarray(e.tensor_proto)[0].decode()] for e in events.Tensors(tag)]
                  for tag in tags["tensors"]},
    }


out, *folders = sys.argv[1:]
with open(out, "w") as file:
    json.dump({folder: read(folder) for folder in folders}, file)
