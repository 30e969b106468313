"""The work of BM_Triplets in Python: batches of 2048 (user, positive, negative) with negatives checked against a table
of each user's items, drawn by vectorised NumPy and torch, for MovieLens 100k (TRAINKIT_TEST_DATA) and data of the size
of 1M."""

import json
import os
import time

import numpy as np
import torch

import _made_up

torch.set_num_threads(1)
SECONDS = 0.2 if os.environ.get("TRAINKIT_BENCH_QUICK") else 1.5
BATCH = 2048


def movielens():
    folder = os.environ.get("TRAINKIT_TEST_DATA")
    if not folder:
        return None
    rows = np.loadtxt(folder + "/movielens/ml-100k/u.data", dtype=np.int64)
    return rows[:, 0] - 1, rows[:, 1] - 1


def with_numpy(users, items):
    num_items, n = items.max() + 1, len(users)
    seen = np.zeros((users.max() + 1, num_items), bool)
    seen[users, items] = True
    rng = np.random.default_rng(1)
    while True:
        order = rng.permutation(n)
        for start in range(0, n - BATCH + 1, BATCH):
            k = order[start:start + BATCH]
            u = users[k]
            negatives = rng.integers(0, num_items, BATCH)
            while (bad := np.flatnonzero(seen[u, negatives])).size:
                negatives[bad] = rng.integers(0, num_items, bad.size)
            yield torch.from_numpy(u), torch.from_numpy(items[k]), torch.from_numpy(negatives)


def with_torch(users, items):
    num_items, u_all, i_all = int(items.max()) + 1, torch.from_numpy(users), torch.from_numpy(items)
    seen = torch.zeros(int(users.max()) + 1, num_items, dtype=torch.bool)
    seen[u_all, i_all] = True
    while True:
        for k in torch.randperm(len(users)).split(BATCH)[:len(users) // BATCH]:
            u = u_all[k]
            negatives = torch.randint(num_items, u.shape)
            while (bad := seen[u, negatives].nonzero().squeeze(1)).numel():
                negatives[bad] = torch.randint(num_items, bad.shape)
            yield u, i_all[k], negatives


def report(name, batches):
    next(batches)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SECONDS:
        next(batches)
        count += BATCH
    print(json.dumps({"name": name, "value": count / elapsed, "unit": "triplets/s"}))


for name, data in (("1m", _made_up.interactions(1_000_000)), ("ml_100k", movielens())):
    if data is not None:
        report(f"numpy_{name}", with_numpy(*data))
        report(f"torch_{name}", with_torch(*data))
