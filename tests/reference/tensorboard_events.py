"""Reads folders of event files with stock TensorBoard and writes the contents: tensorboard_events.py OUT.json FOLDER...

Non-finite values are strings. The JSON maps each folder to
{"scalars": {tag: [[step, value], ...]}, "texts": {tag: [[step, text], ...]}, "hparams": {name: value},
"finished": bool, "charts": {title: regular expression of tags},
"images": {tag: [[step, height, width, bytes of the PNG in hexadecimal], ...]}, "histograms": {tag: [[step, min, max, number, sum, sum of
squares, limits, counts], ...]}}.
"""
import json
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata
from tensorboard.util import tensor_util


def plain(value):
    return value if math.isfinite(value) else str(value)


def hparams(content):
    values = {}
    for name, value in metadata.parse_session_start_info_plugin_data(content).hparams.items():
        values[name] = getattr(value, value.WhichOneof("kind"))
    return values


def read(folder):
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0, "images": 0, "histograms": 0})
    events.Reload()
    tags = events.Tags()
    plugins = {tag: events.SummaryMetadata(tag).plugin_data for tag in tags["tensors"]}
    start, end = plugins.get("_hparams_/session_start_info"), plugins.get("_hparams_/session_end_info")
    charts = {}
    if "custom_scalars__config__" in plugins:
        layout = layout_pb2.Layout()
        layout.ParseFromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
        charts = {c.title: list(c.chart[0].multiline.tag)[0] for c in layout.category}
    return {
        "hparams": hparams(start.content) if start else {},
        "finished": bool(end) and metadata.parse_session_end_info_plugin_data(end.content).status == 1,
        "charts": charts,
        "scalars": {tag: [[e.step, plain(e.value)] for e in events.Scalars(tag)] for tag in tags["scalars"]},
        "texts": {tag: [[e.step, tensor_util.make_ndarray(e.tensor_proto)[0].decode()] for e in events.Tensors(tag)]
                  for tag in tags["tensors"] if plugins[tag].plugin_name == "text"},
        "images": {tag: [[e.step, e.height, e.width, e.encoded_image_string.hex()] for e in events.Images(tag)]
                   for tag in tags["images"]},
        "histograms": {tag: [[e.step, h.min, h.max, h.num, h.sum, h.sum_squares, list(h.bucket_limit), list(h.bucket)]
                             for e in events.Histograms(tag) for h in [e.histogram_value]] for tag in tags["histograms"]},
    }


out, *folders = sys.argv[1:]
with open(out, "w") as file:
    json.dump({folder: read(folder) for folder in folders}, file)
