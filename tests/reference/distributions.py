"""Values and gradients of torch.distributions, and a PPO loss as CleanRL writes it, for tests/rl/distributions_reference_test.cpp.

python distributions.py prints CSV: case, values. Inputs are sines of the index, which the test computes too.
"""
import torch
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

ROWS, ACTIONS = 7, 5


def waves(frequency, *shape):
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float64) * frequency).reshape(shape)


def show(name, tensor):
    print(",".join([name] + [repr(v) for v in tensor.detach().flatten().tolist()]))


def show_gradients(name, output, *inputs):
    for i, gradient in enumerate(torch.autograd.grad(output.sum(), inputs)):
        show(f"{name}.grad{i}", gradient)


def categorical(name, mask):
    logits = (4 * waves(1.7, ROWS, ACTIONS)).requires_grad_()
    action = torch.tensor([0, 2, 4, 0, 2, 4, 2])
    used = logits if mask is None else logits.masked_fill(~mask, -1e300)
    distribution = Categorical(logits=used)
    show(f"{name}.log_prob", distribution.log_prob(action))
    show(f"{name}.entropy", distribution.entropy())
    show(f"{name}.mode", distribution.probs.argmax(-1))
    show_gradients(name, distribution.log_prob(action) + 0.3 * distribution.entropy(), logits)


def normal():
    mean = waves(1.3, ROWS, ACTIONS).requires_grad_()
    std = (0.2 + waves(0.9, ACTIONS).abs()).requires_grad_()
    action = 2 * waves(2.1, ROWS, ACTIONS)
    distribution = Independent(Normal(mean, std.expand(ROWS, ACTIONS)), 1)
    show("normal.log_prob", distribution.log_prob(action))
    show("normal.entropy", distribution.entropy())
    show_gradients("normal", distribution.log_prob(action) + 0.3 * distribution.entropy(), mean, std)


def tanh_normal():
    mean = waves(1.3, ROWS, ACTIONS).requires_grad_()
    std = (0.2 + waves(0.9, ROWS, ACTIONS).abs()).requires_grad_()
    base = Independent(Normal(mean, std), 1)
    distribution = TransformedDistribution(base, TanhTransform())
    action = 0.999 * waves(2.1, ROWS, ACTIONS)
    show("tanh_normal.log_prob", distribution.log_prob(action))
    show_gradients("tanh_normal", distribution.log_prob(action), mean, std)


def ppo(name, value_clip):
    clip, value_weight, entropy_weight = 0.2, 0.4, 0.02
    log_prob = waves(1.1, ROWS).requires_grad_()
    entropy = waves(1.9, ROWS).requires_grad_()
    value = waves(2.3, ROWS).requires_grad_()
    old_log_prob = log_prob.detach() - 0.4 * waves(3.1, ROWS)
    advantage, returns, old_value = waves(0.7, ROWS), 2 * waves(0.5, ROWS), waves(2.9, ROWS)
    # As in ppo.py of CleanRL.
    logratio = log_prob - old_log_prob
    ratio = logratio.exp()
    approx_kl = ((ratio - 1) - logratio).mean()
    clipfrac = ((ratio - 1.0).abs() > clip).double().mean()
    pg_loss = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
    if value_clip:
        unclipped = (value - returns) ** 2
        v_clipped = old_value + torch.clamp(value - old_value, -value_clip, value_clip)
        v_loss = 0.5 * torch.max(unclipped, (v_clipped - returns) ** 2).mean()
    else:
        v_loss = 0.5 * ((value - returns) ** 2).mean()
    loss = pg_loss - entropy_weight * entropy.mean() + v_loss * value_weight
    show(f"{name}.values", torch.stack([loss, pg_loss, v_loss, entropy.mean(), approx_kl, clipfrac]))
    show_gradients(name, loss, log_prob, entropy, value)


categorical("categorical", None)
categorical("masked", torch.tensor([True, False, True, False, True]).repeat(ROWS, 1))
normal()
tanh_normal()
ppo("ppo", 0)
ppo("ppo_clipped", 0.3)
