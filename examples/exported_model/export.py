"""Writes the model that main.cpp trains: python export.py model.tkm"""
import sys

import torch
from torch import nn

import trainkit

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.1), nn.Linear(16 * 8 * 8, 4))
trainkit.export_model(model, (torch.randn(4, 1, 16, 16),), sys.argv[1])
