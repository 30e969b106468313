"""The work of BM_TokenWindows in NumPy: batches of 16 windows of 257 tokens at random positions of 100 M, from 16 to 64
bits."""

import json
import os
import time

import numpy as np
import torch

torch.set_num_threads(1)
SECONDS = 0.3 if os.environ.get("TRAINKIT_BENCH_QUICK") else 1.5
TOKENS, WINDOW, WINDOWS = 100_000_000, 257, 16
random = np.random.default_rng(1)
tokens = random.integers(0, 50257, TOKENS, dtype=np.uint16)


def gather():
    """Idiomatic code: one fancy index into a view of all windows."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens, WINDOW)
    while True:
        batch = torch.from_numpy(windows[random.integers(0, TOKENS - WINDOW, WINDOWS)].astype(np.int64))
        yield batch[:, :-1], batch[:, 1:]


def nanogpt():
    """nanoGPT's get_batch: a slice per window, stacked."""
    while True:
        places = torch.randint(TOKENS - WINDOW, (WINDOWS,))
        yield (torch.stack([torch.from_numpy(tokens[i:i + WINDOW - 1].astype(np.int64)) for i in places]),
               torch.stack([torch.from_numpy(tokens[i + 1:i + WINDOW].astype(np.int64)) for i in places]))


def report(name, batches):
    next(batches)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        next(batches)
        count += 1
    rate = count * WINDOWS * (WINDOW - 1) / (time.perf_counter() - start)
    print(json.dumps({"name": name, "value": rate, "unit": "tokens/s"}))


if __name__ == "__main__":
    report("numpy_gather", gather())
    report("nanogpt", nanogpt())
