"""Reads a safetensors file with the reference and writes its tensors again: safetensors_copy.py FROM TO."""
import sys

import safetensors
import safetensors.torch

with safetensors.safe_open(sys.argv[1], "pt") as file:
    metadata = file.metadata()
safetensors.torch.save_file(safetensors.torch.load_file(sys.argv[1]), sys.argv[2], metadata=metadata)
