"""Exports models, and trains them in PyTorch as the reference of nn/exported_model.h.

usage: exported_model.py FOLDER STEPS NAME...
       exported_model.py refusals FOLDER    prints the errors of models that cannot be exported
       exported_model.py load FOLDER NAME WEIGHTS    loads trained weights strictly, and writes FOLDER/output.safetensors

For each name: FOLDER/NAME.tkm, and FOLDER/NAME.safetensors with the inputs "x" and targets "y", the losses of the steps
("losses", float32), those of an evaluation after them ("evaluation") and the weights after them ("weight:<name>"). The
steps are p -= 0.05 * gradient of the cross-entropy of the first output, with the seed 5 before the first.
"""
import logging
import os
import pathlib
import random
import sys
import warnings

import torch
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "packaging/wheel"))
import trainkit  # noqa: E402

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)  # of an evaluation without gradients: another rounding, and not in a graph


class ConvNet(nn.Module):
    """Batch statistics, dropout, work in place, a size that depends on the rows, and two outputs."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.25)
        self.out = nn.Linear(8 * 4 * 4, 10)
        self.register_buffer("scale", torch.full((1,), 0.5), persistent=False)

    def forward(self, x):
        x = self.drop(torch.relu_(self.norm(self.conv(x))))
        x = nn.functional.adaptive_avg_pool2d(x, 4).reshape(x.size(0), -1)
        return {"logits": self.out(x) * self.scale, "rows": x.new_ones(x.size(0) // 2 + 1)}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(40, 16), nn.LSTM(16, 12, 2, batch_first=True, dropout=0.1), nn.Linear(12, 40)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])


class TiedLanguageModel(nn.Module):
    """A tied head, a mask that is a constant, a part without gradients and one that leaves autocast."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        hidden = self.body(self.embed(x), mask=mask, is_causal=False)
        with torch.no_grad():
            mean = hidden.mean() * torch.tensor(0.5)
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden.float() - mean), mean


def transformer(name):
    import transformers as t
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 40}
    if name == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=40, n_positions=16, bos_token_id=0, eos_token_id=0))
    if name == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**small))
    return t.BertForSequenceClassification(t.BertConfig(**small, num_labels=10))


def make(name):
    """Returns a model, its example inputs and the targets of the training."""
    torch.manual_seed(3)
    tokens, images = torch.randint(0, 40, (6, 8)), torch.randn(6, 3, 8, 8)
    labels = torch.randint(0, 10, (6,))
    if name == "conv":
        return ConvNet(), (images,), labels
    if name == "recurrent":
        return Recurrent(), (tokens,), tokens.roll(-1, 1)
    if name == "tied":
        return TiedLanguageModel(), (tokens,), tokens.roll(-1, 1)
    if name == "resnet18":
        import torchvision
        return torchvision.models.resnet18(num_classes=10), (torch.randn(6, 3, 64, 64),), labels
    return transformer(name), {"input_ids": tokens}, labels if name == "bert" else tokens.roll(-1, 1)


def first_output(outputs):
    return outputs if isinstance(outputs, torch.Tensor) else next(iter(outputs.values())) if hasattr(outputs, "values") else outputs[0]


class Decides(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            return self.fc(x)
        return x


class Scaled(nn.Module):
    """An argument that is no tensor."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, scale):
        return self.fc(x) * scale


class Forgets(nn.Module):
    """Its output depends on what no graph has: random numbers of Python."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) * random.random()


@torch.library.custom_op("mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return x * 2


class Foreign(nn.Module):
    def forward(self, x):
        return twice(x)


def refusals(folder):
    trainkit.export_model(Foreign(), (torch.randn(3, 4),), folder + "/foreign.tkm")
    path = folder + "/refused.tkm"
    for name, model, inputs in [("decides", Decides(), (torch.randn(3, 4),)), ("forgets", Forgets(), (torch.randn(3, 4),))]:
        try:
            trainkit.export_model(model, inputs, path)
            print(name, "exported")
        except trainkit.ExportError as error:
            print(name, "refused:", " ".join(str(error).split()))
        print(name, "left a file" if os.path.exists(path) else "left no file")
    trainkit.export_model(Scaled(), (torch.randn(3, 4), 2.0), path)


def load(folder, name, path):
    """Loads weights that C++ has trained, and writes the first output of the model."""
    weights = load_file(path) if path.endswith(".safetensors") else torch.load(path, weights_only=True)
    model = make(name)[0].eval()
    model.load_state_dict(weights, strict=True)
    save_file({"output": first_output(model(load_file(f"{folder}/{name}.safetensors")["x"])).detach()}, f"{folder}/output.safetensors")
    print("loaded", *weights)


def main():
    if sys.argv[1] == "refusals":
        return refusals(sys.argv[2])
    if sys.argv[1] == "load":
        return load(*sys.argv[2:])
    folder, steps, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    for name in names:
        model, inputs, y = make(name)
        trainkit.export_model(model, inputs, f"{folder}/{name}.tkm")
        call = (lambda: model(**inputs)) if isinstance(inputs, dict) else (lambda: model(*inputs))

        def loss():
            logits = first_output(call())
            return nn.functional.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1))

        model.train()
        torch.manual_seed(5)
        losses = []
        for _ in range(steps):
            model.zero_grad()
            step_loss = loss()
            step_loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.add_(parameter.grad, alpha=-0.05)
            losses.append(step_loss.detach())
        model.eval()
        with torch.no_grad():
            evaluation = loss()
        x = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs[0]
        found = {"x": x.contiguous(), "y": y.contiguous(), "losses": torch.stack(losses), "evaluation": evaluation}
        for key, tensor in model.state_dict().items():
            found["weight:" + key] = tensor.detach().clone().contiguous()
        save_file(found, f"{folder}/{name}.safetensors")


if __name__ == "__main__":
    main()
