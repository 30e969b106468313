"""The Python part of a test of tests/train/checkpoint/optimizer_file_test.cpp.

python sparse_adam_file.py FOLDER loads FOLDER/table.pt and FOLDER/optimizer.pt, written by us, into
torch.optim.SparseAdam, makes a step, and writes python.pt: the table and the optimizer after it.
"""
import sys

import torch

folder = sys.argv[1]
table = torch.nn.Embedding(6, 4, sparse=True)
table.load_state_dict(torch.load(f"{folder}/table.pt", weights_only=True))
optimizer = torch.optim.SparseAdam(table.named_parameters(), lr=0.1)
optimizer.load_state_dict(torch.load(f"{folder}/optimizer.pt", weights_only=True))
table(torch.tensor([1, 4, 1])).square().sum().backward()
optimizer.step()
torch.save({"model": table.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/python.pt")
