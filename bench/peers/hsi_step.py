"""The work of BM_HsiCnn2d, BM_HsiCnn3d, BM_HsiHybridSn and BM_HsiSsrn in Python: training steps with patches gathered
by one index_select, channels_last if it is faster (2-D), two threads, fused Adam, eager and compiled; `..._best` is the
faster of both. Also with a DataLoader, as in most published code."""

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
SIDE, BANDS, CLASSES = 145, 200, 16


def cnn2d():
    return nn.Sequential(
        nn.Conv2d(BANDS, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.BatchNorm2d(128), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES)).to(memory_format=torch.channels_last)


def cnn3d():
    return nn.Sequential(
        nn.Unflatten(1, (1, BANDS)), nn.Conv3d(1, 8, (7, 3, 3)), nn.ReLU(), nn.Conv3d(8, 16, (5, 3, 3), (2, 1, 1)), nn.ReLU(),
        nn.Conv3d(16, 32, 3, (2, 1, 1)), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, CLASSES))


class HybridSN(nn.Module):
    """Roy et al. 2020, with 25 x 25 patches of 30 components."""

    def __init__(self):
        super().__init__()
        self.volumes = nn.Sequential(nn.Unflatten(1, (1, 30)), nn.Conv3d(1, 8, (7, 3, 3)), nn.ReLU(),
                                     nn.Conv3d(8, 16, (5, 3, 3)), nn.ReLU(), nn.Conv3d(16, 32, 3), nn.ReLU())
        self.images = nn.Sequential(nn.Conv2d(32 * 18, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 17 * 17, 256), nn.ReLU(),
                                    nn.Dropout(0.4), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, CLASSES))

    def forward(self, x):
        return self.images(self.volumes(x).flatten(1, 2))


class SsrnBlock(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        padding = [size // 2 for size in kernel]
        self.first = nn.Sequential(nn.Conv3d(24, 24, kernel, padding=padding), nn.BatchNorm3d(24), nn.ReLU())
        self.second = nn.Sequential(nn.Conv3d(24, 24, kernel, padding=padding), nn.BatchNorm3d(24))

    def forward(self, x):
        return F.relu(x + self.second(self.first(x)))


class SSRN(nn.Module):
    """Zhong et al. 2018, with 7 x 7 patches of 200 bands."""

    def __init__(self):
        super().__init__()
        self.spectral = nn.Sequential(
            nn.Unflatten(1, (1, BANDS)), nn.Conv3d(1, 24, (7, 1, 1), (2, 1, 1)), nn.BatchNorm3d(24), nn.ReLU(),
            SsrnBlock((7, 1, 1)), SsrnBlock((7, 1, 1)), nn.Conv3d(24, 128, (97, 1, 1)), nn.BatchNorm3d(128), nn.ReLU())
        self.spatial = nn.Sequential(nn.Conv3d(1, 24, (128, 3, 3)), nn.BatchNorm3d(24), nn.ReLU(), SsrnBlock((1, 3, 3)),
                                     SsrnBlock((1, 3, 3)), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(24, CLASSES))

    def forward(self, x):
        return self.spatial(self.spectral(x).transpose(1, 2))


class Scene:
    """A square image with a border, from which square patches are cut."""

    def __init__(self, patch=11, bands=BANDS):
        self.patch, self.bands, self.side = patch, bands, SIDE + patch - 1
        self.image = torch.rand(self.side, self.side, bands)
        self.offsets = (torch.arange(patch)[:, None] * self.side + torch.arange(patch)[None]).reshape(-1)

    def patches(self, pixels):
        index = ((pixels // SIDE) * self.side + pixels % SIDE)[:, None] + self.offsets
        patches = self.image.view(-1, self.bands).index_select(0, index.view(-1))
        return patches.view(-1, self.patch, self.patch, self.bands).permute(0, 3, 1, 2)


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
