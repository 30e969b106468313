"""Outputs and gradients of peft's LoRA, as the reference of nn/lora.h.

usage: lora.py OUT.safetensors --base FOLDER --lora JSON --save FOLDER [--head]   a random adapter for that GPT-2, saved
       lora.py OUT.safetensors --base FOLDER --adapter FOLDER                     an existing adapter
       lora.py OUT.safetensors --mlp --lora JSON --save FOLDER                  for torch.nn.Linear "up" and "down"

OUT has "x" (token ids, or the MLP's input), "y" without the adapter, with it ("adapted") and "merged"; the gradients of
loss_of(adapted) as "grad:<name of the parameter in our model>"; of the MLP also "base:<name>".
"""
import argparse
import json

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import GPT2LMHeadModel, GPT2Model, logging

logging.set_verbosity_error()


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(6, 10)
        self.down = torch.nn.Linear(10, 4, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def loss_of(x):
    """A weighted sum, because a plain sum of a layer norm's output has no gradient."""
    return (x * (torch.arange(x.numel()) % 7 - 3).view_as(x)).sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--base")
    parser.add_argument("--mlp", action="store_true")
    parser.add_argument("--lora")
    parser.add_argument("--save")
    parser.add_argument("--adapter")
    parser.add_argument("--head", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(3)
    if options.mlp:
        base = Mlp()
        x = torch.randn(5, 3, 6)
        run = lambda model: model(x)
    else:
        base = (GPT2LMHeadModel if options.head else GPT2Model).from_pretrained(options.base).eval()
        x = torch.randint(0, base.config.vocab_size, (3, 7))
        run = lambda model: model(x, output_hidden_states=True).hidden_states[-1]
    out = {"x": x, "y": run(base).detach()}
    if options.mlp:
        out |= {f"base:{name}": p.detach().clone() for name, p in base.named_parameters()}
    if options.adapter:
        model = PeftModel.from_pretrained(base, options.adapter, is_trainable=True)
    else:
        model = get_peft_model(base, LoraConfig(**json.loads(options.lora)))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0, 0.3)
        model.save_pretrained(options.save)
    model.eval()
    adapted = run(model)
    loss_of(adapted).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own = name.removeprefix("base_model.model.").removeprefix("transformer.").replace(".default", "")
            out[f"grad:{own}"] = parameter.grad
    model.merge_adapter()
    out |= {"adapted": adapted.detach(), "merged": run(model).detach()}
    save_file({name: tensor.contiguous() for name, tensor in out.items()}, options.out)


main()
