"""Parameters and state after each of 50 steps of torch.optim.SparseAdam, for tests/optim/sparse_adam_reference_test.cpp.

python sparse_adam.py OUT_DIR writes in native byte order:
  ids            (50, 24) int64 rows of each step; rows repeat, and two steps have one row only, 24 times
and for float32 and float64 (a name ends in its dtype):
  init           the tables, concatenated
  grads          (50, 24, width) gradients of these rows
  params, exp_avg, exp_avg_sq    (50, tables) after each step
The second table has no gradient in every third step.
"""
import sys

import torch

ROWS, WIDTH, STEPS, LOOKUPS = 40, 19, 50, 24


def main(out):
    torch.manual_seed(3)
    ids = torch.randint(0, ROWS, (STEPS, LOOKUPS))
    ids[7], ids[8] = 5, 6
    ids.numpy().tofile(f"{out}/ids")
    for dtype in (torch.float32, torch.float64):

        def save(name, tensor):
            tensor.contiguous().numpy().tofile(f"{out}/{name}.{str(dtype)[6:]}")

        init = torch.randn(2, ROWS, WIDTH, dtype=dtype)
        grads = torch.randn(STEPS, LOOKUPS, WIDTH, dtype=dtype)
        tables = [t.clone().requires_grad_() for t in init]
        optimizer = torch.optim.SparseAdam(tables, lr=3e-2, betas=(0.8, 0.95), eps=1e-6)
        states = {"params": [], "exp_avg": [], "exp_avg_sq": []}
        for step in range(STEPS):
            for i, table in enumerate(tables):
                table.grad = torch.sparse_coo_tensor(ids[step].unsqueeze(0), grads[step], table.shape)
                if i == 1 and step % 3 == 1:
                    table.grad = None
            optimizer.step()
            states["params"].append(torch.stack([t.detach() for t in tables]).clone())
            for kind in ("exp_avg", "exp_avg_sq"):
                states[kind].append(torch.stack([optimizer.state[t][kind] for t in tables]).clone())
        save("init", init)
        save("grads", grads)
        for kind, rows in states.items():
            save(kind, torch.stack(rows))


main(sys.argv[1])
