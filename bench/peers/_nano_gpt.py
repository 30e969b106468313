"""nanoGPT's model as users of PyTorch write it. Default: its CPU model (train_shakespeare_char)."""

import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(self.ln_1(x)).split(c, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class NanoGPT(nn.Module):
    """Maps (B, T) tokens and targets to the loss."""

    def __init__(self, rows=12, block=64, vocabulary=65, layers=4, heads=4, width=128):
        super().__init__()
        self.rows, self.block, self.vocabulary = rows, block, vocabulary
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=False)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(F.linear(self.ln_f(h), self.wte.weight).flatten(0, 1), y.flatten())
