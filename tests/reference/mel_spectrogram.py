"""torchaudio's MelSpectrogram, as the reference of nn/mel_spectrogram.h.

usage: mel_spectrogram.py OUT.safetensors JSON...   a spectrogram of "samples" per set of options: "mel0", "mel1", ...
"""
import json
import sys

import torch
from safetensors.torch import save_file
from torchaudio.transforms import MelSpectrogram

torch.manual_seed(11)
time = torch.arange(24000) / 16000
samples = torch.stack([
    0.4 * torch.sin(2 * torch.pi * 440 * time) + 0.01 * torch.randn(24000),
    0.5 * torch.sin(2 * torch.pi * (200 + 900 * time) * time),
    0.1 * torch.randn(24000),
    torch.zeros(24000),
])
out = {"samples": samples}
for i, options in enumerate(sys.argv[2:]):
    out[f"mel{i}"] = MelSpectrogram(**json.loads(options))(samples).contiguous()
save_file(out, sys.argv[1])
