"""The work of BM_BprMfEpoch in Python: epochs of matrix factorisation by BPR with vectorised sampling and fused Adam,
two threads: 6,040 users, 3,706 items, 1,000,000 interactions, dimension 64, batches of 2048."""

import json
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import _made_up

torch.set_num_threads(2)
QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))
users, items = (torch.from_numpy(ids) for ids in _made_up.interactions(50_000 if QUICK else 1_000_000))
seen = torch.zeros(6040, 3706, dtype=torch.bool)
seen[users, items] = True


def samples_a_second(fused):
    user_table, item_table = nn.Embedding(6040, 64), nn.Embedding(3706, 64)
    optimizer = torch.optim.Adam([*user_table.parameters(), *item_table.parameters()], 1e-3, fused=fused)

    def epoch():
        rows = 0
        for k in torch.randperm(len(users)).split(2048):
            if len(k) < 2048:
                continue
            u = users[k]
            negatives = torch.randint(3706, u.shape)
            while (bad := seen[u, negatives].nonzero().squeeze(1)).numel():
                negatives[bad] = torch.randint(3706, bad.shape)
            vectors = user_table(u)
            margin = (vectors * item_table(items[k])).sum(1) - (vectors * item_table(negatives)).sum(1)
            loss = -F.logsigmoid(margin).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            rows += 2048
        return rows

    rates = []
    for _ in range(1 if QUICK else 3):
        start = time.perf_counter()
        rows = epoch()
        rates.append(rows / (time.perf_counter() - start))
    return max(rates)


for name, fused in (("fused_adam", True), ("adam", False)):
    print(json.dumps({"name": name, "value": samples_a_second(fused), "unit": "samples/s"}))
