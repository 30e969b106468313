"""The work of BM_TransformerStep in Python: forward, loss and backward of nanoGPT's model for a CPU, two threads."""

import json
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(2)
torch.manual_seed(0)
LAYERS, HEADS, WIDTH, BLOCK, ROWS, VOCABULARY = 4, 4, 128, 64, 12, 65
STEPS = 10 if os.environ.get("TRAINKIT_BENCH_QUICK") else 150


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, HEADS, c // HEADS).transpose(1, 2) for p in self.qkv(self.ln_1(x)).split(c, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layers, self.ln_f = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH, bias=False)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(F.linear(self.ln_f(h), self.wte.weight).view(-1, VOCABULARY), y.view(-1))


model = GPT()
x, y = torch.randint(VOCABULARY, (ROWS, BLOCK)), torch.randint(VOCABULARY, (ROWS, BLOCK))


def run(steps):
    start = time.perf_counter()
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        model(x, y).backward()
    return steps * ROWS * BLOCK / (time.perf_counter() - start)


run(5)
print(json.dumps({"name": "eager", "value": run(STEPS), "unit": "tokens/s"}))
