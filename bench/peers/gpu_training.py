"""The work of bench_gpu in Python, on cuda:0: training steps with batches copied from page-locked memory, fused
operations, and a loader. Variants: eager with the fused optimizer, graph (the step captured by hand in a CUDA graph),
compiled (torch.compile) and compiled_graph (that step captured by hand). `..._best` is the fastest so far; the last line
of a name counts. A variant that fails or exceeds its time is reported on stderr, and the others still run
(compiled_graph only after a working compiled). Prints
nothing without a GPU. Compiling everything takes several minutes.

    bench/peers/gpu_training.py [--only REGEX]
    TRAINKIT_BENCH_VARIANTS=eager,graph      the variants to run (default: all)
    TRAINKIT_BENCH_VARIANT_SECONDS=150       time limit of a variant
"""

import argparse
import gc
import json
import os
import re
import signal
import sys
import time

os.environ["CXX"] = "g++"  # for torch.compile: clang may have no OpenMP

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from _hsi import CLASSES, SIDE, SSRN, HybridSN, Scene, cnn2d, cnn3d
from _nano_gpt import NanoGPT

QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))
SECONDS = 0.05 if QUICK else 0.8
VARIANTS = (os.environ.get("TRAINKIT_BENCH_VARIANTS") or ("eager,graph" if QUICK else "eager,graph,compiled,compiled_graph")).split(",")
LIMIT = float(os.environ.get("TRAINKIT_BENCH_VARIANT_SECONDS") or 150)


class OutOfTime(BaseException):  # no Exception: torch.compile catches those
    pass


def out_of_time(*_):
    raise OutOfTime(f"longer than {LIMIT:.0f} s")


def rate(step):
    """Calls of `step` per second. Waits for the device before it reads the clock."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    done, group, elapsed, start = 0, 1, 0.0, time.perf_counter()
    while elapsed < SECONDS:
        for _ in range(group):
            step()
        torch.cuda.synchronize()
        done, before, elapsed = done + group, elapsed, time.perf_counter() - start
        if elapsed - before < SECONDS / 10:
            group *= 2
    return done / elapsed


class Training:
    """Steps of a model. `loss(*batch)` is on the device; `batches` are on the host."""
    calls = 1

    def __init__(self, model, loss, batches, bf16=False, clip=None, optimizer=torch.optim.AdamW, **options):
        self.model, self.loss, self.bf16, self.clip = model, loss, bf16, clip
        self.batches = [[tensor.pin_memory() for tensor in batch] for batch in batches]
        self.optimizer = optimizer(model.parameters(), 1e-3, fused=True, capturable=True, **options)

    def compute(self, batch):
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16):
            loss = self.loss(*batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()


class Operation:
    """Forward under autocast and the gradients of all floating-point inputs, ten times."""
    calls, batches = 10, [[]]

    def __init__(self, function, *inputs):
        self.loss, self.inputs = function, inputs
        self.leaves = [tensor.requires_grad_() for tensor in inputs if tensor.is_floating_point()]

    def compute(self, _):
        for _ in range(self.calls):
            with torch.autocast("cuda", torch.bfloat16):
                outputs = self.loss(*self.inputs)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            torch.autograd.grad(outputs, self.leaves, [torch.ones_like(output) for output in outputs])


def eager(work):
    done = 0

    def step():
        nonlocal done
        work.compute([tensor.to("cuda", non_blocking=True) for tensor in work.batches[done % len(work.batches)]])
        done += 1

    return step


def captured(work):
    """Capture needs steps before it on the same stream."""
    inputs = [tensor.cuda() for tensor in work.batches[0]]
    for _ in range(3):
        work.compute(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        work.compute(inputs)
    done = 0

    def step():
        nonlocal done
        for there, tensor in zip(inputs, work.batches[done % len(work.batches)]):
            there.copy_(tensor, non_blocking=True)
        graph.replay()
        done += 1

    return step


def language_model(rows, bf16, **shape):
    model = NanoGPT(rows, **shape).cuda()
    batches = [list(torch.randint(model.vocabulary, (2, rows, model.block))) for _ in range(8)]
    return Training(model, model, batches, bf16, clip=1.0, betas=(0.9, 0.99), weight_decay=0.1)


def hsi(make, batch, patch=11, bands=200):
    model, scene = make().cuda(), Scene(patch, bands, "cuda")
    batches = [[torch.randint(SIDE * SIDE, (batch,)), torch.randint(CLASSES, (batch,))] for _ in range(8)]
    return Training(model, lambda pixels, y: F.cross_entropy(model(scene.patches(pixels)), y), batches)


def resnet18():
    from torchvision.models import resnet18
    model = resnet18(num_classes=7).cuda().to(memory_format=torch.channels_last)
    batches = [[torch.randn(32, 3, 224, 224).contiguous(memory_format=torch.channels_last), torch.randint(7, (32,))]
               for _ in range(4)]
    return Training(model, lambda x, y: F.cross_entropy(model(x), y), batches, bf16=True)


def bpr_mf():
    tables = nn.ModuleList([nn.Embedding(6040, 64), nn.Embedding(3706, 64)]).cuda()

    def loss(users, positives, negatives):
        vectors = tables[0](users)
        margin = (vectors * tables[1](positives)).sum(1) - (vectors * tables[1](negatives)).sum(1)
        return -F.logsigmoid(margin).mean()

    batches = [[torch.randint(count, (2048,)) for count in (6040, 3706, 3706)] for _ in range(8)]
    return Training(tables, loss, batches, optimizer=torch.optim.Adam)


def values(*sizes, dtype=torch.float32):
    return torch.randn(sizes, device="cuda").to(dtype)


def residual_layer_norm(rows, width):
    def function(x, branch, weight):
        total = x + branch
        return total, F.layer_norm(total, (width,), weight).bfloat16()

    return Operation(function, values(rows, width), values(rows, width, dtype=torch.bfloat16), values(width))


def bias_gelu(rows, width):
    return Operation(lambda x, bias: F.gelu(x + bias.bfloat16()), values(rows, width, dtype=torch.bfloat16), values(width))


def linear_cross_entropy(rows, width, classes):
    return Operation(lambda hidden, weight, target: F.cross_entropy(F.linear(hidden, weight), target),
                     values(rows, width, dtype=torch.bfloat16), 0.02 * values(classes, width),
                     torch.randint(classes, (rows,), device="cuda"))


SMALL = dict(rows=12, block=64, vocabulary=65, layers=4, heads=4, width=128)
BABY = dict(rows=64, block=256, vocabulary=65, layers=6, heads=6, width=384)
GPT2 = dict(rows=8, block=1024, vocabulary=50257, layers=12, heads=12, width=768)
DIVISOR = 128 if QUICK else 1  # of the rows of operations
TASKS = {  # items per step, their unit, and the function that makes the work
    **{f"{name}_{'bf16' if bf16 else 'fp32'}": (shape["rows"] * shape["block"], "tokens/s",
                                                lambda shape=shape, bf16=bf16: language_model(bf16=bf16, **shape))
       for name, shape in (("small", SMALL), ("baby", BABY), ("gpt2", GPT2)) for bf16 in (False, True)},
    "cnn2d": (256, "patches/s", lambda: hsi(cnn2d, 256)),
    "cnn3d": (64, "patches/s", lambda: hsi(cnn3d, 64)),
    "hybridsn": (64, "patches/s", lambda: hsi(HybridSN, 64, 25, 30)),
    "ssrn": (64, "patches/s", lambda: hsi(SSRN, 64, 7)),
    "resnet18_bf16": (32, "pictures/s", resnet18),
    "bpr_mf": (2048, "samples/s", bpr_mf),
    "residual_layer_norm_8192x768": (8192 // DIVISOR, "rows/s", lambda: residual_layer_norm(8192 // DIVISOR, 768)),
    "residual_layer_norm_16384x384": (16384 // DIVISOR, "rows/s", lambda: residual_layer_norm(16384 // DIVISOR, 384)),
    "bias_gelu_8192x3072": (8192 // DIVISOR, "rows/s", lambda: bias_gelu(8192 // DIVISOR, 3072)),
    "linear_cross_entropy_8192x768x50257": (8192 // DIVISOR, "rows/s", lambda: linear_cross_entropy(8192 // DIVISOR, 768, 50257)),
}

ROWS, WIDTH, BATCH = 100_000, 256, 1024  # rows of 1 KB


def by_index_select(x):
    """Gathers into a ring of page-locked memory and copies it to the device."""
    ring = [(torch.empty(BATCH, WIDTH).pin_memory(), torch.cuda.Event()) for _ in range(8)]
    k = 0
    while True:
        for rows in torch.randperm(ROWS).split(BATCH):
            if len(rows) == BATCH:
                memory, copied = ring[k % len(ring)]
                copied.synchronize()
                yield torch.index_select(x, 0, rows, out=memory).to("cuda", non_blocking=True)
                copied.record()
                k += 1


class Rows(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return ROWS

    def __getitems__(self, rows):  # a batch at once
        return self.x[rows]


def same(batch):
    return batch


def by_data_loader(x):
    loader = DataLoader(Rows(x), BATCH, shuffle=True, num_workers=4, collate_fn=same, pin_memory=True, drop_last=True,
                        persistent_workers=True)
    while True:
        for batch in loader:
            yield batch.to("cuda", non_blocking=True)


class Results:
    """Prints each rate, and the best of a task whenever it improves."""

    def __init__(self):
        self.best = {}

    def add(self, task, variant, value, unit):
        def line(name):
            print(json.dumps({"name": f"{task}_{name}", "value": value, "unit": unit}), flush=True)

        line(variant)
        if value > self.best.get(task, 0):
            self.best[task] = value
            line("best")


def attempt(label, function):
    """The result of `function`; None, and a line on stderr, if it fails or takes longer than LIMIT."""
    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, LIMIT, 5)
    try:
        return function()
    except (Exception, OutOfTime) as error:
        print(f"{label}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}", file=sys.stderr, flush=True)
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_task(task, is_compiled, results):
    amount, unit, make = TASKS[task]
    prefix = "compiled" if is_compiled else ""
    work = attempt(f"{task}: model", make)
    if work is None:
        return
    if is_compiled:
        work.loss = torch.compile(work.loss)
    for variant, way in ((prefix or "eager", eager), (f"{prefix}_graph".strip("_"), captured)):
        if variant in VARIANTS:
            value = attempt(f"{task}_{variant}", lambda: rate(way(work)))
            if value:
                results.add(task, variant, value * amount * work.calls, unit)
            elif is_compiled:
                return  # compiled_graph would fail in the same way


def main():
    parser = argparse.ArgumentParser(description="The work of bench_gpu in Python.")
    parser.add_argument("--only", default="", metavar="REGEX", help="tasks to run: " + ", ".join([*TASKS, "loader"]))
    only = re.compile(parser.parse_args().only)
    if not torch.cuda.is_available():
        print("no GPU that PyTorch can use: nothing measured", file=sys.stderr)
        return
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    results = Results()
    with torch.cuda.stream(torch.cuda.Stream()):  # captures need another stream than the default one
        for is_compiled in (False, True):
            if not any(variant.startswith("compiled") == is_compiled for variant in VARIANTS):
                continue
            for task in filter(only.search, TASKS):
                run_task(task, is_compiled, results)
                torch._dynamo.reset()
                gc.collect()
                torch.cuda.empty_cache()
            if not is_compiled and only.search("loader"):
                x = torch.rand(ROWS, WIDTH)
                for variant, batches in (("index_select", by_index_select), ("data_loader", by_data_loader)):
                    value = attempt(f"loader_{variant}", lambda: rate(batches(x).__next__))
                    if value:
                        results.add("loader", variant, value * BATCH * WIDTH * 4, "bytes/s")


if __name__ == "__main__":
    main()
