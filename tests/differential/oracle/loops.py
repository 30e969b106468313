"""The loops of a program: one of TrainStep (run_steps.cpp), and Trainer::fit (run_trainer.cpp)."""
import math

import torch
from torch.optim import lr_scheduler

from model import Loss
from optimizers import make_schedule
from program import Program


class StepLoop(Program):
    records_empty_steps = False

    def run_loop(self):
        spec, step = self.spec, 0
        for fit in range(spec["fits"]):
            self.begin_fit()
            for player in self.players if spec["players"] else []:  # each step has its copies of their losses
                player.loss = Loss(player.spec)
            for _ in range(spec["steps"]):
                step += 1
                self.change_model(step)
                place = f"step{step}/"
                for player in self.players:
                    player.set_lr()
                self.put_rates(place + "lr/")
                batches = []
                while len(batches) < spec["accumulate"] and not (batches and self.at_epoch_end()):
                    batches.append(self.next_batch())
                self.run_step(place, batches, step)
                if self.second:
                    self.run_second(place + "second/", batches[-1:])
                self.record[place + "epoch"], self.record[place + "rows"] = float(self.epoch), float(
                    -1 if self.at_epoch_end() else self.rows)
                for player in self.players:
                    player.set_lr()
                self.record_end(place)
                for name, average in self.averages.items():
                    self.record[f"{place}average/{name}"] = average.clone()
                if spec["evaluate_every"] and step % spec["evaluate_every"] == 0:
                    for name, value in self.evaluate().items():
                        self.record[f"{place}evaluation/{name}"] = value
            if fit + 1 < spec["fits"]:
                self.swap_averages()

    def run_second(self, place, batches):
        own = {}
        self.second.begin_fit()
        self.run_player(own, batches, self.second, [None], self.copy_buffers())
        self.record.update({place + name: value for name, value in own.items()})
        self.record_state(place, [self.second])
        for name, (_, optimizer) in self.second.optimizers.names.items():
            self.record[f"{place}next_lr/{name}"] = optimizer.param_groups[0]["lr"]


class TrainerLoop(Program):
    records_empty_steps = True

    def epoch_fraction(self):
        if not self.has_epochs:
            return 0.0
        size = self.spec["batch_size"]
        batches = (self.epoch_rows + size - 1) // size
        return self.epoch + (self.rows + size - 1) // size / batches

    def run_loop(self):
        spec, self.step, self.calls = self.spec, 0, 0
        for fit in range(spec["fits"]):
            self.begin_fit()
            self.fit_once(f"fit{fit + 1}/")
        self.record_end("end/")

    def note_call(self, batch):
        place = f"call{self.calls}/"
        self.calls += 1
        self.record[place + "rows"] = batch["indices"]
        for name, parameter in self.net.named_parameters():
            self.record[f"{place}param/{name}"] = parameter.detach().clone()

    def make_changes(self):
        """What the host changes between steps."""
        for change in self.spec["changes"] if self.spec["loop"] == "session" else []:
            if change["after"] != self.step:
                continue
            if change["what"] != "lr":
                self.net.modules_of[change["layer"]].requires_grad_(change["what"] == "thaw")
                continue
            player = self.players[change["player"]]
            if change["group"]:
                player.optimizers.set_multiple(change["group"], change["lr"] / player.base)
            else:
                player.base = change["lr"]
                if self.plateau:
                    self.plateau.optimizer.param_groups[0]["lr"] = player.base

    def put_log(self, log):
        """The values that Trainer does not log, or under another name."""
        for name in "weight", "skipped":
            self.record.pop(log + name, None)
        for name in [n for n in self.record if n.startswith(log + "metric/")]:
            self.record[log + name[len(log) + len("metric/"):]] = self.record.pop(name)
        for name, value in self.rollout.metrics.items() if self.rollout else []:
            self.record[log + name] = value
        if self.spec["events"]:
            self.record[log + "step_loss"] = self.record[log + "loss"]

    def fit_once(self, place):
        spec, first = self.spec, self.players[0]
        first_step = self.step
        for player in self.players:
            player.base, player.loss = player.spec["lr"], Loss(player.spec)
        if self.rows > 0 and self.at_epoch_end():
            self.epoch, self.rows = self.epoch + 1, 0
        first_epoch = self.epoch
        self.plateau = plateau = None
        if spec["plateau"]:
            dummy = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=first.base)
            self.plateau = plateau = lr_scheduler.ReduceLROnPlateau(dummy, factor=0.5, patience=spec["plateau"] - 1)
        best, best_step, bad, evaluated, metrics, reason = None, 0, 0, -1, {}, None
        best_weights = None

        def evaluate():
            nonlocal best, best_step, bad, evaluated, metrics, reason, best_weights
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
                first.base = plateau.optimizer.param_groups[0]["lr"]
            if spec["early_stopping"] and bad >= spec["early_stopping"]:
                reason = reason or "early"
            for name, metric in metrics.items():
                self.record[f"val{self.step}/{name}"] = metric
            self.record[f"val{self.step}/epoch"] = self.epoch_fraction()

        while reason is None:
            self.make_changes()
            batches, log = [], f"train{self.step + 1}/"
            for player in self.players:
                player.set_lr()
                for optimizer, _, group in player.optimizers.optimizers if player.name else []:
                    self.record[f"{log}{player.name}.lr.{group}"] = optimizer.param_groups[0]["lr"]
            lr = first.optimizers.optimizers[0][0].param_groups[0]["lr"]
            while len(batches) < spec["accumulate"] and not (batches and self.at_epoch_end()):
                batches.append(self.next_batch())
            self.run_step(log, batches, self.step + 1)
            self.put_log(log)
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
                    if len(batches) == spec["accumulate"]:  # else the session has looked for one more
                        self.make_changes()
        if self.evaluation and evaluated != self.step:
            evaluate()
        for player in self.players:
            player.set_lr()
        self.swap_averages()
        record = self.record
        record[place + "steps"] = float(self.step)
        record[place + "epochs"] = self.epoch_fraction()
        record[place + "loss"] = self.last_loss
        record[place + "reason"] = {"epochs": 0.0, "steps": 1.0, "early": 3.0}[reason]
        if spec["dtype"] == "float64":
            record[place + "best_step"] = float(best_step)
        for name, metric in metrics.items():
            record[f"{place}evaluation/{name}"] = metric
        for name, metric in (best or {}).items():
            record[f"{place}best/{name}"] = metric
        self.record_end(place)
        if best_weights:
            self.net.load_state_dict(best_weights)

