"""The optimizers and schedules of torch.optim that a program uses."""
import math

import torch
from torch import nn
from torch.optim import lr_scheduler


class Optimizers:
    """The optimizers of torch.optim for the groups of a program, by names of parameters."""

    def __init__(self, spec, net, part=0, parts=1, player=0):
        self.spec, self.net = spec, net
        self.names, self.optimizers, self.late = {}, [], []
        trained = [(n, p) for n, p in net.named_parameters() if p.requires_grad and self.owner(n) == player]
        trained = trained[len(trained) * part // parts:len(trained) * (part + 1) // parts]
        if not trained:
            raise ValueError("nothing to train")
        if spec["groups"] == "layers":
            for i, one in enumerate(trained):
                self.add([one], 1 / (1 + i % 3), 0.02 if i % 2 else None, f"g{i}")
                if i % 2 and spec["thaw_at"]:
                    self.late.append(one[1])
        elif spec["groups"] == "default" and parts == 1:
            if spec["optimizer"] == "muon":
                matrices = [one for one in trained if self.is_matrix(*one)]
                self.add(matrices, 1, None, "muon", muon=True)
                trained = [one for one in trained if not self.is_matrix(*one)]
            self.add([one for one in trained if one[1].dim() >= 2], 1, None, "decay")
            self.add([one for one in trained if one[1].dim() < 2], 1, 0.0, "no_decay")
        else:
            self.add(trained, 1, None, "all")

    def owner(self, name):
        """The player that trains a parameter, without players 0."""
        layer = name.split(".")[0]
        return self.spec["head_player"] if layer == "head" else self.spec["layers"][int(layer[1:])]["player"]

    def follow_step(self, done):
        """Freezes or thaws the groups that are trained later."""
        for parameter in self.late:
            parameter.requires_grad_(done >= self.spec["thaw_at"])

    def is_matrix(self, name, parameter):
        layers = [i for i, m in enumerate(self.net.modules_of) if isinstance(m, nn.Embedding)]
        return parameter.dim() == 2 and name != "head.weight" and name not in [f"l{i}.weight" for i in layers]

    def add(self, named, multiple, weight_decay, group="", muon=False):
        if not named:
            return
        spec, decay = self.spec, self.spec["weight_decay"] if weight_decay is None else weight_decay
        lr, betas = spec["lr"] * multiple, (spec["beta1"], 0.99)
        parameters = [p for _, p in named]
        sparse = [one for one in named if self.is_table(one[1])]
        if sparse and len(sparse) < len(named):  # Adam for the parameters with dense gradients
            self.add(sparse, multiple, weight_decay, group)
            return self.add([one for one in named if not self.is_table(one[1])], multiple, weight_decay, group)
        if sparse:
            made = torch.optim.SparseAdam(parameters, lr=lr, betas=betas, eps=spec["eps"])
        elif muon:
            made = torch.optim.Muon(parameters, lr=lr, momentum=spec["momentum"], weight_decay=decay,
                                    nesterov=spec["nesterov"] and spec["momentum"] > 0)
        elif spec["optimizer"] == "sgd":
            made = torch.optim.SGD(parameters, lr=lr, momentum=spec["momentum"], weight_decay=decay,
                                   nesterov=spec["nesterov"] and spec["momentum"] > 0)
        elif spec["optimizer"] == "rmsprop":
            made = torch.optim.RMSprop(parameters, lr=lr, alpha=spec["beta1"], eps=spec["eps"], weight_decay=decay,
                                       momentum=spec["momentum"], centered=spec["centered"])
        elif spec["optimizer"] == "adagrad":
            made = torch.optim.Adagrad(parameters, lr=lr, lr_decay=0.1, weight_decay=decay, initial_accumulator_value=0.05,
                                       eps=spec["eps"])
        elif spec["optimizer"] in ("adam", "sparse_adam"):
            made = torch.optim.Adam(parameters, lr=lr, betas=betas, eps=spec["eps"], weight_decay=decay)
        else:
            made = torch.optim.AdamW(parameters, lr=lr, betas=betas, eps=spec["eps"], weight_decay=decay)
        self.optimizers.append([made, multiple, group])
        for name, parameter in named:
            self.names[name] = (parameter, made)

    def is_table(self, parameter):
        """Whether its gradients are sparse."""
        return any(isinstance(m, nn.Embedding) and m.sparse and m.weight is parameter for m in self.net.modules_of)

    def parameters(self):
        return [p for p, _ in self.names.values()]

    def set_lr(self, lr):
        for optimizer, multiple, _ in self.optimizers:
            optimizer.param_groups[0]["lr"] = lr * multiple

    def set_multiple(self, name, multiple):
        for entry in self.optimizers:
            if entry[2] == name:
                entry[1] = multiple

    def step(self):
        for optimizer, _, _ in self.optimizers:
            optimizer.step()

    def record(self, record, place):
        for name, (parameter, optimizer) in self.names.items():
            state = optimizer.state.get(parameter, {})
            adam = ["exp_avg", "exp_avg_sq"]
            kinds = {torch.optim.Adam: adam, torch.optim.AdamW: adam, torch.optim.SparseAdam: adam, torch.optim.Muon: ["momentum_buffer"],
                     torch.optim.SGD: ["momentum_buffer"] if self.spec["momentum"] else [], torch.optim.Adagrad: ["sum"],
                     torch.optim.RMSprop: ["square_avg"] + ["momentum_buffer"] * (self.spec["momentum"] > 0) +
                                          ["grad_avg"] * self.spec["centered"]}[type(optimizer)]
            for kind in kinds:
                value = state.get(kind)
                record[f"{place}optimizer/{name}.{kind}"] = torch.zeros_like(parameter) if value is None else value.clone()
            if kinds == adam:
                record[f"{place}optimizer/{name}.step"] = float(state.get("step", 0.0))


def make_schedule(spec):
    """Returns the factor after `step` steps: PyTorch's own schedulers, run once on a parameter with rate 1."""
    if not spec["schedule"] or spec["schedule"] == "constant" and spec["warmup"] == 0:
        return lambda step: 1.0
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    total, warmup, least = spec["schedule_steps"], spec["warmup"], spec["min_factor"]
    rest = total - warmup
    period = spec["period"]

    def main(o):
        if spec["schedule"] == "linear":
            return lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=least, total_iters=rest)
        if spec["schedule"] == "cosine":  # PyTorch's rises again after T_max
            return lr_scheduler.LambdaLR(
                o, lambda s: least + (1 - least) * (1 + math.cos(math.pi * min(s, rest) / rest)) / 2)
        if spec["schedule"] == "cosine_restarts":
            return lr_scheduler.CosineAnnealingWarmRestarts(
                o, T_0=period or max(1, rest // 4), T_mult=spec["growth"], eta_min=least)
        if spec["schedule"] == "step":
            return lr_scheduler.StepLR(o, step_size=period or max(1, rest // 3), gamma=spec["gamma"])
        if spec["schedule"] == "multi_step":
            return lr_scheduler.MultiStepLR(o, milestones=[1, 1 + (period or 1)], gamma=spec["gamma"])
        if spec["schedule"] == "exponential":
            return lr_scheduler.ExponentialLR(o, gamma=spec["gamma"] ** (1 / (period or max(1, rest // 3))))
        if spec["schedule"] == "polynomial":
            return lr_scheduler.LambdaLR(o, lambda s: least + (1 - least) * (1 - min(s, rest) / rest) ** spec["growth"])
        if spec["schedule"] == "one_cycle":
            return lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=rest, cycle_momentum=False)
        return lr_scheduler.LambdaLR(o, lambda s: 1.0)

    if warmup > 0 and spec["schedule"] != "one_cycle":
        scheduler = lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), 1.0, warmup), main(optimizer)], [warmup])
    elif warmup > 0:  # SequentialLR steps OneCycleLR beyond its range
        scheduler = None
    else:
        scheduler = main(optimizer)
    factors = []
    for step in range(200):
        if scheduler is None:
            factors.append((1 + step * warmup / warmup) / (warmup + 1) if step < warmup else None)
            continue
        factors.append(optimizer.param_groups[0]["lr"])
        if spec["schedule"] == "one_cycle" and step + 1 == rest:  # OneCycleLR ends; ours stays at its last factor
            factors += factors[-1:] * 200
            break
        optimizer.step()
        scheduler.step()
    if scheduler is None:
        inner = make_schedule({**spec, "warmup": 0, "schedule_steps": rest})
        return lambda step: factors[step] if step < warmup else inner(step - warmup)
    return lambda step: factors[step]
