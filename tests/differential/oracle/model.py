"""The model and the loss function of a program, as model.cpp and loss.cpp."""
import torch
from torch import nn


class Net(nn.Module):
    """The layers one after the other, the mean over positions, then the linear layer "head"."""

    def __init__(self, spec):
        super().__init__()
        self.spec = spec
        self.modules_of = []
        shape = {"sequence": [3, 8], "image": [2, 6, 6], "tokens": [5]}.get(spec["input"], [6])
        for i, layer in enumerate(spec["layers"]):
            if layer["shares"]:
                self.modules_of.append(self.modules_of[layer["shares"] - 1])
                continue
            module, shape = make_layer(layer, shape)
            if module is not None and any(True for _ in module.state_dict()):
                setattr(self, f"l{i}", module)
            self.modules_of.append(module)
            if isinstance(module, nn.Embedding):
                module.sparse = spec["optimizer"] == "sparse_adam"
        if spec["tied_head"]:
            embedding = self.modules_of[0]
            self.head = nn.Linear(embedding.embedding_dim, embedding.num_embeddings)
            self.head.weight = embedding.weight
        else:
            self.head = nn.Linear(shape[0], 4)

    def forward(self, x, m):
        return self.head(self.features(x, m))

    def features(self, x, m):
        h = x
        for i, (module, layer) in enumerate(zip(self.modules_of, self.spec["layers"])):
            call = module if module is not None else {"tanh": torch.tanh}.get(layer["kind"], torch.relu)
            if not layer["branch"]:
                h = call(h)
                if self.spec["input"] == "tokens" and i == 0:
                    h = h.mean(1)
                continue
            rows = m.nonzero().squeeze(1)
            if len(rows) > 0:
                h = h.index_add(0, rows, call(h.index_select(0, rows)).to(h.dtype))
        return h.flatten(2).mean(2) if h.dim() > 2 else h


def make_layer(layer, shape):
    kind, width, bias = layer["kind"], shape[0], not layer["no_bias"]
    if kind == "embedding":
        return nn.Embedding(7, layer["out"]), [layer["out"]]
    if kind == "linear":
        return nn.Linear(width, layer["out"], bias=bias), [layer["out"]]
    if kind in ("conv1d", "conv2d"):
        make = nn.Conv1d if kind == "conv1d" else nn.Conv2d
        return make(width, layer["out"], 3, padding=1, bias=bias), [layer["out"]] + shape[1:]
    if kind == "batch_norm":
        return (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(width, affine=bias), shape
    if kind == "sync_batch_norm":
        return (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(width), shape
    if kind == "group_norm":
        return nn.GroupNorm(2 if width % 2 == 0 else 1, width, affine=bias), shape
    if kind == "layer_norm":
        return nn.LayerNorm(shape[-1]), shape
    return None, shape


def make_net(spec, first):
    net = Net(spec)
    net.to(torch.float64 if spec["dtype"] == "float64" else torch.float32)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(first[name])
    for module, layer in zip(net.modules_of, spec["layers"]):
        if module is None or layer["shares"]:
            continue
        module.train(not layer["eval"])
        module.requires_grad_(not layer["frozen"])
    return net


class Loss:
    """The loss function of a program, or of one of its players; counts its calls in training."""

    def __init__(self, spec):
        self.spec, self.calls = spec, 0

    def rows(self, scores, y):
        if self.spec["loss"] == "cross_entropy":
            return nn.functional.cross_entropy(scores, y, reduction="none")
        if self.spec["loss"] == "huber":
            return nn.functional.huber_loss(scores, y.to(scores.dtype), reduction="none", delta=0.5).mean(1)
        return (scores - y.to(scores.dtype)).square().mean(1)

    def errors(self, scores, y):
        if self.spec["loss"] != "cross_entropy":
            return (scores - y).abs().mean(1)
        return 1 - torch.softmax(scores, 1).gather(1, y.unsqueeze(1)).squeeze(1)

    def __call__(self, net, batch, trains=True, features=None):
        """Returns loss, weight and metrics. `features` are those that players share."""
        spec, x, y, w = self.spec, batch["x"], batch["y"], batch["w"]
        uses_shared = spec["shared"] and trains
        penalty = spec["penalty"] and trains and not uses_shared
        if penalty:
            x = x.detach().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=spec["dtype"] == "bfloat16"):
            if uses_shared:
                scores = net.head(features.detach() if spec["shared"] == "detached" else features)
            else:
                scores = net(x, batch["m"])
            losses = self.rows(scores, y)
            if trains and "advantage" in batch:
                value, advantage, returns = scores[:, 1], batch["advantage"], batch["return"]
                losses = losses + 0.1 * (scores[:, 0] * advantage.to(scores) + (value - returns.to(scores)).square())
            if penalty:
                slope = torch.autograd.grad(losses.sum(), x, create_graph=True)[0]
                losses = losses + 0.1 * slope.flatten(1).square().sum(1)
            mean = (lambda v: (v * w).sum() / w.sum()) if spec["weights"] else torch.mean
            loss = mean(losses)
            if spec["state"] and trains:
                loss = loss / (1 + 0.25 * self.calls)
                self.calls += 1
            metric = None
            if spec["metric"] == "parameter":
                metric = net.head.weight.detach().flatten()[0].clone()
            elif spec["metric"] == "error" or spec["metric"] == "sometimes" and batch["m"][0] == 1:
                metric = mean(self.errors(scores.detach(), y))
        weight = w.sum().item() if spec["weights"] else float(len(x))
        return loss * spec["factor"], weight, metric
