"""Writes the contents of a folder of offline W&B runs as JSON: wandb_history.py OUT.json FOLDER

{"runs": [{"id", "project", "config", "history": [{"_step", name: value, ...}, ...], "exit_code"}, ...]}, in the order
in which the runs began. The folder names do not give the order, because the client names two runs within one second
NAME and NAME-1. A .wandb file is a LevelDB log (https://github.com/google/leveldb/blob/main/doc/log_format.md) of
protobufs after a header of 7 bytes.
"""
import glob
import json
import struct
import sys

from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32768


def records(data):
    offset, whole = 7, b""
    while offset + 7 <= len(data):
        if BLOCK - offset % BLOCK < 7:
            offset += BLOCK - offset % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, offset)
        whole += data[offset + 7:offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # FULL, LAST
            yield Record.FromString(whole)
            whole = b""


def read(path):
    run = {"history": [], "start": 0}
    for record in records(open(path, "rb").read()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run["start"] = record.run.start_time.ToNanoseconds()
            run["id"], run["project"] = record.run.run_id, record.run.project
            run["config"] = {item.key: json.loads(item.value_json, parse_constant=str) for item in record.run.config.update if item.key}
        elif kind == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json, parse_constant=str) for item in record.history.item}
            run["history"].append({name: value for name, value in items.items() if name not in ("_timestamp", "_runtime")})
        elif kind == "exit":
            run["exit_code"] = record.exit.exit_code
    return run


out, folder = sys.argv[1:]
runs = [read(path) for path in glob.glob(f"{folder}/wandb/offline-run-*/*.wandb")]
json.dump({"runs": sorted(runs, key=lambda run: run["start"])}, open(out, "w"))
