"""The work of BM_ReadRatings with pandas and NumPy: read a table of events, number its users and items, and hold out the
last event of each user and the one before. Processor time. Without pandas (`pip install pandas`) it prints a message
and no result."""

import json
import os
import pathlib
import sys
import tempfile
import time

import numpy as np

try:
    import pandas as pd
except ImportError as error:
    sys.exit(print(f"skipped: {error}", file=sys.stderr))

EVENTS = 50_000 if os.environ.get("TRAINKIT_BENCH_QUICK") else 5_000_000
USERS, ITEMS = EVENTS // 100, EVENTS // 125


def write(path):
    """As bench/rec/reading_bench.cpp: users of equal activity, popularity of an item proportional to 1/sqrt(number)."""
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, USERS, 2 * EVENTS) * ITEMS + (ITEMS * rng.random(2 * EVENTS) ** 2).astype(np.int64))
    pairs = rng.permutation(pairs)[:EVENTS]
    columns = [pairs // ITEMS + 1, pairs % ITEMS + 1, rng.integers(1, 6, EVENTS), rng.integers(10**9, 11 * 10**8, EVENTS)]
    numbers = np.stack(columns, 1).ravel().tolist()
    with open(path, "w") as file:
        file.write("user_id:token\titem_id:token\trating:float\ttimestamp:float\n")
        for start in range(0, 4 * EVENTS, 400_000):
            some = numbers[start:start + 400_000]
            file.write("%d\t%d\t%d\t%d\n" * (len(some) // 4) % tuple(some))


def read_and_split(path):
    events = pd.read_csv(path, sep="\t", header=0, names=["user", "item", "rating", "time"])
    users, items = pd.factorize(events.user)[0], pd.factorize(events.item)[0]
    order = np.lexsort((events.time, users))
    last = np.append(np.flatnonzero(np.diff(users[order])), len(order) - 1)
    counts = np.diff(last, prepend=-1)
    parts = np.zeros(len(order), np.int8)
    parts[order[last[counts > 2]]] = 2
    parts[order[last[counts > 2] - 1]] = 1
    return users, items, parts


with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "events.inter"
    write(file)
    times = []
    for _ in range(3):
        start = time.process_time()
        read_and_split(file)
        times.append(time.process_time() - start)
    print(json.dumps({"name": "pandas", "value": EVENTS / sorted(times)[1], "unit": "events/s"}))
