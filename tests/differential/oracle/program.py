"""What both loops share: batches, one step, evaluation, and the record of everything that is compared."""
import torch
from torch import nn

from model import Loss, make_net
from optimizers import Optimizers, make_schedule
from rollout import Rollout


class Player:
    """An optimizer with its loss and its schedule: one of the players of a program, or all that it has."""

    def __init__(self, spec, net, name="", part=0, parts=1, number=0):
        self.spec, self.name, self.base = spec, name, spec["lr"]
        self.optimizers = Optimizers(spec, net, part, parts, number)
        self.loss = Loss(spec)
        self.every = spec.get("every", 1)

    def begin_fit(self):
        self.schedule, self.applied, self.skipped = make_schedule(self.spec), 0, 0

    def set_lr(self):
        self.optimizers.set_lr(self.base * self.schedule(self.applied))

    def place(self, place):
        """Names of its gradients."""
        return place + (f"{self.name}." if self.name else "") + "gradients"


class Program:
    """A subclass has run_loop()."""

    def __init__(self, spec, tensors, row_order):
        self.spec, self.row_order = spec, row_order
        part = lambda prefix: {n[len(prefix):]: t for n, t in tensors.items() if n.startswith(prefix)}
        self.train, self.evaluation, self.order = part("train/"), part("evaluation/"), tensors["order"]
        self.net = make_net(spec, part("first/"))
        self.players = [Player(spec, self.net, "p0" if spec["players"] else "", 0, 2 if spec["two_steps"] else 1)]
        for i, own in enumerate(spec["players"], 1):
            self.players.append(Player({**spec, **own}, self.net, f"p{i}", number=i))
        self.second = Player({**spec, "factor": -0.5}, self.net, "", 1, 2) if spec["two_steps"] else None
        self.shares = any(player.spec["shared"] for player in self.players)
        self.had_gradients = set()
        self.epoch, self.rows, self.kept, self.record = 0, 0, [], {}
        size = self.order.shape[1]
        self.epoch_rows = size - size % spec["batch_size"] if spec["drop_last"] else size
        self.has_epochs = spec["source"] != "replay"
        self.rollout = Rollout(spec["buffer"], self.train) if spec["source"] == "rollout" else None
        if self.epoch_rows == 0 or not spec["steps"] and not spec["epochs"]:
            raise ValueError("no batch, or no end")

    def names(self):
        """Optimizers of all players by parameters' names."""
        return {n: entry for player in self.players for n, entry in player.optimizers.names.items()}

    # The data.

    def next_batch(self):
        if self.rows >= self.epoch_rows:
            self.epoch, self.rows = self.epoch + 1, 0
        if self.rollout and self.rows == 0:
            self.collected = self.rollout.collect(self.net.head.weight)
        end = min(self.rows + self.spec["batch_size"], self.epoch_rows)
        indices = self.order[self.epoch, self.rows:end]
        self.rows = end
        if self.rollout:
            batch = self.rollout.batch(self.collected, indices)
            indices = indices + self.epoch * len(self.collected["y"])
        else:
            rows = len(self.train["y"])
            batch = {name: column[indices % rows] for name, column in self.train.items()}
        labels = batch["y"]
        if self.row_order:
            mix = torch.arange(len(indices)).roll(self.row_order).flip(0)
            batch = {name: column[mix] for name, column in batch.items()}
        return {**batch, "indices": indices, "labels": labels}

    def at_epoch_end(self):
        return self.has_epochs and self.rows >= self.epoch_rows

    # One step.

    def change_model(self, step):
        for i, (module, layer) in enumerate(zip(self.net.modules_of, self.spec["layers"])):
            if layer["change_at"] != step or module is None or layer["shares"]:
                continue
            optimizers, late = self.players[layer["player"]].optimizers, []
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(not parameter.requires_grad)
                if parameter.requires_grad and f"l{i}.{name}" not in optimizers.names:
                    late.append((f"l{i}.{name}", parameter))
            optimizers.add(late, 1, None)

    def follow_groups(self, player):
        """Averages of groups that were added, from their weights now."""
        for name, (parameter, _) in player.optimizers.names.items():
            if player.spec["ema"]:
                self.averages.setdefault(name, parameter.detach().clone())

    def note_call(self, batch):
        """Called before each call of a loss function in training."""

    def run_step(self, place, batches, step):
        """A step of all players that take part in it."""
        if self.spec["stray_backward"]:
            self.net(batches[0]["x"], batches[0]["m"])  # its gradients do not count, BatchNorm does
        before = self.copy_buffers()
        for player in self.players:
            player.optimizers.follow_step(step - 1)
        features = [self.features(batch) for batch in batches] if self.shares else [None] * len(batches)
        skipped = []
        for i, player in enumerate(self.players):
            if step % player.every:
                continue
            self.follow_groups(player)
            own = {}
            # The shared features belong to the step of the first player.
            player.applied += self.run_player(own, batches, player, features, before if i == 0 else self.copy_buffers())
            if "gradients" in own:
                self.record[player.place(place)] = own.pop("gradients")
            if "skipped" in own:
                skipped.append(own.pop("skipped"))
            if i == 0:
                self.record.update({place + name: value for name, value in own.items()
                                    if not (player.name and name == "metric/metric")})
            if player.name and (own["weight"] or self.records_empty_steps):
                for name in "loss", "grad_norm", "metric/metric":
                    if name in own:
                        self.record[f"{place}metric/{player.name}.{name.split('/')[-1]}"] = own[name]
        if skipped:
            self.record[place + "skipped"] = max(skipped)

    def features(self, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.spec["dtype"] == "bfloat16"):
            features = self.net.features(batch["x"], batch["m"])
        return features.detach() if self.spec["accumulate"] > 1 else features

    def copy_buffers(self):
        return {name: buffer.clone() for name, buffer in self.net.named_buffers()}

    def run_player(self, record, batches, player, features, before):
        """Gradients, clipping and update of one player. Returns whether it updated. A skip restores `before`."""
        spec, optimizers = player.spec, player.optimizers
        parameters = [p for p in optimizers.parameters() if p.requires_grad]
        gradients, total, loss_sum, metric_sum, metric_weight = {}, 0.0, 0.0, 0.0, 0.0
        for batch, shared in zip(batches, features):
            self.note_call(batch)
            if spec["keeps"] and player is not self.second:
                self.kept.append(batch["labels"])
            loss, weight, metric = player.loss(self.net, batch, features=shared)
            if weight == 0:
                continue
            own = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=self.shares)
            for parameter, gradient in zip(parameters, own):
                if gradient is not None:
                    known = gradients.get(parameter)
                    gradients[parameter] = gradient * weight if known is None else known + gradient * weight
            total += weight
            loss_sum += loss.item() * weight
            if metric is not None:
                metric_sum += metric.item() * weight
                metric_weight += weight
        record["loss"] = loss_sum / total if total > 0 else 0.0
        if metric_weight > 0:
            record["metric/metric"] = metric_sum / metric_weight
        record["weight"] = total
        for parameter in self.net.parameters():
            parameter.grad = None
        if total == 0:
            if spec["clip"]:
                record["grad_norm"] = 0.0
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
        norms = [holder.grad.double().norm() for holder in holders]
        if spec["events"]:
            record["gradients"] = torch.stack(norms).norm().item() if norms else 0.0
        if spec["clip"]:
            record["grad_norm"] = nn.utils.clip_grad_norm_(holders, spec["clip"])
        finite = all(torch.isfinite(holder.grad).all() for holder in holders)
        if spec["skip_nonfinite"]:
            player.skipped = 0 if finite else player.skipped + 1
            record["skipped"] = float(player.skipped)
            if not finite:
                with torch.no_grad():
                    for name, buffer in self.net.named_buffers():
                        buffer.data.copy_(before[name])
                return False
        optimizers.step()
        with torch.no_grad():
            for name, (parameter, _) in optimizers.names.items():
                if name in self.averages:
                    self.averages[name].lerp_(parameter, 1 - spec["ema"])
        return True

    def record_state(self, place, players):
        for name, tensor in list(self.net.named_parameters()):
            self.record[f"{place}param/{name}"] = tensor.detach().clone()
        for name, tensor in self.net.named_buffers():
            self.record[f"{place}buffer/{name}"] = tensor.clone()
        for player in players:
            player.optimizers.record(self.record, place)

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
                loss, weight, metric = self.players[0].loss(self.net, batch, trains=False)
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
            names = self.names()
            for name, average in self.averages.items():
                parameter = names[name][0]
                kept = parameter.clone()
                parameter.copy_(average)
                average.copy_(kept)

    def begin_fit(self):
        self.averages = {}
        for player in self.players:
            self.follow_groups(player)
            player.begin_fit()

    def record_end(self, place):
        self.record_state(place, self.players)
        self.put_rates(place + "next_lr/")

    def put_rates(self, place):
        for name, (_, optimizer) in self.names().items():
            self.record[place + name] = optimizer.param_groups[0]["lr"]

    def run(self):
        self.run_loop()
        for i, labels in enumerate(self.kept):
            self.record[f"kept/{i}"] = labels
        return self.record
