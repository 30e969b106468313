"""A plain PyTorch GPT, written from nanoGPT's model.py, as the reference of nn/transformer.h.

    python transformer.py OUT.safetensors CONFIG.json

Creates a model with random weights (all of them, so that no zero hides an error) and one batch, and writes the weights,
the batch, the logits, the loss and every gradient.
"""
import json
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file


class LayerNorm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.c_attn(x).split(c, dim=2))
        weights = (q @ k.transpose(-2, -1)) * (k.size(-1) ** -0.5)  # explicit: not the kernel under test
        weights = weights.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).reshape(b, t, c))


class Mlp(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.ln_1, self.attn = LayerNorm(width, bias), Attention(width, heads, bias)
        self.ln_2, self.mlp = LayerNorm(width, bias), Mlp(width, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layers, n_heads, hidden_dim, bias, tied_head):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocab_size, hidden_dim),
            wpe=nn.Embedding(block_size, hidden_dim),
            h=nn.ModuleList(Block(hidden_dim, n_heads, bias) for _ in range(n_layers)),
            ln_f=LayerNorm(hidden_dim, bias)))
        self.lm_head = nn.Linear(hidden_dim, vocab_size, bias=False)
        if tied_head:
            self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.size(1)))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


if __name__ == "__main__":
    out, config = sys.argv[1], json.loads(sys.argv[2])
    torch.manual_seed(config.pop("seed"))
    rows, length = config.pop("rows"), config.pop("length")
    model = GPT(**config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0, 0.1)
    x = torch.randint(config["vocab_size"], (rows, length))
    y = torch.randint(config["vocab_size"], (rows, length))
    y[0, -2:] = -100
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1), ignore_index=-100)
    loss.backward()
    tensors = {"x": x, "y": y, "logits": logits, "loss": loss.reshape(1)}
    for name, p in model.named_parameters():  # a shared tensor is listed once, as wte
        tensors["weight:" + name] = p
        tensors["grad:" + name] = p.grad
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, out)
