"""The Python part of tests/train/checkpoint/optimizer_file_test.cpp.

python torch_optimizer.py FOLDER loads FOLDER/model.pt and FOLDER/optimizer.pt, written by us, makes two more steps with
both ways to load an optimizer and prints whether they agree; writes python.pt, the weights and the optimizer after
that, with names, and numbers.pt, the same with numbers only.
"""
import copy
import sys

import torch
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

folder = sys.argv[1]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.head = torch.nn.Linear(2, 4)


def groups(model, named):
    """Weight decay for matrices, none for vectors."""
    both = [[(n, p) for n, p in model.named_parameters() if (p.dim() > 1) == matrix] for matrix in (True, False)]
    return [{"params": g if named else [p for _, p in g], "weight_decay": d} for g, d in zip(both, (0.1, 0.0))]


def step(model, optimizer, number):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25 * number)
    optimizer.step()


model, other = Model(), Model()
for each in (model, other):
    each.load_state_dict(torch.load(f"{folder}/model.pt", weights_only=True))
saved = torch.load(f"{folder}/optimizer.pt", weights_only=True)
optimizer = torch.optim.AdamW(groups(model, named=True), lr=1.0)
set_optimizer_state_dict(model, optimizer, copy.deepcopy(saved))
plain = torch.optim.AdamW(groups(other, named=False), lr=1.0)
plain.load_state_dict(saved)
for number in (4, 5):
    step(model, optimizer, number)
    step(other, plain, number)
print("alike" if all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters())) else "apart")
state = optimizer.state_dict()
torch.save({"model": model.state_dict(), "optimizer": state, "epoch": 1}, f"{folder}/python.pt")
torch.save(plain.state_dict(), f"{folder}/numbers.pt")
