"""The CUDA calls of a training step and their host time: the trainers and PyTorch in Python on the simulated device of
tests/cuda_sim, whose kernels compute nothing here. The time is host time only, without the 2 to 5 us that a driver
takes for each launch; the counts are those of any GPU. Variants in Python: PyTorch's default optimizer (foreach),
fused, and the whole step as a manually captured CUDA graph. With ranks: DistributedDataParallel,
ZeroRedundancyOptimizer and DataParallel. Several devices share the cores, so their time is the processor time of a
process, without that of the device's threads.

    bench/peers/cuda_sim.py [--build DIR] [--table]     --table prints the table of docs/performance.md
"""
# builds: cuda_sim trainkit-tool trainkit-transformer trainkit-hsi trainkit-gpt2rec trainkit-emotion

import ctypes
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))

TRAINERS = {  # flags, and the number of steps in the measured interval
    "transformer": (["--input", "%"], ["--hidden_dim", "128", "--n_layers", "4", "--n_heads", "4", "--block_size", "64",
                                       "--grad_accum_steps", "1", "--sample_tokens", "1"], 12, 200),
    "hsi": (["--cube", "%/demo.mat", "--gt", "%/demo_gt.mat"], ["--model", "cnn2d", "--patch_size", "5", "--train_ratio", "0.8", "--no-write_maps"], 12, 200),
    "gpt2rec": (["--data_dir", "%/ml-1m"], ["--model", "bpr_mf"], 48, 200),
    "emotion": (["--data_dir", "%"], ["--model_size", "simple", "--frames", "2", "--image_size", "32",
                                      "--audio_seconds", "1"], 6, None),  # a step waits until its clips are decoded
}
SKIP = ["--on_nonfinite", "skip"]  # a device that does not compute may sum NaN
STRATEGIES = {  # flags, devices, ranks
    "graph": (["--cuda_graph", "auto"], 1, 1),
    "eager": (["--cuda_graph", "off"], 1, 1),
    "dp_3_graph": (["--cuda_graph", "auto", "--use_multi_gpu", "--gpu_ids", "0", "1", "2"], 3, 1),
    "dp_3_eager": (["--cuda_graph", "off", "--use_multi_gpu", "--gpu_ids", "0", "1", "2"], 3, 1),
    "dp_3_graph_shard_optimizer": (["--cuda_graph", "auto", "--use_multi_gpu", "--gpu_ids", "0", "1", "2", "--shard", "optimizer", *SKIP], 3, 1),
    "dp_3_eager_shard_optimizer": (["--cuda_graph", "off", "--use_multi_gpu", "--gpu_ids", "0", "1", "2", "--shard", "optimizer", *SKIP], 3, 1),
    "ddp_2_graph": (["--cuda_graph", "auto"], 2, 2),
    "ddp_2_graph_shard_optimizer": (["--cuda_graph", "auto", "--shard", "optimizer", *SKIP], 2, 2),
    "ddp_2_graph_shard_gradients": (["--cuda_graph", "auto", "--shard", "gradients", *SKIP], 2, 2),
    "ddp_2_eager": (["--cuda_graph", "off"], 2, 2),
    "ddp_2_eager_shard_optimizer": (["--cuda_graph", "off", "--shard", "optimizer", *SKIP], 2, 2),
    "ddp_2_eager_shard_gradients": (["--cuda_graph", "off", "--shard", "gradients", *SKIP], 2, 2),
}
COUNTS = ("launches", "graph_launches", "copies", "pageable", "synchronisations", "allocations", "messages",
          "message_bytes")


def on_device(build, devices, report, computes=False):
    folder = build / "tests/cuda_sim"
    return {**{name: value for name, value in os.environ.items() if not name.startswith("TRAINKIT_")}, "OMP_NUM_THREADS": "1",
            "LD_PRELOAD": str(folder / "libcuda_sim.so"), "LD_LIBRARY_PATH": str(folder), "CUDA_SIM_NUMBERS": str(int(computes)),
            "CUDA_SIM_DEVICES": str(devices), "CUDA_SIM_REPORT": str(report), "CUDA_VISIBLE_DEVICES": ",".join("0123"[:devices])}


def summed(counts):
    """The device's counts in the table's format."""
    return {"launches": counts["launches"], "graph_launches": counts["graph_launches"],
            "copies": sum(counts[way] for way in ("to_device", "to_host", "on_device", "between_devices")),
            "pageable": counts["pageable"], "synchronisations": counts["stream_syncs"] + counts["device_syncs"],
            "allocations": counts["mallocs"], "messages": counts["nccl_calls"], "message_bytes": counts["nccl_bytes"]}


def of_process(report):
    total = dict.fromkeys(COUNTS, 0)
    for line in report.read_text().splitlines():
        for name, value in summed(json.loads(line)).items():
            total[name] += value
    return total


def run(build, folder, name, strategy, steps, interval, computes):
    """The folder and the counts of a run. A run that does not compute may fail after its steps."""
    data, flags, rows, _ = TRAINERS[name]
    strategy_flags, devices, ranks = STRATEGIES[strategy]
    program = build / f"bin/trainkit-{name}"
    if not (folder / name).exists():
        subprocess.run([program, "--make_demo_data", folder / name], check=True, capture_output=True)
        for text in (folder / name).glob("*.txt"):
            os.truncate(text, 200_000)  # little text to evaluate at the end
    launcher = [build / "bin/trainkit", "launch", "--nproc_per_node", str(ranks), "--"] if ranks > 1 else []
    output = folder / f"{name}_{strategy}_{steps}_{computes}"
    report = pathlib.Path(f"{output}.counts")
    subprocess.run([*launcher, program, *(flag.replace("%", str(folder / name)) for flag in data), *flags,
                    "--batch_size", str(rows), "--device", "cuda", "--precision", "fp32", "--epochs", "100000",
                    "--max_steps", str(steps), "--log_every", str(interval), "--save_every", "0",
                    "--eval_every", "0", "--seed", "1", "--no-plan_memory", "--output_dir", output, *strategy_flags],
                   check=computes, capture_output=True, env=on_device(build, devices, report, computes))
    return output, report


def host_microseconds(report):
    return sum(json.loads(line)["host_us"] for line in report.read_text().splitlines())


def trainer(build, folder, name, strategy):
    """Host time of a step in microseconds, of ranks their processor time, and the CUDA calls of all devices."""
    _, _, rows, interval = TRAINERS[name]
    _, devices, ranks = STRATEGIES[strategy]
    counted = [of_process(run(build, folder, name, strategy, steps, 10, True)[1]) for steps in (20, 40)]
    counts = {k: (counted[1][k] - counted[0][k]) / 20 for k in COUNTS}
    if not interval:
        return None, counts
    interval = 10 if QUICK else interval
    if devices > 1:
        if "graph" in strategy and not QUICK:
            interval *= 10  # its steps are short beside the start of a process
        times = [host_microseconds(run(build, folder, name, strategy, steps, interval, False)[1])
                 for steps in (interval, 6 * interval)]
        return (times[1] - times[0]) / (5 * interval * ranks), counts
    output, _ = run(build, folder, name, strategy, 6 * interval, interval, False)
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rates = [record["samples_per_second"] for record in records if record["split"] == "train"][2:]
    return 1e6 * rows * devices / statistics.median(rates), counts


def python(build, folder, name, way):
    """As trainer(). DataParallel: one process, three devices."""
    ranks = 2 if way in ("ddp", "zero") else 1
    devices = 3 if way == "data_parallel" else ranks
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    jobs = []
    for rank in range(ranks):
        variables = {**on_device(build, devices, folder / f"python.{rank}.counts"), "RANK": str(rank),
                     "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        jobs.append(subprocess.Popen([sys.executable, __file__, "--peer", name, way], stdout=subprocess.PIPE, text=True,
                                     env=variables))
    results = [json.loads(job.communicate()[0].splitlines()[-1]) for job in jobs]
    counts = {k: sum(result["counts"][k] for result in results) for k in COUNTS}
    return statistics.mean(result["processor" if devices > 1 else "microseconds"] for result in results), counts


def models():
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    from _nano_gpt import NanoGPT

    class Convolutions(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128), nn.ReLU(),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 16)).to(memory_format=torch.channels_last)

        def forward(self, x, y):
            return F.cross_entropy(self.layers(x), y)

    class Factors(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(6040, 64), nn.Embedding(3706, 64)

        def forward(self, ids):
            user, item, other = self.users(ids[0]), self.items(ids[1]), self.items(ids[2])
            return -F.logsigmoid((user * item).sum(1) - (user * other).sum(1)).mean()

    return {"transformer": (NanoGPT, lambda: [torch.randint(65, (12, 64)) for _ in range(2)], 1.0),
            "hsi": (Convolutions, lambda: [torch.rand(12, 32, 5, 5), torch.randint(16, (12,))], 0.0),
            "gpt2rec": (Factors, lambda: [torch.randint(3706, (3, 48))], 0.0)}


def peer(name, way):
    """Runs in a separate process on the device."""
    import torch

    make, make_batch, clip = models()[name]
    rank = int(os.environ.get("RANK", 0))
    torch.cuda.set_device(rank)
    model = make().cuda()
    if way == "data_parallel":
        model = torch.nn.DataParallel(model)
    elif way in ("ddp", "zero"):
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
    if way == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, fused=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=way != "foreach" or None, capturable=way == "graph")
    batches = [[tensor.pin_memory() for tensor in make_batch()] for _ in range(8)]
    inputs = [tensor.cuda() for tensor in batches[0]]

    def compute(batch):
        optimizer.zero_grad(set_to_none=True)
        loss = model(*batch)
        (loss.mean() if way == "data_parallel" else loss).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

    def step(k):
        batch = batches[k % len(batches)]
        if way != "graph":
            return compute([tensor.to("cuda", non_blocking=True) for tensor in batch])
        for there, tensor in zip(inputs, batch):
            there.copy_(tensor, non_blocking=True)
        graph.replay()

    def counts():
        text = ctypes.create_string_buffer(4096)
        ctypes.CDLL(None).cuda_sim_counts(text, ctypes.c_size_t(4096))
        counted = json.loads(text.value)
        return {**summed(counted), "host_us": counted["host_us"]}

    if way == "graph":
        beside = torch.cuda.Stream()
        with torch.cuda.stream(beside):
            for _ in range(3):
                compute(inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compute(inputs)
    interval, times = (10 if QUICK else 200), []
    for _ in range(6):
        if len(times) == 2:
            before = counts()
        start = time.perf_counter()
        for k in range(interval):
            step(k)
        times.append(1e6 * (time.perf_counter() - start) / interval)
    after = counts()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a rank that ends early is an error of the other
    print(json.dumps({"microseconds": statistics.median(times[2:]),
                      "processor": (after["host_us"] - before["host_us"]) / (4 * interval),
                      "counts": {k: (after[k] - before[k]) / (4 * interval) for k in COUNTS}}), flush=True)
    os._exit(0)


def main():
    if "--peer" in sys.argv:
        return peer(*sys.argv[-2:])
    build = pathlib.Path(sys.argv[sys.argv.index("--build") + 1]).resolve() if "--build" in sys.argv else ROOT / "build"
    if not (build / "tests/cuda_sim/libcuda_sim.so").exists():
        sys.exit(f"{build} has no simulated device: ./dev build cuda_sim, in a build with CUDA")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        runs = [(trainer, name, strategy, f"{name}_{strategy}") for name in TRAINERS for strategy in STRATEGIES
                if name == "transformer" or "shard" not in strategy]
        runs += [(python, name, way, f"{name}_python_{way}") for name in ("transformer", "hsi", "gpt2rec")
                 for way in ("foreach", "fused", "graph")]
        runs += [(python, "transformer", way, f"transformer_python_{way}") for way in ("ddp", "zero", "data_parallel")]
        if "--only" in sys.argv:
            runs = [run for run in runs if sys.argv[sys.argv.index("--only") + 1] in run[3]]
        for measure, name, way, label in runs:
            microseconds, counts = measure(build, folder, name, way)
            rows.append((label, microseconds, counts))
            if microseconds:
                print(json.dumps({"name": label, "value": microseconds, "unit": "us"}), flush=True)
            for count, value in counts.items():
                print(json.dumps({"name": label, "value": value, "unit": count}), flush=True)
    if "--table" in sys.argv:
        print("\n| step | " + " | ".join(name.replace("_", " ") for name in COUNTS) + " | host time, ms |\n|" + "---|" * (len(COUNTS) + 2))
        for label, microseconds, counts in sorted(rows):
            print(f"| {label.replace('_', ', ', 1).replace('_', ' ')} | " + " | ".join(f"{counts[k]:.4g}" for k in COUNTS)
                  + (f" | {microseconds / 1000:.2f} |" if microseconds else " | |"))


if __name__ == "__main__":
    main()
