"""A trace of torch.amp.GradScaler over 300 steps, for tests/amp/grad_scaler_reference_test.cpp.

python grad_scaler.py FLOOR... prints CSV: step,scale,growth_tracker,skipped,w0,w1 (after each update), 300 lines for
each floor. A floor of 0 is torch.amp.GradScaler unchanged; another one is the scale's minimum after each update.
"""
import math
import sys

import torch

STEPS = 300


def planted(step):
    """The factor of the gradient: inf and nan in some steps, and a series of them."""
    if step in (5, 40, 41, 133, 240):
        return math.inf
    if step in (17, 90, 91, 92, 250):
        return math.nan
    if 180 <= step < 210:
        return math.inf
    return 1.0


def main(floor):
    weight = torch.tensor([1.0, -2.0], requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
    for step in range(STEPS):
        optimizer.zero_grad()
        before = weight.detach().clone()
        loss = (weight * torch.tensor([math.sin(step), math.cos(step)]) * planted(step)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], 0.5)
        scaler.step(optimizer)
        scaler.update()
        if floor:
            scaler._scale.clamp_(min=floor)
        skipped = int(torch.equal(weight.detach(), before))
        state = scaler.state_dict()
        print(f"{step},{state['scale']!r},{state['_growth_tracker']},{skipped},{weight[0].item()!r},{weight[1].item()!r}")


for argument in sys.argv[1:]:
    main(float(argument))
