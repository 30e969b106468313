"""The work of BM_HsiCnn2d, BM_HsiCnn3d, BM_HsiHybridSn and BM_HsiSsrn in Python: training steps with patches gathered
by one index_select, channels_last if it is faster (2-D), two threads, fused Adam, eager and compiled; `..._best` is the
faster of both. Also with a DataLoader, as in most published code."""

import json
import os
import time

os.environ["CXX"] = "g++"  # for torch.compile: clang may have no OpenMP

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from _hsi import CLASSES, SIDE, SSRN, HybridSN, Scene, cnn2d, cnn3d

torch.set_num_threads(2)
QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))
SECONDS = 0.05 if QUICK else 4.0


class Patches(Dataset):
    def __init__(self, scene, pixels, labels):
        self.patch, self.pixels, self.labels, self.image = scene.patch, pixels, labels, scene.image.numpy()

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, k):
        y, x = divmod(int(self.pixels[k]), SIDE)
        return torch.from_numpy(self.image[y:y + self.patch, x:x + self.patch].transpose(2, 0, 1).copy()), self.labels[k]


def gathered(scene, pixels, labels, batch):
    while True:
        for k in torch.randperm(len(pixels)).split(batch):
            if len(k) < batch:
                continue
            yield scene.patches(pixels[k]), labels[k]


def loaded(scene, pixels, labels, batch):
    while True:
        yield from DataLoader(Patches(scene, pixels, labels), batch, shuffle=True, drop_last=True)


def patches_a_second(make_model, rows, batch, batches, scene, bf16=False, compiled=False):
    torch.manual_seed(0)
    pixels, labels = torch.randperm(SIDE * SIDE)[:rows], torch.randint(CLASSES, (rows,))
    model = make_model()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    source = batches(scene, pixels, labels, batch)

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


scene = Scene()
for name, arguments, bf16 in (
    ("cnn2d", (cnn2d, 3072, 256, gathered, scene), False),
    ("cnn2d_bf16", (cnn2d, 3072, 256, gathered, scene), True),
    ("cnn3d", (cnn3d, 512, 64, gathered, scene), False),
    ("hybridsn", (HybridSN, 512, 64, gathered, Scene(25, 30)), False),
    ("ssrn", (SSRN, 512, 64, gathered, Scene(7)), False),
):
    ways = {"gather": dict(bf16=bf16)}
    if not QUICK:  # compiling takes half a minute
        ways["compiled"] = dict(bf16=bf16, compiled=True)
    values = {way: patches_a_second(*arguments, **options) for way, options in ways.items()}
    for way, value in values.items():
        tell(f"{name}_{way}", value)
    tell(f"{name}_best", max(values.values()))
tell("cnn2d_data_loader", patches_a_second(cnn2d, 3072, 256, loaded, scene))
