"""The step of BM_DdpStep with PyTorch's DistributedDataParallel: two and four ranks under torchrun with Gloo, one thread
each."""

import json
import os
import subprocess
import sys
import time

STEPS = 100


def rank():
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")

    def model():
        return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024),
                             nn.ReLU(), nn.Linear(1024, 10))

    def seconds_a_step(net):
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
        x, y = torch.randn(64, 256), torch.randint(10, (64,))

        def run(steps):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(net(x), y).backward()
                optimizer.step()
            return (time.perf_counter() - start) / steps

        run(10)
        return run(STEPS)

    step = seconds_a_step(nn.parallel.DistributedDataParallel(model(), gradient_as_bucket_view=True))
    compute = seconds_a_step(model())
    flat = torch.cat([parameter.detach().flatten() for parameter in model().parameters()])
    dist.barrier()
    start = time.perf_counter()
    for _ in range(STEPS):
        dist.all_reduce(flat)
    communication = (time.perf_counter() - start) / STEPS
    if dist.get_rank() == 0:
        name = "ddp" if dist.get_world_size() == 2 else f"ddp_{dist.get_world_size()}"
        print(json.dumps({"name": name, "value": 1 / step, "unit": "steps/s"}))
        print(json.dumps({"name": name, "value": (compute + communication - step) / communication, "unit": "overlap"}))
        print(json.dumps({"name": name, "value": (step - compute) * 1e3, "unit": "exposed_ms"}))
        print(json.dumps({"name": name, "value": compute * 1e3, "unit": "compute_ms"}))
        print(json.dumps({"name": name, "value": communication * 1e3, "unit": "communication_ms"}), flush=True)
    dist.barrier()
    os._exit(0)  # destroying the group sometimes aborts the process (PyTorch 2.11, Gloo)


if "RANK" in os.environ:
    rank()
else:
    for ranks in ("2", "4"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", ranks, __file__]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
