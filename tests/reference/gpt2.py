"""Hidden states and gradients of transformers' GPT-2, as the reference of nn/gpt2.h.

usage: gpt2.py OUT.safetensors --model FOLDER                     an existing model
       gpt2.py OUT.safetensors --config JSON --save FOLDER        a random one, saved into FOLDER:
               [--head]       as GPT2LMHeadModel, with its head and its prefix
               [--torch zip|legacy]   as pytorch_model.bin instead of model.safetensors, with the masks of old files
               [--half]       in float16

OUT has "ids" (B, T), and for none, right, left and counted (left, with position ids that count from the first token)
"<case>.mask", "<case>.hidden", "<case>.positions", "<case>.last" (the row of the last token); for small random models
also "grad:<name>" of loss_of(right.hidden where the mask is 1).
"""
import argparse
import json

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model, logging

logging.set_verbosity_error()


def random_model(config):
    """All weights are random, norms and biases too, so that no zero hides an error."""
    torch.manual_seed(11)
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def save(model, options):
    model.config.architectures = [type(model).__name__]
    if not options.torch:
        model.save_pretrained(options.save)
        return
    model.config.save_pretrained(options.save)
    state = dict(model.state_dict())
    prefix = "transformer." if options.head else ""
    size = model.config.n_positions
    for layer in range(model.config.n_layer):
        state[f"{prefix}h.{layer}.attn.bias"] = torch.ones(size, size, dtype=torch.uint8).tril().view(1, 1, size, size)
        state[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    torch.save(state, options.save + "/pytorch_model.bin", _use_new_zipfile_serialization=options.torch == "zip")


def masks(rows, length):
    """Rows of several lengths; the first is complete."""
    lengths = [length - (row * (length - 1)) // max(1, rows - 1) for row in range(rows)]
    right = torch.tensor([[1] * n + [0] * (length - n) for n in lengths])
    return {"none": torch.ones_like(right), "right": right, "left": right.flip(1), "counted": right.flip(1)}


def loss_of(x):
    """A weighted sum, because a plain sum of a layer norm's output has no gradient."""
    return (x * (torch.arange(x.numel()) % 7 - 3).view_as(x)).sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--model")
    parser.add_argument("--config")
    parser.add_argument("--save")
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--torch")
    parser.add_argument("--half", action="store_true")
    options = parser.parse_args()
    if options.model:
        model = GPT2Model.from_pretrained(options.model)
    else:
        with_head = random_model(json.loads(options.config))
        if options.half:
            with_head.half()
        save(with_head if options.head else with_head.transformer, options)
        model = with_head.float().transformer
    model.eval()
    torch.manual_seed(5)
    rows, length = 4, min(24, model.config.n_positions)
    ids = torch.randint(0, model.config.vocab_size, (rows, length))
    out = {"ids": ids}
    for case, mask in masks(rows, length).items():
        positions = torch.arange(length).expand(rows, length)
        if case == "counted":
            positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
        hidden = model(ids, attention_mask=None if case == "none" else mask,
                       position_ids=positions if case == "counted" else None).last_hidden_state
        last = (mask * torch.arange(length)).argmax(-1)
        out |= {f"{case}.mask": mask, f"{case}.hidden": hidden.detach(), f"{case}.positions": positions,
                f"{case}.last": hidden.detach()[torch.arange(rows), last]}
        if case == "right" and options.config and model.config.n_embd < 100:
            loss_of(hidden * mask.unsqueeze(-1)).backward()
            out |= {f"grad:{name}": p.grad for name, p in model.named_parameters()}
    save_file({name: tensor.contiguous() for name, tensor in out.items()}, options.out)


main()
