"""Exponential moving averages by torch.optim.swa_utils.AveragedModel, for tests/train/update/weight_average_test.cpp.

python averaged_model.py DIR DECAY NUMEL reads weights.bin, float32 in native byte order: the weights before the first
step, then after each step. It writes averages.bin: the averages after each step.
"""
import sys

import numpy
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Weights(torch.nn.Module):
    def __init__(self, numel):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(numel))


def main(folder, decay, numel):
    rows = torch.from_numpy(numpy.fromfile(f"{folder}/weights.bin", dtype=numpy.float32)).view(-1, numel)
    model = Weights(numel)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    averages = []
    for row in rows:
        model.weight.data.copy_(row)
        average.update_parameters(model)  # the first call copies the weights
        averages.append(average.module.weight.detach().clone())
    torch.stack(averages[1:]).numpy().tofile(f"{folder}/averages.bin")


main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
