"""Prints the values of torchaudio's MelSpectrogram that tests/nn/models/mel_spectrogram_reference_test.cpp compares with.

They are those of torchaudio 2.11.0, its last release, with torch 2.11.0 on the CPU: later versions of torch have none.
"""
import math

import numpy as np
import torch
from torchaudio.transforms import MelSpectrogram

OPTIONS = [
    {},
    {"hop_length": 160, "n_mels": 64},
    {"n_fft": 1024, "win_length": 640, "hop_length": 256, "f_min": 60, "f_max": 7600, "n_mels": 80},
    {"sample_rate": 22050, "n_fft": 512, "n_mels": 40},
]


def noise(count, seed):
    """Numbers of [-0.5, 0.5) from a linear congruential generator."""
    numbers = []
    for _ in range(count):
        seed = (1664525 * seed + 1013904223) % 2**32
        numbers.append(seed / 2**32 - 0.5)
    return np.array(numbers)


time = np.arange(24000) / 16000
samples = torch.tensor(np.stack([
    0.4 * np.sin(2 * math.pi * 440 * time) + 0.03 * noise(24000, 1),
    0.5 * np.sin(2 * math.pi * (200 + 900 * time) * time) + 0.001 * noise(24000, 2),
    0.3 * noise(24000, 3),
]).astype(np.float32))
for options in OPTIONS:
    mel = MelSpectrogram(**options)(samples)
    bands, frames = mel.shape[1:]
    print(options, frames, "frames; for each channel the sum of all values, then 8 bands of 3 frames")
    for channel in mel:
        values = [channel.double().sum().item()]
        values += [channel[i * (bands - 1) // 7, frame].item() for i in range(8) for frame in (0, frames // 3, frames - 1)]
        lines, line = [], ""
        for value in values:
            if len(line) > 105:
                lines.append(line.rstrip())
                line = ""
            line += f"{value:.8g}, "
        print("\n".join(lines + [line.rstrip()]))
