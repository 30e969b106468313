"""Parameters after each of 100 steps of torch.optim, for tests/optim/optimizer_reference_test.cpp.

python optimizers.py OUT_DIR writes float32 files, native byte order, all tensors concatenated in order:
  init.bin         the parameters
  grads.bin        (100, parameters) gradients
  <case>.bin       (100, parameters) parameters after each step
  clip.bin         (100, 1 + parameters) norm returned and gradients left by clip_grad_norm_(..., 1.0)
A case ends in ".fused" where torch.optim's fused implementation ran, and in ".missing" where gradients were missing:
that of tensor 1 in the first 20 steps, that of tensor 3 in every third.
"""
import sys

import torch

SHAPES = [(16, 8), (16,), (4, 3, 3, 3), (5,)]
STEPS = 100


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def save(path, tensor):
    tensor.contiguous().numpy().tofile(path)


def missing(step, index):
    return (index == 1 and step < 20) or (index == 3 and step % 3 == 1)


CASES = {
    "adamw": (torch.optim.AdamW, dict(lr=1e-2, weight_decay=0.1)),
    "adam": (torch.optim.Adam, dict(lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01)),
    "sgd": (torch.optim.SGD, dict(lr=1e-2, weight_decay=0.05)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=1e-2, momentum=0.9)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.05)),
    "rmsprop": (torch.optim.RMSprop, dict(lr=1e-2, weight_decay=0.05)),
    "rmsprop_momentum": (torch.optim.RMSprop, dict(lr=3e-3, alpha=0.9, eps=1e-6, momentum=0.8)),
    "rmsprop_centered": (torch.optim.RMSprop, dict(lr=3e-3, alpha=0.6, eps=1e-6, momentum=0.5, centered=True, weight_decay=0.01)),
    "adagrad": (torch.optim.Adagrad, dict(lr=1e-1, weight_decay=0.05)),
    "adagrad_decay": (torch.optim.Adagrad, dict(lr=2e-1, lr_decay=0.02, initial_accumulator_value=0.3, eps=1e-6)),
}


def run(kind, options, init, grads, with_missing, fused):
    params = [p.clone().requires_grad_() for p in init]
    # Matrices first, then vectors with half the learning rate and no weight decay.
    groups = [
        {"params": [params[0], params[2]]},
        {"params": [params[1], params[3]], "lr": options["lr"] * 0.5, "weight_decay": 0.0},
    ]
    if kind is not torch.optim.RMSprop:
        options = dict(options, fused=fused)
    optimizer = kind(groups, foreach=False, **options)
    rows = []
    for step in range(STEPS):
        for index, (param, grad) in enumerate(zip(params, grads[step])):
            param.grad = None if with_missing and missing(step, index) else grad.clone()
        optimizer.step()
        rows.append(flat(params))
    return torch.stack(rows)


def main(out):
    torch.manual_seed(1)
    init = [torch.randn(s) for s in SHAPES]
    grads = [[torch.randn(s) for s in SHAPES] for step in range(STEPS)]
    save(f"{out}/init.bin", flat(init))
    save(f"{out}/grads.bin", torch.stack([flat(g) for g in grads]))
    for name, (kind, options) in CASES.items():
        for with_missing in (False, True):
            for fused in (False, True):
                # Fused SGD cannot start if some of the momentum buffers are missing. There is no fused RMSprop.
                if fused and (kind is torch.optim.RMSprop or with_missing and kind is torch.optim.SGD):
                    continue
                suffix = (".fused" if fused else "") + (".missing" if with_missing else "")
                save(f"{out}/{name}{suffix}.bin", run(kind, options, init, grads, with_missing, fused))
    rows = []
    for step in range(STEPS):
        params = [p.clone().requires_grad_() for p in init]
        for param, grad in zip(params, grads[step]):
            param.grad = grad * (0.02 if step % 2 else 1.0)  # every second norm is below the limit
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        rows.append(torch.cat([norm.reshape(1), flat([p.grad for p in params])]))
    save(f"{out}/clip.bin", torch.stack(rows))


main(sys.argv[1])
