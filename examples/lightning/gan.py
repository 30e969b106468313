"""The job of ../gan.cpp in Lightning: python gan.py [steps] [folder]"""
import sys
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.utils import save_image

SIDE, NOISE = 16, 16


def discs(count):
    row, column = torch.arange(SIDE).view(1, SIDE, 1), torch.arange(SIDE).view(1, 1, SIDE)
    radius = torch.rand(count, 1, 1) * 2 + 3
    y, x = torch.rand(count, 1, 1) * 5 + 5.5, torch.rand(count, 1, 1) * 5 + 5.5
    return (radius - ((row - y) ** 2 + (column - x) ** 2).sqrt()).clamp(-1, 1).unsqueeze(1)


def distance(pictures, data):
    return torch.cdist(pictures.flatten(1), data.flatten(1)).amin(1).mean().item()


def bce(logits, label):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(NOISE, 48, 4, bias=False), nn.BatchNorm2d(48), nn.ReLU(),
            nn.ConvTranspose2d(48, 24, 4, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.ConvTranspose2d(24, 1, 4, 2, 1), nn.Tanh())
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 24, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(24, 48, 4, 2, 1, bias=False), nn.BatchNorm2d(48),
            nn.LeakyReLU(0.2), nn.Conv2d(48, 1, 4))

    def configure_optimizers(self):
        adam = dict(lr=1e-3, betas=(0.5, 0.999))
        return (torch.optim.Adam(self.discriminator.parameters(), **adam),
                torch.optim.Adam(self.generator.parameters(), **adam))

    def training_step(self, batch, index):
        (real,) = batch
        d, g = self.optimizers()
        fake = self.generator(torch.randn(len(real), NOISE, 1, 1, device=self.device))
        d_loss = bce(self.discriminator(real), 0.9) + bce(self.discriminator(fake.detach()), 0)
        d.zero_grad()
        self.manual_backward(d_loss)
        d.step()
        g_loss = bce(self.discriminator(fake), 1)
        g.zero_grad()
        self.manual_backward(g_loss)
        g.step()
        self.log_dict({"d.loss": d_loss, "g.loss": g_loss}, prog_bar=True)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    L.seed_everything(0)
    pictures = discs(2048)
    loader = DataLoader(TensorDataset(pictures), batch_size=64, shuffle=True, drop_last=True)
    # Lightning counts a step for each of the two optimizers.
    saves = [ModelCheckpoint(folder / "checkpoints", every_n_train_steps=100, save_last=True)] if folder else None
    trainer = L.Trainer(max_steps=2 * steps, log_every_n_steps=10, default_root_dir=folder, callbacks=saves)
    gan = Gan()
    last = folder / "checkpoints/last.ckpt" if folder else None
    trainer.fit(gan, loader, ckpt_path=last if last and last.exists() else None)
    gan.eval()
    with torch.no_grad():
        drawn = gan.generator(torch.randn(256, NOISE, 1, 1, device=gan.device)).cpu()
    to_data, of_data = distance(drawn, pictures), distance(discs(256), pictures)
    print(f"distance to the nearest disc: {to_data:.2f}, of new discs {of_data:.2f}")
    if folder:
        save_image((drawn[:64] + 1) / 2, folder / "drawn.png", padding=0)
    sys.exit(steps >= 300 and to_data >= 2.5 * of_data)


if __name__ == "__main__":
    main()
