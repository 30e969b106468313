"""The steps of BM_ExportedModel in Python: eager and torch.compile, with the fused AdamW; one thread for the MLP, else two.

    exported_model.py --set-up FOLDER    writes the models for the suites: FOLDER/NAME.tkm, and NAME.pt as TorchScript
"""
# sets up: BM_ExportedModel BM_TorchScriptModel

import json
import os
import pathlib
import sys
import time
import warnings

os.environ["CXX"] = "g++"  # for torch.compile: clang may have no OpenMP

import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")
QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))
SECONDS = 0.05 if QUICK else 3.0


class Gpt2(nn.Module):
    """transformers' GPT-2: 4 layers, 4 heads, width 128, blocks of 64, 65 tokens, without dropout."""

    def __init__(self):
        super().__init__()
        import transformers
        self.body = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_embd=128, n_layer=4, n_head=4, vocab_size=65, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            bos_token_id=0, eos_token_id=0, use_cache=False))

    def forward(self, ids):
        return self.body(input_ids=ids, use_cache=False).logits


def mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def vit_tiny():
    from torchvision.models import VisionTransformer
    return VisionTransformer(image_size=64, patch_size=16, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=10)


def resnet18():
    from torchvision.models import resnet18
    return resnet18(num_classes=10)


# name: model, threads, a batch of inputs, a batch of targets
MODELS = {
    "mlp": (mlp, 1, lambda: torch.randn(64, 64), lambda: torch.randint(10, (64,))),
    "gpt2": (Gpt2, 2, lambda: torch.randint(65, (12, 64)), lambda: torch.randint(65, (12, 64))),
    "vit_tiny": (vit_tiny, 2, lambda: torch.randn(16, 3, 64, 64), lambda: torch.randint(10, (16,))),
    "resnet18": (resnet18, 2, lambda: torch.randn(16, 3, 64, 64), lambda: torch.randint(10, (16,))),
}


def set_up(folder):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "packaging/wheel"))
    import trainkit
    for name, (make, _, inputs, _) in MODELS.items():
        torch.manual_seed(0)
        model, x = make().train(), inputs()
        trainkit.export_model(model, (x,), f"{folder}/{name}.tkm")
        torch.jit.trace(model, (x,), check_trace=False).save(f"{folder}/{name}.pt")


def microseconds_a_step(name, compiled):
    make, threads, inputs, targets = MODELS[name]
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = make().train()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [(inputs(), targets()) for _ in range(8)]
    done = 0

    def step():
        nonlocal done
        x, y = batches[done % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        scores = forward(x)
        F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1)).backward()
        optimizer.step()
        done += 1

    for _ in range(10):
        step()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        step()
    return (time.perf_counter() - start) / done * 1e6


if len(sys.argv) > 1:
    set_up(sys.argv[2])
else:
    for name in MODELS:
        for way in ["eager"] if QUICK else ["eager", "compiled"]:  # compiling takes up to a minute
            value = microseconds_a_step(name, way == "compiled")
            print(json.dumps({"name": f"{name}_{way}", "value": value, "unit": "us"}), flush=True)
