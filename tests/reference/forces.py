"""Losses that differentiate, trained by PyTorch in float64, for tests/train/run/forces_reference_test.cpp.

python forces.py OUT.pt writes tensors by name, prefixed by "forces." and "pinn.":
  <field>            rows of the training set, in the order of the batches
  init.<parameter>   weights before the training
  final.<parameter>  weights after it
  losses             (steps) loss of each step
  validation         forces: mean square error of the energies and mean absolute error of the forces, over all rows
"""
import itertools
import sys

import torch
import torch.nn.functional as F

BATCH, STEPS = 16, 50


def mlp(inputs):
    return torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(),
                               torch.nn.Linear(16, 1)).double()


def energy_of(model, x):
    """Energy of clusters of 4 atoms (rows, 4, 3): the sum over their pairs of a function of the distance."""
    i, j = torch.triu_indices(4, 4, 1)
    distance = (x[:, i] - x[:, j]).norm(dim=2, keepdim=True)
    return model(distance).sum(dim=(1, 2))


def energy_and_forces(model, x):
    x = x.detach().clone().requires_grad_()
    energy = energy_of(model, x)
    return energy, -torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


def forces_loss(model, batch):
    energy, forces = energy_and_forces(model, batch["x"])
    return F.mse_loss(energy, batch["energy"]) + 10 * F.mse_loss(forces, batch["forces"])


def laplacian(model, x):
    x = x.detach().clone().requires_grad_()
    slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
    return sum(torch.autograd.grad(slope[:, k].sum(), x, create_graph=True)[0][:, k] for k in range(2))


def pinn_loss(model, batch):
    """-laplace u = f inside, u = 0 on the border."""
    residual = laplacian(model, batch["inside"]) + batch["f"]
    return residual.square().mean() + model(batch["border"]).square().mean()


def train(name, model, rows, loss_of, out):
    out |= {f"{name}.{field}": tensor for field, tensor in rows.items()}
    out |= {f"{name}.init.{key}": value.detach().clone() for key, value in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    count, losses = len(next(iter(rows.values()))) // BATCH, []
    for step in range(STEPS):
        first = step % count * BATCH
        loss = loss_of(model, {field: tensor[first:first + BATCH] for field, tensor in rows.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    out[f"{name}.losses"] = torch.stack(losses)
    out |= {f"{name}.final.{key}": value.detach() for key, value in model.named_parameters()}


def main(path):
    torch.set_num_threads(1)
    torch.manual_seed(4)
    out = {}
    corners = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))[[0, 3, 5, 6]].double()
    x = corners + 0.2 * torch.randn(64, 4, 3, dtype=torch.float64)
    energy, forces = energy_and_forces(lambda d: (1 - torch.exp(1.5 - d)).square() - 1, x)  # Morse's potential
    rows = {"x": x, "energy": energy.detach(), "forces": forces.detach()}
    model = mlp(1)
    train("forces", model, rows, forces_loss, out)
    energy, forces = energy_and_forces(model, rows["x"])
    out["forces.validation"] = torch.stack([F.mse_loss(energy, rows["energy"]),
                                            (forces - rows["forces"]).abs().mean()]).detach()

    inside = torch.rand(64, 2, dtype=torch.float64)
    border = torch.rand(64, 2, dtype=torch.float64)
    border[torch.arange(64), torch.arange(64) % 2] = (torch.arange(64) // 2 % 2).double()
    f = 2 * torch.pi ** 2 * torch.sin(torch.pi * inside).prod(dim=1)
    train("pinn", mlp(2), {"inside": inside, "f": f, "border": border}, pinn_loss, out)
    torch.save(out, path)


main(sys.argv[1])
