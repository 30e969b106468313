"""The work of BM_Rows in Python: batches of 256 random rows of 1 KB and a label, with an idle consumer."""

import json
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
SECONDS = 0.3 if os.environ.get("TRAINKIT_BENCH_QUICK") else 1.5
ROWS, WIDTH, BATCH = 100_000, 256, 256
x, y = torch.rand(ROWS, WIDTH), torch.randint(10, (ROWS,))


class Rows(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return x[row], y[row]


def by_index_select():
    """Idiomatic code: one gather per batch and field."""
    while True:
        for rows in torch.randperm(ROWS).split(BATCH):
            yield x.index_select(0, rows), y.index_select(0, rows)


def by_loader(workers):
    loader = DataLoader(Rows(), BATCH, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=workers > 0)
    while True:
        yield from loader


def report(name, batches):
    next(batches)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        next(batches)
        count += 1
    print(json.dumps({"name": name, "value": count / (time.perf_counter() - start), "unit": "batches/s"}))


if __name__ == "__main__":
    report("index_select", by_index_select())
    report("data_loader_0_workers", by_loader(0))
    report("data_loader_2_workers", by_loader(2))
