"""The work of BM_ResNet18Step with torchvision's model: channels_last, two threads, float32 and bfloat16 autocast."""

import json
import os
import time

import torch
import torch.nn.functional as F
from torchvision.models import resnet18

torch.set_num_threads(2)
SECONDS = 0.05 if os.environ.get("TRAINKIT_BENCH_QUICK") else 3.0
ROWS = 16

torch.manual_seed(0)
model = resnet18(num_classes=7).to(memory_format=torch.channels_last)
x = torch.randn(ROWS, 3, 224, 224).contiguous(memory_format=torch.channels_last)
y = torch.randint(7, (ROWS,))


def step(bf16):
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()


for name, bf16 in (("fp32", False), ("bf16", True)):
    step(bf16)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        step(bf16)
        count += ROWS
    print(json.dumps({"name": name, "value": count / (time.perf_counter() - start), "unit": "pictures/s"}))
