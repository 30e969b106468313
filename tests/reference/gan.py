"""The training of examples/gan.cpp by PyTorch, as the reference of tests/examples/gan_reference_test.cpp.

python gan.py OUT.pt writes tensors by name:
  picture, noise                (50 batches of 16) data and noise, float32
  init.<name>                   parameters and buffers before the training, float32
  <case>.final.<name>           the same after 50 steps
  <case>.losses                 (50, 2) losses of the discriminator and the generator, float64
Cases: sgd64 and adam64 in float64, adam32 in float32, and adam32_plain, which is adam32 without oneDNN.
"""
import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn

STEPS, BATCH, SIDE, NOISE = 50, 16, 16, 16


def gan():
    model = nn.Module()
    model.generator = nn.Sequential(
        nn.ConvTranspose2d(NOISE, 48, 4, bias=False), nn.BatchNorm2d(48), nn.ReLU(),
        nn.ConvTranspose2d(48, 24, 4, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.ConvTranspose2d(24, 1, 4, 2, 1), nn.Tanh())
    model.discriminator = nn.Sequential(
        nn.Conv2d(1, 24, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(24, 48, 4, 2, 1, bias=False), nn.BatchNorm2d(48),
        nn.LeakyReLU(0.2), nn.Conv2d(48, 1, 4))
    return model


def discs(count):
    row, column = torch.arange(SIDE).view(1, SIDE, 1), torch.arange(SIDE).view(1, 1, SIDE)
    radius = torch.rand(count, 1, 1) * 2 + 3
    y, x = torch.rand(count, 1, 1) * 5 + 5.5, torch.rand(count, 1, 1) * 5 + 5.5
    return (radius - ((row - y) ** 2 + (column - x) ** 2).sqrt()).clamp(-1, 1).unsqueeze(1)


def bce(logits, label):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))


def train(model, pictures, noise, optimizer_of):
    d, g = optimizer_of(model.discriminator.parameters()), optimizer_of(model.generator.parameters())
    losses = []
    for real, z in zip(pictures.split(BATCH), noise.split(BATCH)):
        fake = model.generator(z)
        d_loss = bce(model.discriminator(real), 0.9) + bce(model.discriminator(fake.detach()), 0)
        d.zero_grad()
        d_loss.backward()
        d.step()
        g_loss = bce(model.discriminator(fake), 1)
        g.zero_grad()
        g_loss.backward()
        g.step()
        losses.append(torch.stack([d_loss.detach(), g_loss.detach()]).double())
    return torch.stack(losses)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=2e-4, betas=(0.5, 0.999))


def main(path):
    torch.set_num_threads(1)
    torch.manual_seed(6)
    model = gan()
    out = {"picture": discs(STEPS * BATCH), "noise": torch.randn(STEPS * BATCH, NOISE, 1, 1)}
    out |= {f"init.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    for case, dtype, optimizer, one_dnn in [("sgd64", torch.float64, sgd, True), ("adam64", torch.float64, adam, True),
                                            ("adam32", torch.float32, adam, True),
                                            ("adam32_plain", torch.float32, adam, False)]:
        with torch.backends.mkldnn.flags(enabled=one_dnn):
            trained = copy.deepcopy(model).to(dtype)
            losses = train(trained, out["picture"].to(dtype), out["noise"].to(dtype), optimizer)
        out[f"{case}.losses"] = losses
        out |= {f"{case}.final.{name}": tensor for name, tensor in trained.state_dict().items()}
    torch.save(out, path)


main(sys.argv[1])
