"""Runs programs of tests/differential with PyTorch: python oracle.py < requests > answers.

A message is a length (8 bytes), a JSON header of that length, and the bytes of its tensors. A request has the program
({"spec": ..., "permuted": ..., "tensors": [[name, dtype, shape], ...]}), an answer is the list of tensors of the record.
"""
import json
import math
import struct
import sys
import warnings

import numpy
import torch
from torch import nn
from torch.optim import lr_scheduler

warnings.simplefilter("ignore")
torch.set_num_threads(1)


# ---- Model and loss.


class Net(nn.Module):
    """The layers one after the other, the mean over positions, then the linear layer "head"."""

    def __init__(self, spec):
        super().__init__()
        self.spec = spec
        self.modules_of = []
        shape = {"sequence": [3, 8], "image": [2, 6, 6], "tokens": [5]}.get(spec["input"], [6])
        for i, layer in enumerate(spec["layers"]):
            if layer["shares"]:
                self.modules_of.append(self.modules_of[layer["shares"] - 1])
                continue
            module, shape = make_layer(layer, shape)
            if module is not None and any(True for _ in module.state_dict()):
                setattr(self, f"l{i}", module)
            self.modules_of.append(module)
        if spec["tied_head"]:
            embedding = self.modules_of[0]
            self.head = nn.Linear(embedding.embedding_dim, embedding.num_embeddings)
            self.head.weight = embedding.weight
        else:
            self.head = nn.Linear(shape[0], 4)

    def forward(self, x, m):
        h = x
        for i, (module, layer) in enumerate(zip(self.modules_of, self.spec["layers"])):
            call = module if module is not None else {"tanh": torch.tanh}.get(layer["kind"], torch.relu)
            if not layer["branch"]:
                h = call(h)
                if self.spec["input"] == "tokens" and i == 0:
                    h = h.mean(1)
                continue
            rows = m.nonzero().squeeze(1)
            if len(rows) > 0:
                h = h.index_add(0, rows, call(h.index_select(0, rows)).to(h.dtype))
        if h.dim() > 2:
            h = h.flatten(2).mean(2)
        return self.head(h)


def make_layer(layer, shape):
    kind, width, bias = layer["kind"], shape[0], not layer["no_bias"]
    if kind == "embedding":
        return nn.Embedding(7, layer["out"]), [layer["out"]]
    if kind == "linear":
        return nn.Linear(width, layer["out"], bias=bias), [layer["out"]]
    if kind in ("conv1d", "conv2d"):
        make = nn.Conv1d if kind == "conv1d" else nn.Conv2d
        return make(width, layer["out"], 3, padding=1, bias=bias), [layer["out"]] + shape[1:]
    if kind == "batch_norm":
        return (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(width, affine=bias), shape
    if kind == "sync_batch_norm":
        return (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(width), shape
    if kind == "group_norm":
        return nn.GroupNorm(2 if width % 2 == 0 else 1, width, affine=bias), shape
    if kind == "layer_norm":
        return nn.LayerNorm(shape[-1]), shape
    return None, shape


def make_net(spec, first):
    net = Net(spec)
    net.to(torch.float64 if spec["dtype"] == "float64" else torch.float32)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(first[name])
    for module, layer in zip(net.modules_of, spec["layers"]):
        if module is None or layer["shares"]:
            continue
        module.train(not layer["eval"])
        module.requires_grad_(not layer["frozen"])
    return net


class Loss:
    """The loss function; counts its calls in training."""

    def __init__(self, spec, sign=1.0):
        self.spec, self.sign, self.calls = spec, sign, 0

    def rows(self, scores, y):
        if self.spec["loss"] == "cross_entropy":
            return nn.functional.cross_entropy(scores, y, reduction="none")
        if self.spec["loss"] == "huber":
            return nn.functional.huber_loss(scores, y.to(scores.dtype), reduction="none", delta=0.5).mean(1)
        return (scores - y.to(scores.dtype)).square().mean(1)

    def errors(self, scores, y):
        if self.spec["loss"] != "cross_entropy":
            return (scores - y).abs().mean(1)
        return 1 - torch.softmax(scores, 1).gather(1, y.unsqueeze(1)).squeeze(1)

    def __call__(self, net, batch, trains=True):
        """Returns loss, weight and metrics."""
        spec, x, y, w = self.spec, batch["x"], batch["y"], batch["w"]
        penalty = spec["penalty"] and trains
        if penalty:
            x = x.detach().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=spec["dtype"] == "bfloat16"):
            scores = net(x, batch["m"])
            losses = self.rows(scores, y)
            if penalty:
                slope = torch.autograd.grad(losses.sum(), x, create_graph=True)[0]
                losses = losses + 0.1 * slope.flatten(1).square().sum(1)
            mean = (lambda v: (v * w).sum() / w.sum()) if spec["weights"] else torch.mean
            loss = mean(losses)
            if spec["state"] and trains:
                loss = loss / (1 + 0.25 * self.calls)
                self.calls += 1
            metric = None
            if spec["metric"] == "parameter":
                metric = net.head.weight.detach().flatten()[0].clone()
            elif spec["metric"] == "error" or spec["metric"] == "sometimes" and batch["m"][0] == 1:
                metric = mean(self.errors(scores.detach(), y))
        weight = w.sum().item() if spec["weights"] else float(len(x))
        return loss * self.sign, weight, metric


# ---- Optimizers and schedules.


class Optimizers:
    """The optimizers of torch.optim for the groups of a program, by names of parameters."""

    def __init__(self, spec, net, part=0, parts=1):
        self.spec, self.net = spec, net
        self.names, self.optimizers = {}, []
        trained = [(n, p) for n, p in net.named_parameters() if p.requires_grad]
        trained = trained[len(trained) * part // parts:len(trained) * (part + 1) // parts]
        if spec["groups"] == "layers":
            for i, one in enumerate(trained):
                self.add([one], 1 / (1 + i % 3), 0.02 if i % 2 else None)
        elif spec["groups"] == "default" and parts == 1:
            if spec["optimizer"] == "muon":
                matrices = [one for one in trained if self.is_matrix(*one)]
                self.add(matrices, 1, None, muon=True)
                trained = [one for one in trained if not self.is_matrix(*one)]
            self.add([one for one in trained if one[1].dim() >= 2], 1, None)
            self.add([one for one in trained if one[1].dim() < 2], 1, 0.0)
        else:
            self.add(trained, 1, None)

    def is_matrix(self, name, parameter):
        layers = [i for i, m in enumerate(self.net.modules_of) if isinstance(m, nn.Embedding)]
        return parameter.dim() == 2 and name != "head.weight" and name not in [f"l{i}.weight" for i in layers]

    def add(self, named, multiple, weight_decay, muon=False):
        if not named:
            return
        spec, decay = self.spec, self.spec["weight_decay"] if weight_decay is None else weight_decay
        lr, betas = spec["lr"] * multiple, (spec["beta1"], 0.99)
        parameters = [p for _, p in named]
        if muon:
            made = torch.optim.Muon(parameters, lr=lr, momentum=spec["momentum"], weight_decay=decay,
                                    nesterov=spec["nesterov"] and spec["momentum"] > 0)
        elif spec["optimizer"] == "sgd":
            made = torch.optim.SGD(parameters, lr=lr, momentum=spec["momentum"], weight_decay=decay,
                                   nesterov=spec["nesterov"] and spec["momentum"] > 0)
        elif spec["optimizer"] == "adam":
            made = torch.optim.Adam(parameters, lr=lr, betas=betas, eps=spec["eps"], weight_decay=decay)
        else:
            made = torch.optim.AdamW(parameters, lr=lr, betas=betas, eps=spec["eps"], weight_decay=decay)
        self.optimizers.append((made, multiple))
        for name, parameter in named:
            self.names[name] = (parameter, made)

    def parameters(self):
        return [p for p, _ in self.names.values()]

    def set_lr(self, lr):
        for optimizer, multiple in self.optimizers:
            optimizer.param_groups[0]["lr"] = lr * multiple

    def step(self):
        for optimizer, _ in self.optimizers:
            optimizer.step()

    def record(self, record, place):
        for name, (parameter, optimizer) in self.names.items():
            state = optimizer.state.get(parameter, {})
            adam = ["exp_avg", "exp_avg_sq"]
            kinds = {torch.optim.Adam: adam, torch.optim.AdamW: adam, torch.optim.Muon: ["momentum_buffer"],
                     torch.optim.SGD: ["momentum_buffer"] if self.spec["momentum"] else []}[type(optimizer)]
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


# ---- The loops.


class Program:
    def __init__(self, spec, tensors, permuted):
        self.spec, self.permuted = spec, permuted
        part = lambda prefix: {n[len(prefix):]: t for n, t in tensors.items() if n.startswith(prefix)}
        self.train, self.evaluation, self.order = part("train/"), part("evaluation/"), tensors["order"]
        self.net = make_net(spec, part("first/"))
        self.optimizers = Optimizers(spec, self.net, 0, 2 if spec["two_steps"] else 1)
        self.second = Optimizers(spec, self.net, 1, 2) if spec["two_steps"] else None
        self.loss, self.second_loss = Loss(spec), Loss(spec, -0.5)
        self.had_gradients = set()
        self.epoch, self.rows, self.kept, self.record, self.skipped = 0, 0, [], {}, 0
        size = self.order.shape[1]
        self.epoch_rows = size - size % spec["batch_size"] if spec["drop_last"] else size

    # The data.

    def next_batch(self):
        if self.rows >= self.epoch_rows:
            self.epoch, self.rows = self.epoch + 1, 0
        end = min(self.rows + self.spec["batch_size"], self.epoch_rows)
        indices = self.order[self.epoch, self.rows:end]
        self.rows = end
        self.indices = indices
        batch = {name: column[indices] for name, column in self.train.items()}
        if self.spec["keeps"]:
            self.kept.append(batch["y"])
        if self.permuted:
            mix = torch.arange(len(indices)).roll(1).flip(0)
            batch = {name: column[mix] for name, column in batch.items()}
        return batch

    def at_epoch_end(self):
        return self.rows >= self.epoch_rows

    # One step.

    def change_model(self, step):
        for i, (module, layer) in enumerate(zip(self.net.modules_of, self.spec["layers"])):
            if layer["change_at"] != step or module is None or layer["shares"]:
                continue
            late = []
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(not parameter.requires_grad)
                if parameter.requires_grad and f"l{i}.{name}" not in self.optimizers.names:
                    late.append((f"l{i}.{name}", parameter))
            self.optimizers.add(late, 1, None)

    def averaged(self, names):
        if self.spec["ema"] and not names.keys() <= self.averages.keys():
            for name, (parameter, _) in names.items():
                self.averages.setdefault(name, parameter.detach().clone())

    def run_step(self, place, batches, optimizers, loss_function, factor):
        """Gradients, clipping and update of one step; `factor` of the rate, or None for a step without schedule."""
        spec, record = self.spec, self.record
        if spec["stray_backward"] and optimizers is self.optimizers:
            self.net(batches[0]["x"], batches[0]["m"])  # its gradients do not count, BatchNorm does
        before = {name: b.clone() for name, b in self.net.named_buffers()}
        parameters = [p for p in optimizers.parameters() if p.requires_grad]
        gradients, total, loss_sum, metric_sum, metric_weight = {}, 0.0, 0.0, 0.0, 0.0
        for batch in batches:
            loss, weight, metric = loss_function(self.net, batch)
            if weight == 0:
                continue
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True)):
                if gradient is not None:
                    known = gradients.get(parameter, 0.0)
                    gradients[parameter] = known + gradient * weight
            total += weight
            loss_sum += loss.item() * weight
            if metric is not None:
                metric_sum += metric.item() * weight
                metric_weight += weight
        record[place + "loss"] = loss_sum / total if total > 0 else 0.0
        if metric_weight > 0:
            record[place + "metric/metric"] = metric_sum / metric_weight
        record[place + "weight"] = total
        for parameter in self.net.parameters():
            parameter.grad = None
        if total == 0:
            if spec["clip"]:
                record[place + "grad_norm"] = 0.0
            return False
        if spec["keep_grads"]:  # as zero_grad(set_to_none=False): zeros where an earlier step left a gradient
            for parameter in parameters:
                if parameter in self.had_gradients:
                    gradients.setdefault(parameter, torch.zeros_like(parameter))
            self.had_gradients.update(gradients)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient / total
        if spec["clip"]:
            record[place + "grad_norm"] = nn.utils.clip_grad_norm_(optimizers.parameters(), spec["clip"])
        finite = all(torch.isfinite(p.grad).all() for p in optimizers.parameters() if p.grad is not None)
        if spec["skip_nonfinite"]:
            self.skipped = 0 if finite else self.skipped + 1
            record[place + "skipped"] = float(self.skipped)
            if not finite:
                with torch.no_grad():
                    for name, buffer in self.net.named_buffers():
                        buffer.copy_(before[name])
                return False
        optimizers.step()
        if self.averages and optimizers is self.optimizers:
            with torch.no_grad():
                for name, average in self.averages.items():
                    average.lerp_(optimizers.names[name][0], 1 - spec["ema"])
        return True

    def record_state(self, place, optimizers):
        for name, tensor in list(self.net.named_parameters()):
            self.record[f"{place}param/{name}"] = tensor.detach().clone()
        for name, tensor in self.net.named_buffers():
            self.record[f"{place}buffer/{name}"] = tensor.clone()
        optimizers.record(self.record, place)

    def evaluate(self):
        """Means over the evaluation's rows, by weight."""
        modes = {module: module.training for module in self.net.modules()}
        self.net.eval()
        self.swap_averages()
        sums, weights = {}, {}
        rows = len(self.evaluation["y"])
        with torch.no_grad():
            for begin in range(0, rows, self.spec["batch_size"]):
                batch = {n: c[begin:begin + self.spec["batch_size"]] for n, c in self.evaluation.items()}
                loss, weight, metric = self.loss(self.net, batch, trains=False)
                for name, value in ("loss", loss), ("metric", metric):
                    if value is not None and weight > 0:
                        sums[name] = sums.get(name, 0.0) + value.item() * weight
                        weights[name] = weights.get(name, 0.0) + weight
        self.swap_averages()
        for module, mode in modes.items():
            module.training = mode
        return {name: sums[name] / weights[name] for name in sums}

    def swap_averages(self):
        with torch.no_grad():
            for name, average in self.averages.items():
                parameter = self.optimizers.names[name][0]
                kept = parameter.clone()
                parameter.copy_(average)
                average.copy_(kept)

    def begin_fit(self):
        self.averages = {}
        if self.spec["ema"]:
            self.averages = {n: p.detach().clone() for n, (p, _) in self.optimizers.names.items()}
        self.schedule, self.applied = make_schedule(self.spec), 0

    # TrainStep.

    def run_steps(self):
        spec, step = self.spec, 0
        for fit in range(spec["fits"]):
            self.begin_fit()
            self.skipped = 0
            for _ in range(spec["steps"]):
                step += 1
                self.change_model(step)
                place = f"step{step}/"
                lr = spec["lr"] * self.schedule(self.applied)
                self.optimizers.set_lr(lr)
                self.put_rates(place + "lr/")
                batches = []
                while len(batches) < spec["accumulate"] and not (batches and self.at_epoch_end()):
                    batches.append(self.next_batch())
                self.averaged(self.optimizers.names)
                self.applied += self.run_step(place, batches, self.optimizers, self.loss, None)
                if self.second:
                    self.skipped, kept = 0, self.skipped
                    self.run_step(place + "second/", batches[-1:], self.second, self.second_loss, None)
                    self.record_state(place + "second/", self.second)
                    for name, (_, optimizer) in self.second.names.items():
                        self.record[f"{place}second/next_lr/{name}"] = optimizer.param_groups[0]["lr"]
                    self.skipped = kept
                self.record[place + "epoch"], self.record[place + "rows"] = float(self.epoch), float(
                    -1 if self.at_epoch_end() else self.rows)
                self.optimizers.set_lr(spec["lr"] * self.schedule(self.applied))
                self.record_end(place)
                for name, average in self.averages.items():
                    self.record[f"{place}average/{name}"] = average.clone()
                if spec["evaluate_every"] and step % spec["evaluate_every"] == 0:
                    for name, value in self.evaluate().items():
                        self.record[f"{place}evaluation/{name}"] = value
            if fit + 1 < spec["fits"]:
                self.swap_averages()

    # Trainer.

    def epoch_fraction(self):
        size = self.spec["batch_size"]
        batches = (self.epoch_rows + size - 1) // size
        return self.epoch + (self.rows + size - 1) // size / batches

    def run_trainer(self):
        spec, self.step, calls = self.spec, 0, [0]
        for fit in range(spec["fits"]):
            self.begin_fit()
            self.fit_once(f"fit{fit + 1}/", calls)
        self.record_end("end/")

    def note_call(self, batch, calls):
        place = f"call{calls[0]}/"
        calls[0] += 1
        self.record[place + "rows"] = self.indices
        for name, parameter in self.net.named_parameters():
            self.record[f"{place}param/{name}"] = parameter.detach().clone()

    def fit_once(self, place, calls):
        spec = self.spec
        first_step, base, self.loss = self.step, spec["lr"], Loss(spec)
        if self.rows > 0 and self.at_epoch_end():
            self.epoch, self.rows = self.epoch + 1, 0
        first_epoch = self.epoch
        plateau = None
        if spec["plateau"]:
            dummy = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base)
            plateau = lr_scheduler.ReduceLROnPlateau(dummy, factor=0.5, patience=spec["plateau"] - 1)
        best, best_step, bad, evaluated, metrics, reason = None, 0, 0, -1, {}, None
        best_weights = None

        def evaluate():
            nonlocal best, best_step, bad, evaluated, metrics, base, reason, best_weights
            metrics = self.evaluate()
            evaluated = self.step
            value = metrics["loss"]
            improved = not math.isnan(value) and (best is None or math.isnan(best["loss"]) or value < best["loss"])
            if spec["best"] and improved:
                self.swap_averages()
                best_weights = {n: t.clone() for n, t in self.net.state_dict().items()}
                self.swap_averages()
            if improved or best is None:
                best, best_step = metrics, self.step
            bad = 0 if improved else bad + 1
            if plateau:
                plateau.step(value)
                base = plateau.optimizer.param_groups[0]["lr"]
            if spec["early_stopping"] and bad >= spec["early_stopping"]:
                reason = reason or "early"
            for name, metric in metrics.items():
                self.record[f"val{self.step}/{name}"] = metric
            self.record[f"val{self.step}/epoch"] = self.epoch_fraction()

        while reason is None:
            batches = []
            self.optimizers.set_lr(base * self.schedule(self.applied))
            lr = self.optimizers.optimizers[0][0].param_groups[0]["lr"]
            log = f"train{self.step + 1}/"
            while len(batches) < spec["accumulate"] and not (batches and self.at_epoch_end()):
                batches.append(self.next_batch())
                self.note_call(batches[-1], calls)
            self.applied += self.run_step(log, batches, self.optimizers, self.loss, None)
            self.record.pop(log + "weight")
            self.record.pop(log + "skipped", None)
            if log + "metric/metric" in self.record:
                self.record[log + "metric"] = self.record.pop(log + "metric/metric")
            self.record[log + "lr"] = lr
            self.record[log + "epoch"] = self.epoch_fraction()
            self.last_loss = self.record[log + "loss"]
            self.step += 1
            if spec["steps"] and self.step - first_step >= spec["steps"]:
                reason = "steps"
            if self.evaluation and spec["evaluate_every"] and self.step % spec["evaluate_every"] == 0:
                evaluate()
            if self.at_epoch_end() and reason is None:
                self.epoch, self.rows = self.epoch + 1, 0
                if spec["epochs"] and self.epoch - first_epoch >= spec["epochs"]:
                    reason = "epochs"
        if self.evaluation and evaluated != self.step:
            evaluate()
        self.optimizers.set_lr(base * self.schedule(self.applied))
        self.swap_averages()
        record = self.record
        record[place + "steps"] = float(self.step)
        record[place + "epochs"] = self.epoch_fraction()
        record[place + "loss"] = self.last_loss
        record[place + "reason"] = {"epochs": 0.0, "steps": 1.0, "early": 3.0}[reason]
        record[place + "best_step"] = float(best_step)
        for name, metric in metrics.items():
            record[f"{place}evaluation/{name}"] = metric
        for name, metric in (best or {}).items():
            record[f"{place}best/{name}"] = metric
        self.record_end(place)
        if best_weights:
            self.net.load_state_dict(best_weights)

    def record_end(self, place):
        self.record_state(place, self.optimizers)
        self.put_rates(place + "next_lr/")

    def put_rates(self, place):
        for name, (_, optimizer) in self.optimizers.names.items():
            self.record[place + name] = optimizer.param_groups[0]["lr"]

    def run(self):
        self.run_steps() if self.spec["loop"] == "step" else self.run_trainer()
        for i, labels in enumerate(self.kept):
            self.record[f"kept/{i}"] = labels
        return self.record


# ---- Messages.


def read_exactly(size):
    data = sys.stdin.buffer.read(size)
    if len(data) < size:
        sys.exit(0)
    return data


def read_message():
    header = json.loads(read_exactly(struct.unpack("<Q", read_exactly(8))[0]))
    tensors = {}
    for name, dtype, shape in header["tensors"]:
        array = numpy.dtype(dtype)
        data = bytearray(read_exactly(int(numpy.prod(shape, dtype=numpy.int64)) * array.itemsize))
        values = numpy.frombuffer(data, dtype=array) if data else numpy.zeros(0, dtype=array)
        tensors[name] = torch.from_numpy(values).view(shape)
    return header, tensors


def write_message(out, record):
    arrays = []
    for name, value in record.items():
        tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)
        arrays.append((name, numpy.ascontiguousarray(tensor.numpy()), list(tensor.shape)))
    header = json.dumps([[name, str(array.dtype), shape] for name, array, shape in arrays]).encode()
    out.write(struct.pack("<Q", len(header)) + header)
    for _, array, _ in arrays:
        out.write(array.tobytes())
    out.flush()


def main():
    out = sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        header, tensors = read_message()
        try:
            record = Program(header["spec"], tensors, header["permuted"]).run()
        except Exception as error:  # the library may refuse the program too
            record = {f"error/{type(error).__name__}: {error}": 1.0}
        write_message(out, record)


if __name__ == "__main__":
    main()
