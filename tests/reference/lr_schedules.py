"""Learning rates of torch.optim.lr_scheduler, for tests/optim/lr_schedule_reference_test.cpp.

python lr_schedules.py prints CSV: case,step,lr. The learning rate is 1, so lr is the factor; the plateau cases start at
0.5 and print the learning rate after each metric, which is the fourth column.
"""
import math
import warnings

import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR, CosineAnnealingWarmRestarts, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, OneCycleLR, PolynomialLR,
    ReduceLROnPlateau, SequentialLR, StepLR)

warnings.simplefilter("ignore")


def optimizer(lr=1.0):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def trace(name, make, steps):
    opt = optimizer()
    scheduler = make(opt)
    for step in range(steps):
        print(f"{name},{step},{opt.param_groups[0]['lr']!r},0")
        opt.step()
        if step + 1 < steps:
            scheduler.step()


def warm(make, steps, start):
    return lambda opt: SequentialLR(
        opt, [LinearLR(opt, start_factor=start, end_factor=1.0, total_iters=steps), make(opt)], milestones=[steps])


MAIN = {
    "constant": (lambda o: LambdaLR(o, lambda step: 1.0), 50),
    "linear": (lambda o: LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=60), 100),
    "cosine": (lambda o: CosineAnnealingLR(o, T_max=80, eta_min=0.1), 81),
    "restarts": (lambda o: CosineAnnealingWarmRestarts(o, T_0=20, eta_min=0.05), 150),
    "restarts_mult": (lambda o: CosineAnnealingWarmRestarts(o, T_0=10, T_mult=2, eta_min=0.0), 200),
    "step": (lambda o: StepLR(o, step_size=15, gamma=0.3), 100),
    "multi_step": (lambda o: MultiStepLR(o, milestones=[5, 30, 30, 70], gamma=0.4), 100),
    "exponential": (lambda o: ExponentialLR(o, gamma=0.97), 100),
    "polynomial": (lambda o: PolynomialLR(o, total_iters=60, power=1.7), 100),
}
ONE_CYCLE = {
    "one_cycle": dict(total_steps=100),
    "one_cycle_linear": dict(total_steps=100, pct_start=0.25, anneal_strategy="linear", div_factor=10, final_div_factor=50),
    "one_cycle_three": dict(total_steps=100, three_phase=True),
}
PLATEAU = {
    "plateau": dict(patience=3, factor=0.5),
    "plateau_cooldown": dict(patience=2, factor=0.3, cooldown=4, min_lr=0.01),
    "plateau_abs": dict(patience=2, factor=0.5, threshold=0.05, threshold_mode="abs"),
    "plateau_max": dict(patience=4, factor=0.5, mode="max", threshold=0.02),
    "plateau_max_abs": dict(patience=1, factor=0.9, mode="max", threshold=0.01, threshold_mode="abs", eps=1e-2),
}

for case, (make, steps) in MAIN.items():
    trace(case, make, steps)
    trace(case + "_warm", warm(make, 25, 0.2), min(25 + steps, 25 + 81 if case == "cosine" else 10**9))
for case, options in ONE_CYCLE.items():
    trace(case, lambda o: OneCycleLR(o, max_lr=1.0, cycle_momentum=False, **options), 100)
# A LambdaLR with the formula of nanoGPT's get_lr: warm-up to step 20, cosine to step 120, down to a tenth.
trace("nanogpt", lambda o: LambdaLR(o, lambda it: (it + 1) / 21 if it < 20 else 0.1 if it > 120 else
                                    0.1 + 0.5 * (1 + math.cos(math.pi * (it - 20) / 100)) * 0.9), 150)
for case, options in PLATEAU.items():
    opt = optimizer(0.5)
    scheduler = ReduceLROnPlateau(opt, **options)
    for step in range(120):
        metric = 1.0 / (1 + step) + 0.1 * math.sin(step * 1.7) + (0.2 if step > 60 else 0.0)
        scheduler.step(math.nan if step == 30 else metric)
        print(f"{case},{step},{opt.param_groups[0]['lr']!r},{metric!r}")
