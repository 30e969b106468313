"""The steps of BM_TwoPlayersMlp and BM_TwoPlayersDcgan in Python: two players by hand, batches of 64 rows in memory, Adam,
eager, one thread."""

import json
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))
ROWS = 64
torch.set_num_threads(1)


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def dcgan():
    generator = nn.Sequential(nn.ConvTranspose2d(16, 48, 4, bias=False), nn.BatchNorm2d(48), nn.ReLU(),
                              nn.ConvTranspose2d(48, 24, 4, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
                              nn.ConvTranspose2d(24, 1, 4, 2, 1), nn.Tanh())
    discriminator = nn.Sequential(nn.Conv2d(1, 24, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(24, 48, 4, 2, 1, bias=False),
                                  nn.BatchNorm2d(48), nn.LeakyReLU(0.2), nn.Conv2d(48, 1, 4))
    return generator, discriminator


def bce(logits, label):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))


def microseconds_a_step(players, batches, noise, label, seconds, **adam_options):
    generator, discriminator = players
    adam = dict(lr=2e-4, betas=(0.5, 0.999), **adam_options)
    of_g, of_d = torch.optim.Adam(generator.parameters(), **adam), torch.optim.Adam(discriminator.parameters(), **adam)

    def step(real):
        fake = generator(torch.randn(ROWS, *noise))
        of_d.zero_grad(set_to_none=True)
        (bce(discriminator(real), label) + bce(discriminator(fake.detach()), 0.0)).backward()
        of_d.step()
        of_g.zero_grad(set_to_none=True)
        bce(discriminator(fake), 1.0).backward()
        of_g.step()

    for k in range(20):
        step(batches[k % len(batches)])
    done, start = 0, time.perf_counter()
    while done % 10 or time.perf_counter() - start < seconds:
        step(batches[done % len(batches)])
        done += 1
    return (time.perf_counter() - start) / done * 1e6


for suffix, options in ("", {}), ("_fused_adam", {"fused": True}):
    torch.manual_seed(0)
    value = microseconds_a_step((mlp(16, 32), mlp(32, 1)), [torch.randn(ROWS, 32) for _ in range(64)], (16,), 1.0,
                                0.05 if QUICK else 2, **options)
    print(json.dumps({"name": "mlp" + suffix, "value": value, "unit": "us"}))
    value = microseconds_a_step(dcgan(), [torch.randn(ROWS, 1, 16, 16).tanh() for _ in range(16)], (16, 1, 1), 0.9,
                                0.05 if QUICK else 4, **options)
    print(json.dumps({"name": "dcgan" + suffix, "value": value, "unit": "us"}))
