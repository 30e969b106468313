"""What both loops share: batches, one step, evaluation, and the record of everything that is compared."""
import torch
from torch import nn

from model import Loss, make_net
from optimizers import Optimizers, make_schedule


class Program:
    """A subclass has run_loop()."""

    def __init__(self, spec, tensors, row_order):
        self.spec, self.row_order = spec, row_order
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
        if self.row_order:
            mix = torch.arange(len(indices)).roll(self.row_order).flip(0)
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

    def run_step(self, place, batches, optimizers, loss_function):
        """Gradients, clipping and update of one step. Returns whether it updated."""
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
                    known = gradients.get(parameter)
                    gradients[parameter] = gradient * weight if known is None else known + gradient * weight
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
                    zeros = torch.zeros_like(parameter)
                    gradients.setdefault(parameter, zeros.to_sparse(1) if optimizers.is_table(parameter) else zeros)
            self.had_gradients.update(gradients)
        holders = []  # of the gradients' values
        for parameter, gradient in gradients.items():
            gradient = gradient / total
            parameter.grad = gradient.coalesce() if gradient.is_sparse else gradient
            values = parameter.grad._values() if gradient.is_sparse else parameter.grad
            holders.append(torch.empty_like(values))
            holders[-1].grad = values
        if spec["clip"]:
            record[place + "grad_norm"] = nn.utils.clip_grad_norm_(holders, spec["clip"])
        finite = all(torch.isfinite(holder.grad).all() for holder in holders)
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

    def record_end(self, place):
        self.record_state(place, self.optimizers)
        self.put_rates(place + "next_lr/")

    def put_rates(self, place):
        for name, (_, optimizer) in self.optimizers.names.items():
            self.record[place + name] = optimizer.param_groups[0]["lr"]

    def run(self):
        self.run_loop()
        for i, labels in enumerate(self.kept):
            self.record[f"kept/{i}"] = labels
        return self.record
