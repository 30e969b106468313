"""The Python part of a test of tests/train/checkpoint/optimizer_file_test.cpp.

python rmsprop_adagrad_file.py FOLDER KIND loads FOLDER/model.pt and FOLDER/optimizer.pt, written by us, into RMSprop
("plain", "centered") or Adagrad of torch.optim, makes a step, and writes python.pt: the model and the optimizer after it.
"""
import sys

import torch

folder, kind = sys.argv[1:]
model = torch.nn.ModuleDict({"fc": torch.nn.Linear(3, 2), "head": torch.nn.Linear(2, 4)})
model.load_state_dict(torch.load(f"{folder}/model.pt", weights_only=True))
make = torch.optim.Adagrad if kind == "adagrad" else torch.optim.RMSprop
optimizer = make(model.named_parameters(), lr=1.0)  # the file has the options
optimizer.load_state_dict(torch.load(f"{folder}/optimizer.pt", weights_only=True))
for parameter in model.parameters():
    parameter.grad = torch.full_like(parameter, 0.25 * 4)
optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/python.pt")
