"""torchvision's resnet18 with random weights and running statistics, as the reference of nn/resnet18.h.

usage: resnet18.py FOLDER      writes new.pth, old.pth, parallel.pth (DataParallel's names), weights.safetensors, and
                               out.safetensors: "images", "scores" and "features" of evaluation, "train_scores", and the
                               gradients of their weighted sum as "grad:<name>"
"""
import sys

import torch
from safetensors.torch import save_file
from torchvision.models import resnet18

folder = sys.argv[1]
torch.manual_seed(5)
model = resnet18(num_classes=10)
for name, buffer in model.named_buffers():
    if buffer.is_floating_point():
        buffer.uniform_(0.5, 1.5) if name.endswith("var") else buffer.uniform_(-0.3, 0.3)
state = model.state_dict()
torch.save(state, f"{folder}/new.pth")
torch.save(state, f"{folder}/old.pth", _use_new_zipfile_serialization=False)
torch.save({"module." + name: tensor for name, tensor in state.items()}, f"{folder}/parallel.pth")
save_file(state, f"{folder}/weights.safetensors")

images = torch.randn(3, 3, 96, 64)
out = {"images": images}
model.eval()
with torch.no_grad():
    out["scores"] = model(images)
    body = torch.nn.Sequential(*list(model.children())[:-1])
    out["features"] = body(images).flatten(1)
model.train()
scores = model(images)
out["train_scores"] = scores.detach()
(scores * (torch.arange(scores.numel()) % 7 - 3).view_as(scores)).sum().backward()
out |= {f"grad:{name}": parameter.grad for name, parameter in model.named_parameters()}
save_file({name: tensor.contiguous() for name, tensor in out.items()}, f"{folder}/out.safetensors")
