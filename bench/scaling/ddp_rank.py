#!/usr/bin/env python3
"""One rank of a training run with PyTorch DDP on the CPU, to compare `trainkit scale` with.

    for n in 1 2 4; do trainkit launch --nproc_per_node $n -- python3 bench/scaling/ddp_rank.py; done

Every rank keeps its batch size (weak scaling) and computes with one thread. Rank 0 prints one JSON line: the median
step in seconds, the same in seconds of CPU time (of all threads; nearly independent of other load), the gradients'
bytes, and the median time of an all-reduce of 4 KiB and of 25 MiB over the same ranks. With TRAINKIT_BENCH_ALONE=1 the
ranks only share the machine: the slowdown without DDP.
"""

import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 6 if os.environ.get("TRAINKIT_BENCH_QUICK") else 20
ALONE = bool(os.environ.get("TRAINKIT_BENCH_ALONE"))
WIDTH, LAYERS, ROWS = 1024, 8, 256


def median_seconds(call, repeats, clock=time.perf_counter):
    call()
    seconds = []
    for _ in range(repeats):
        start = clock()
        call()
        seconds.append(clock() - start)
    return statistics.median(seconds)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    net = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    gradient_bytes = sum(p.numel() * 4 for p in net.parameters())
    model = net if ALONE or dist.get_world_size() == 1 else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(ROWS, WIDTH)
    update = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        start = time.perf_counter()
        optimizer.step()
        update.append(time.perf_counter() - start)

    result = {"ranks": dist.get_world_size(), "alone": ALONE, "step_seconds": median_seconds(step, STEPS),
              "processor_seconds": median_seconds(step, STEPS, time.process_time),
              "update_seconds": statistics.median(update), "gradient_bytes": gradient_bytes}
    if dist.get_world_size() > 1 and not ALONE:
        for size, repeats in ((4096, 100), (25 << 20, 10)):
            tensor = torch.zeros(size // 4)
            result[f"all_reduce_{size}"] = median_seconds(lambda: dist.all_reduce(tensor), repeats)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
