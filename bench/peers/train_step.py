"""The step of BM_MlpStep in Python: an MLP 64-128-10 with batches of 64 rows in memory, Adam, one thread."""

import json
import os
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)
STEPS = 500 if os.environ.get("TRAINKIT_BENCH_QUICK") else 4000
BATCHES = [(torch.randn(64, 64), torch.randint(10, (64,))) for _ in range(64)]


def microseconds_a_step(**adam_options):
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **adam_options)

    def run(steps):
        start = time.perf_counter()
        for step in range(steps):
            x, y = BATCHES[step % len(BATCHES)]
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return (time.perf_counter() - start) / steps * 1e6

    run(100)
    return run(STEPS)


for name, options in (("mlp", {}), ("mlp_fused_adam", {"fused": True})):
    print(json.dumps({"name": name, "value": microseconds_a_step(**options), "unit": "us"}))
