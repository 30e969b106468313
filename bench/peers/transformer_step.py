"""The work of BM_TransformerStep in Python: forward, loss and backward of nanoGPT's CPU model, two threads."""

import json
import os
import time

import torch

from _nano_gpt import NanoGPT

torch.set_num_threads(2)
torch.manual_seed(0)
STEPS = 10 if os.environ.get("TRAINKIT_BENCH_QUICK") else 150
model = NanoGPT()
x, y = torch.randint(model.vocabulary, (2, model.rows, model.block))


def run(steps):
    start = time.perf_counter()
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        model(x, y).backward()
    return steps * model.rows * model.block / (time.perf_counter() - start)


run(5)
print(json.dumps({"name": "eager", "value": run(STEPS), "unit": "tokens/s"}))
