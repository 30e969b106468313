"""The job of ../online.cpp in Lightning, whose Trainer owns the loop: the simulation becomes a data set, and the drawing a
callback. python online.py [folder]"""
import math
import sys
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Pendulums(IterableDataset):
    def __init__(self):
        self.angle, self.speed, self.ticks = torch.rand(64) * 4 - 2, torch.zeros(64), 0

    def state(self):
        return torch.stack([self.angle.sin(), self.angle.cos(), self.speed], 1)

    def tick(self):
        for _ in range(5):
            self.speed = self.speed - 0.01 * (9.81 * self.angle.sin() + 0.2 * self.speed)
            self.angle = self.angle + 0.01 * self.speed
        self.ticks += 1
        if self.ticks % 100 == 50:
            self.speed = self.speed + torch.randn(64)

    def __iter__(self):
        while True:
            now = self.state()
            self.tick()
            yield now, self.state()


class Net(L.LightningModule):
    def __init__(self, world):
        super().__init__()
        self.world, self.error = world, math.inf
        self.layers = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 3))

    def training_step(self, batch, index):
        now, then = batch
        return F.mse_loss(now + self.layers(now), then)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["world"] = (self.world.angle, self.world.speed, self.world.ticks, torch.get_rng_state())

    def on_load_checkpoint(self, checkpoint):
        self.world.angle, self.world.speed, self.world.ticks, random = checkpoint["world"]
        torch.set_rng_state(random)


class Draw(Callback):
    def on_train_batch_end(self, trainer, net, outputs, batch, index):
        if trainer.global_step % 60 == 0:
            net.error = outputs["loss"].item()
            bar = max(1, int(60 + 10 * math.log10(net.error)))
            print(f"frame {trainer.global_step:3}  error {net.error:.1e} {'#' * bar}")


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    L.seed_everything(1)
    callbacks = [Draw()]
    if folder:
        callbacks.append(ModelCheckpoint(folder / "checkpoints", every_n_train_steps=50, save_last=True))
    trainer = L.Trainer(max_steps=600, log_every_n_steps=10, default_root_dir=folder, callbacks=callbacks)
    world = Pendulums()
    net = Net(world)
    last = folder / "checkpoints/last.ckpt" if folder else None
    trainer.fit(net, DataLoader(world, batch_size=None), ckpt_path=last if last and last.exists() else None)
    sys.exit(net.error >= 1e-3)


if __name__ == "__main__":
    main()
