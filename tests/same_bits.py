#!/usr/bin/env python3
"""Compares the files of two runs, byte by byte; part of same_bits.sh.

    tests/same_bits.py NAME RUN RUN

Prints one line, and exits with 1 if a file or value differs. Not compared are:
- LEFT_OUT: files that contain times, identifiers or the machine;
- MEASURED: values of metrics.jsonl and summary.json that are measured, see docs/formats/run.md.
"""

import json
import pathlib
import re
import sys

LEFT_OUT = {
    "config.yaml": "a later version may have more settings",
    "run.json": "times, process ids, the run's id, the machine, versions",
    "best.before.safetensors": "the best weights before, kept until the next checkpoint is complete",
    "report.html": "shows run.json and times",
    "loss.svg": "a picture of metrics.jsonl, which is compared; of earlier versions",
    "tensorboard": "events with times, in files named by time, process and run",
    "wandb": "logs of another program, with times",
    "profile.json": "times",
    "corpus.char.tokens.json": "times of the text; the tokens next to it are compared",
}
MEASURED = re.compile(r".*(_per_second|_fraction|_seconds|_bytes)|utilisation|queue_depth|time|gpu_utilisation|versions")


def files_of(run):
    """Returns the compared files of a run, by their names in it."""
    names = (path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file())
    return {str(name): run / name for name in names if name.parts[0] not in LEFT_OUT}


def without_measured(value):
    """Returns JSON without values that are measured, and with numbers as they are written."""
    if isinstance(value, dict):
        return {key: without_measured(part) for key, part in value.items() if not MEASURED.fullmatch(key)}
    return [without_measured(part) for part in value] if isinstance(value, list) else value


def content(path):
    """Returns what is compared of a file, in parts: JSON objects of logs, else the bytes."""
    def parse(text):
        return without_measured(json.loads(text, parse_float=str, parse_int=str))
    if path.name == "metrics.jsonl":
        return [parse(line) for line in path.read_text().splitlines()]
    return [parse(path.read_text())] if path.name == "summary.json" else [path.read_bytes()]


def difference(one, two):
    """Describes how the contents of a file differ; empty if they are the same."""
    if len(one) != len(two):
        return f"{len(one)} records and {len(two)}"
    for number, (left, right) in enumerate(zip(one, two), 1):
        if left == right:
            continue
        if isinstance(left, bytes):
            same = next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
            return f"{len(left)} and {len(right)} bytes, the first other byte is {same}"
        keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
        return f"record {number}: {keys[0]} is {left.get(keys[0])} and {right.get(keys[0])}"
    return ""


def compare(one, two):
    """Returns the files that two runs have in common, and the differences as texts."""
    left, right = files_of(one), files_of(two)
    found = [f"{name} is only in {run}" for mine, other, run in ((left, right, one), (right, left, two))
             for name in mine if name not in other]
    common = [name for name in left if name in right]
    for name in common:
        text = difference(content(left[name]), content(right[name]))
        if text:
            found.append(f"{name}: {text}")
    if not any(name.endswith("model.safetensors") for name in left):
        found.append("there is no checkpoint")
    return common, found


def main():
    name, one, two = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    common, found = compare(one, two)
    if found:
        print(f"DIFFERS {name}: {len(found)} of {len(common)} files: {found[0]}")
        return 1
    size = sum((one / file).stat().st_size for file in common)
    print(f"same    {name}: {len(common)} files, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
