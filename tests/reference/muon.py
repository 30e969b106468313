"""Matrices after each of 50 steps of torch.optim.Muon, for tests/optim/muon_reference_test.cpp.

python muon.py OUT_DIR writes float32 files, native byte order, all matrices concatenated in order:
  init.bin      the matrices
  grads.bin     (50, elements) gradients
  <case>.bin    (50, elements) matrices after each step
"""
import sys

import torch

SHAPES = [(16, 8), (8, 24), (12, 12)]
STEPS = 50
CASES = {
    "default": dict(lr=1e-2),
    "match": dict(lr=1e-2, adjust_lr_fn="match_rms_adamw", weight_decay=0.2),
    "plain": dict(lr=1e-2, momentum=0.8, nesterov=False, weight_decay=0.0),
}


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def main(out):
    torch.manual_seed(2)
    init = [torch.randn(s) for s in SHAPES]
    grads = [[torch.randn(s) for s in SHAPES] for step in range(STEPS)]
    flat(init).numpy().tofile(f"{out}/init.bin")
    torch.stack([flat(g) for g in grads]).numpy().tofile(f"{out}/grads.bin")
    for name, options in CASES.items():
        params = [p.clone().requires_grad_() for p in init]
        optimizer = torch.optim.Muon(params, **options)
        rows = []
        for step in range(STEPS):
            for param, grad in zip(params, grads[step]):
                param.grad = grad.clone()
            optimizer.step()
            rows.append(flat(params))
        torch.stack(rows).numpy().tofile(f"{out}/{name}.bin")


main(sys.argv[1])
