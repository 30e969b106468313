"""The job of ../fine_tune.cpp in Lightning: python fine_tune.py [folder]"""
import sys
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import BaseFinetuning, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassF1Score


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 3)
        self.f1 = MulticlassF1Score(3)

    def forward(self, x):
        return self.head(self.encoder(x))

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        logits = self(x)
        self.f1(logits, y)
        self.log("loss", F.cross_entropy(logits, y), prog_bar=True, sync_dist=True)
        self.log("f1", self.f1, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(filter(lambda parameter: parameter.requires_grad, self.parameters()), lr=1e-2)


class Thaw(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.encoder)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.encoder, optimizer, initial_denom_lr=10)


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    L.seed_everything(5)
    x = torch.randn(2500, 20)
    y = (x @ torch.randn(20, 3)).square().argmax(1)
    loader = DataLoader(TensorDataset(x[:2000], y[:2000]), batch_size=25, shuffle=True)
    validation = DataLoader(TensorDataset(x[2000:], y[2000:]), batch_size=25)
    best = ModelCheckpoint(folder and folder / "best", monitor="f1", mode="max")
    callbacks = [Thaw(), best]
    if folder:
        callbacks.append(ModelCheckpoint(folder / "checkpoints", every_n_train_steps=20, save_last=True))
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=12, default_root_dir=folder,
                        callbacks=callbacks)
    last = folder / "checkpoints/last.ckpt" if folder else None
    trainer.fit(Net(), loader, validation, ckpt_path=last if last and last.exists() else None)
    print(f"best F1 {best.best_model_score:.3f}")
    sys.exit(best.best_model_score.item() <= 0.75)


if __name__ == "__main__":
    main()
