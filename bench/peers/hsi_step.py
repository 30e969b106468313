"""The work of BM_HsiCnn2d and BM_HsiCnn3d in Python: training steps with patches gathered by one index_select,
channels_last if it is faster (2-D), two threads, fused Adam, eager and compiled; `..._best` is the faster of both. Also
with a DataLoader, as in most published code."""

import json
import os
import time

os.environ["CXX"] = "g++"  # for torch.compile: clang may have no OpenMP

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(2)
QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))
SECONDS = 0.05 if QUICK else 4.0
SIDE, PATCH, BANDS, CLASSES = 145, 11, 200, 16
BORDERED = SIDE + PATCH - 1
IMAGE = torch.rand(BORDERED, BORDERED, BANDS)
FLAT = IMAGE.view(-1, BANDS)
OFFSETS = (torch.arange(PATCH)[:, None] * BORDERED + torch.arange(PATCH)[None]).reshape(-1)


def cnn2d():
    return nn.Sequential(
        nn.Conv2d(BANDS, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES)).to(memory_format=torch.channels_last)


def cnn3d():
    return nn.Sequential(
        nn.Unflatten(1, (1, BANDS)), nn.Conv3d(1, 8, (7, 3, 3)), nn.ReLU(), nn.Conv3d(8, 16, (5, 3, 3), (2, 1, 1)), nn.ReLU(),
        nn.Conv3d(16, 32, 3, (2, 1, 1)), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, CLASSES))


class Patches(Dataset):
    def __init__(self, pixels, labels):
        self.pixels, self.labels, self.image = pixels, labels, IMAGE.numpy()

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, k):
        y, x = divmod(int(self.pixels[k]), SIDE)
        return torch.from_numpy(self.image[y:y + PATCH, x:x + PATCH].transpose(2, 0, 1).copy()), self.labels[k]


def gathered(pixels, labels, batch):
    while True:
        for k in torch.randperm(len(pixels)).split(batch):
            if len(k) < batch:
                continue
            p = pixels[k]
            index = ((p // SIDE) * BORDERED + p % SIDE)[:, None] + OFFSETS
            yield FLAT.index_select(0, index.view(-1)).view(-1, PATCH, PATCH, BANDS).permute(0, 3, 1, 2), labels[k]


def loaded(pixels, labels, batch):
    while True:
        yield from DataLoader(Patches(pixels, labels), batch, shuffle=True, drop_last=True)


def patches_a_second(make_model, rows, batch, batches, bf16=False, compiled=False):
    torch.manual_seed(0)
    pixels, labels = torch.randperm(SIDE * SIDE)[:rows], torch.randint(CLASSES, (rows,))
    model = make_model()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    source = batches(pixels, labels, batch)

    def run(seconds):
        done, start = 0, time.perf_counter()
        while True:
            x, y = next(source)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(forward(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            done += len(y)
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return done / elapsed

    run(SECONDS / 10)
    return run(SECONDS)


def tell(name, value):
    print(json.dumps({"name": name, "value": value, "unit": "patches/s"}), flush=True)


for name, arguments, bf16 in (
    ("cnn2d", (cnn2d, 3072, 256, gathered), False),
    ("cnn2d_bf16", (cnn2d, 3072, 256, gathered), True),
    ("cnn3d", (cnn3d, 512, 64, gathered), False),
):
    ways = {"gather": dict(bf16=bf16)}
    if not QUICK:  # compiling takes half a minute
        ways["compiled"] = dict(bf16=bf16, compiled=True)
    values = {way: patches_a_second(*arguments, **options) for way, options in ways.items()}
    for way, value in values.items():
        tell(f"{name}_{way}", value)
    tell(f"{name}_best", max(values.values()))
tell("cnn2d_data_loader", patches_a_second(cnn2d, 3072, 256, loaded))
