"""The work of BM_LanguageModel in Python: whole training steps of both models, two threads, in PyTorch's variants;
`..._best` is the fastest variant that computes in the requested dtype: "medium" computes float32 products in bfloat16
if the CPU supports it."""

import json
import os
import time

os.environ["CXX"] = "g++"  # for torch.compile: clang may have no OpenMP

import torch
import torch.nn as nn
import torch.nn.functional as F

from _nano_gpt import NanoGPT

torch.set_num_threads(2)
QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))
SECONDS = 0.05 if QUICK else 2.0


class LM(nn.Module):
    """PyTorch's own nn.TransformerEncoder."""
    rows, block, vocabulary = 16, 128, 2048

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(self.vocabulary, 256), nn.Embedding(self.block, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(256, self.vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.block))

    def forward(self, x, y):
        h = self.enc(self.tok(x) + self.pos.weight, mask=self.mask, is_causal=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


def tokens_a_second(model_class, bf16, fused, compiled=False, medium=False):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("medium" if medium else "highest")
    model = model_class()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=fused)
    batches = [torch.randint(model.vocabulary, (2, model.rows, model.block)) for _ in range(8)]
    done = 0

    def step():
        nonlocal done
        x, y = batches[done % len(batches)]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = forward(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done += 1

    for _ in range(3):
        step()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        step()
    return done * model.rows * model.block / (time.perf_counter() - start)


for name, model_class in [("baby", NanoGPT), ("lm", LM)]:
    for bf16 in [False, True]:
        ways = {"eager": dict(fused=False), "fused": dict(fused=True)}
        if not bf16:
            ways["medium"] = dict(fused=True, medium=True)
        if not QUICK:  # compiling takes 15 seconds
            ways["compiled"] = dict(fused=True, compiled=True)
        prefix, best = name + ("_bf16" if bf16 else ""), 0
        for way, options in ways.items():
            value = tokens_a_second(model_class, bf16, **options)
            best = max(best, 0 if way == "medium" else value)
            print(json.dumps({"name": f"{prefix}_{way}", "value": value, "unit": "tokens/s"}), flush=True)
        print(json.dumps({"name": f"{prefix}_best", "value": best, "unit": "tokens/s"}), flush=True)
