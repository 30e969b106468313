"""PPO on CartPole by four peers, on one thread, with the network and the settings of CleanRL's ppo.py
(github.com/vwxyzjn/cleanrl), as BM_PpoCartPole: environment steps per second with training, and without the time of the
simulators. cleanrl is a loop in plain PyTorch written after ppo.py, which is no library, without its logging. With
TRAINKIT_BENCH_SEEDS=5 also the steps until the mean return of the last 100 episodes is 475, the median of five seeds.
rollout_sb3 is stable-baselines3's rollout of 256 x 2,048 steps, as BM_CartPoleRollout.

A peer that is not installed, or does not work with this PyTorch, is left out with a note:
    pip install gymnasium stable-baselines3 torchrl rlox"""

import collections
import json
import os
import statistics
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical

QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))
SEEDS = int(os.environ.get("TRAINKIT_BENCH_SEEDS") or 0)
TOTAL, ENVS, HORIZON, BATCH, EPOCHS = 500_000, 4, 128, 128, 4
GAMMA, LAMBDA, CLIP, ENTROPY_WEIGHT, VALUE_WEIGHT, MAX_NORM, RATE = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 2.5e-4
ROWS = ENVS * HORIZON
torch.set_num_threads(1)


class Watch:
    """Measures from the third rollout on. Ends after `rollouts`, or when the mean return of 100 episodes is `enough`."""

    def __init__(self, rollouts, enough=float("inf")):
        self.limit, self.enough = rollouts, enough
        self.returns = collections.deque(maxlen=100)
        self.rollouts, self.start, self.in_simulators = 0, 0.0, 0.0

    def in_step(self, step):
        """`step`, a function that steps the simulators, timed."""
        def timed(*args, **kwargs):
            start = time.perf_counter()
            result = step(*args, **kwargs)
            self.in_simulators += time.perf_counter() - start
            return result
        return timed

    def is_done(self):
        """Called after each rollout and its training."""
        self.rollouts += 1
        if self.rollouts == 2:
            self.start, self.in_simulators = time.perf_counter(), 0.0
        self.seconds = time.perf_counter() - self.start
        is_learnt = len(self.returns) == 100 and sum(self.returns) >= 100 * self.enough
        return is_learnt or self.rollouts >= self.limit

    def annealed_rate(self):
        return RATE * (1 - self.rollouts / (TOTAL // ROWS))


def layer(inputs, outputs, gain=2**0.5):
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def network(outputs, gain):
    return nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, gain))


def cleanrl(seed, watch):
    import gymnasium

    np.random.seed(seed)
    torch.manual_seed(seed)
    makers = [lambda: gymnasium.make("CartPole-v1")] * ENVS
    try:
        envs = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    except AttributeError:  # before 1.1, the only mode
        envs = gymnasium.vector.SyncVectorEnv(makers)
    step_envs = watch.in_step(envs.step)
    actor, critic = network(2, 0.01), network(1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE, eps=1e-5)

    def act(observation, action=None):
        policy = Categorical(logits=actor(observation))
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action), policy.entropy(), critic(observation)

    observations = torch.zeros(HORIZON, ENVS, 4)
    actions, log_probs, rewards, dones, values = (torch.zeros(HORIZON, ENVS) for _ in range(5))
    episode_returns = np.zeros(ENVS)
    observation, done = torch.Tensor(envs.reset(seed=seed)[0]), torch.zeros(ENVS)
    while True:
        optimizer.param_groups[0]["lr"] = watch.annealed_rate()
        for t in range(HORIZON):
            observations[t], dones[t] = observation, done
            with torch.no_grad():
                action, log_prob, _, value = act(observation)
                values[t] = value.flatten()
            actions[t], log_probs[t] = action, log_prob
            next_observation, reward, terminated, truncated, _ = step_envs(action.numpy())
            ended = np.logical_or(terminated, truncated)
            rewards[t] = torch.tensor(reward).view(-1)
            observation, done = torch.Tensor(next_observation), torch.Tensor(ended)
            episode_returns += reward
            for i in np.flatnonzero(ended):
                watch.returns.append(episode_returns[i])
                episode_returns[i] = 0
        with torch.no_grad():
            next_value, advantages, later = critic(observation).reshape(-1), torch.zeros_like(rewards), 0
            for t in reversed(range(HORIZON)):
                is_last = t == HORIZON - 1
                continues = 1 - (done if is_last else dones[t + 1])
                delta = rewards[t] + GAMMA * (next_value if is_last else values[t + 1]) * continues - values[t]
                advantages[t] = later = delta + GAMMA * LAMBDA * continues * later
            returns = advantages + values
        rows, clipped = np.arange(ROWS), []
        b_observations, b_actions, b_log_probs = observations.reshape(-1, 4), actions.reshape(-1), log_probs.reshape(-1)
        b_advantages, b_returns, b_values = advantages.reshape(-1), returns.reshape(-1), values.reshape(-1)
        for _ in range(EPOCHS):
            np.random.shuffle(rows)
            for begin in range(0, ROWS, BATCH):
                batch = rows[begin:begin + BATCH]
                _, log_prob, entropy, value = act(b_observations[batch], b_actions.long()[batch])
                log_ratio = log_prob - b_log_probs[batch]
                ratio = log_ratio.exp()
                with torch.no_grad():
                    ((ratio - 1) - log_ratio).mean()  # the estimate of KL that ppo.py logs
                    clipped.append(((ratio - 1).abs() > CLIP).float().mean().item())
                advantage = b_advantages[batch]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                value = value.view(-1)
                moved = b_values[batch] + (value - b_values[batch]).clamp(-CLIP, CLIP)
                value_loss = 0.5 * torch.max((value - b_returns[batch])**2, (moved - b_returns[batch])**2).mean()
                loss = policy_loss - ENTROPY_WEIGHT * entropy.mean() + VALUE_WEIGHT * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
        if watch.is_done():
            return


def make_stable_baselines3(envs, horizon, batch, seed, **settings):
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    return PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=envs, seed=seed), n_steps=horizon, batch_size=batch,
               policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": nn.Tanh}, seed=seed,
               device="cpu", gamma=GAMMA, gae_lambda=LAMBDA, **settings)


def stable_baselines3(seed, watch):
    from stable_baselines3.common.callbacks import BaseCallback

    class Ends(BaseCallback):
        """A rollout ends, with its training, where the next one starts."""

        def __init__(self):
            super().__init__()
            self.is_first = True

        def _on_rollout_start(self):
            if not self.is_first:
                watch.returns = [episode["r"] for episode in self.model.ep_info_buffer]  # of the last 100
                self.is_done = watch.is_done()
            self.is_first = False

        def _on_step(self):
            return not getattr(self, "is_done", False)

    model = make_stable_baselines3(ENVS, HORIZON, BATCH, seed, n_epochs=EPOCHS, learning_rate=lambda left: RATE * left,
                                   clip_range=CLIP, clip_range_vf=CLIP, ent_coef=ENTROPY_WEIGHT, vf_coef=VALUE_WEIGHT,
                                   max_grad_norm=MAX_NORM)
    model.env.step = watch.in_step(model.env.step)
    model.learn(TOTAL, callback=Ends())


def torchrl(seed, watch):
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.manual_seed(seed)
    envs = SerialEnv(ENVS, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    envs.set_seed(seed)
    envs._step = watch.in_step(envs._step)
    actor = ProbabilisticActor(TensorDictModule(network(2, 0.01), ["observation"], ["logits"]), in_keys=["logits"],
                               distribution_class=Categorical, return_log_prob=True)
    critic = ValueOperator(network(1, 1.0), in_keys=["observation"])
    gae = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic)
    ppo = ClipPPOLoss(actor, critic, clip_epsilon=CLIP, entropy_coeff=ENTROPY_WEIGHT, critic_coeff=VALUE_WEIGHT,
                      loss_critic_type="l2", normalize_advantage=True, clip_value=CLIP)
    optimizer = torch.optim.Adam(ppo.parameters(), lr=RATE, eps=1e-5)
    collector = Collector(envs, actor, frames_per_batch=ROWS, total_frames=TOTAL)
    episode_returns = np.zeros(ENVS)
    for rollout in collector:
        optimizer.param_groups[0]["lr"] = watch.annealed_rate()
        for ended in rollout["next", "done"].squeeze(-1).T.numpy():  # ENVS of a step
            episode_returns += 1
            watch.returns.extend(episode_returns[ended])
            episode_returns[ended] = 0
        with torch.no_grad():
            gae(rollout)
        rows = rollout.reshape(-1)
        for _ in range(EPOCHS):
            for batch in torch.randperm(ROWS).split(BATCH):
                losses = ppo(rows[batch])
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(ppo.parameters(), MAX_NORM)
                optimizer.step()
        if watch.is_done():
            break
    collector.shutdown()


def rlox(seed, watch):
    from rlox.algorithms.ppo import PPO
    from rlox.callbacks import Callback

    class Simulators:
        """rlox's own, written in Rust, with the steps timed and the returns of episodes noted."""

        def __init__(self, envs):
            self.envs, self.returns = envs, np.zeros(ENVS)
            self.step = watch.in_step(envs.step_all)

        def step_all(self, actions):
            result = self.step(actions)
            self.returns += result["rewards"]
            ended = np.asarray(result["terminated"], bool) | np.asarray(result["truncated"], bool)
            watch.returns.extend(self.returns[ended])
            self.returns[ended] = 0
            return result

        def __getattr__(self, name):
            return getattr(self.envs, name)

    class Ends(Callback):
        def on_step(self, **_):  # after each rollout and its training
            return not watch.is_done()

    torch.manual_seed(seed)
    model = PPO("CartPole-v1", n_envs=ENVS, seed=seed, callbacks=[Ends()], n_steps=HORIZON, n_epochs=EPOCHS,
                batch_size=BATCH, learning_rate=RATE, anneal_lr=True, gamma=GAMMA, gae_lambda=LAMBDA, clip_eps=CLIP,
                clip_vloss=True, ent_coef=ENTROPY_WEIGHT, vf_coef=VALUE_WEIGHT, max_grad_norm=MAX_NORM)
    model.collector.env = Simulators(model.collector.env)
    model.train(TOTAL)


def report(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def rollout_of_stable_baselines3():
    from stable_baselines3.common.callbacks import CallbackList

    envs, horizon = 256, 32 if QUICK else 2048
    model = make_stable_baselines3(envs, horizon, envs, 0)
    _, callback = model._setup_learn(envs * horizon, CallbackList([]))
    start = time.perf_counter()
    model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=horizon)
    report("rollout_sb3", envs * horizon / (time.perf_counter() - start), "steps/s")


def measure(peer):
    watch = Watch(4 if QUICK else 20)
    peer(1, watch)
    steps = (watch.rollouts - 2) * ROWS
    report(peer.__name__, steps / watch.seconds, "steps/s")
    report(f"{peer.__name__}_without_simulators", steps / (watch.seconds - watch.in_simulators), "steps/s")
    steps = []
    for seed in range(1, SEEDS + 1):
        watch = Watch(TOTAL // ROWS, 475)
        peer(seed, watch)
        steps.append(watch.rollouts * ROWS)
        print(f"{peer.__name__}, seed {seed}: {steps[-1]} steps", file=sys.stderr)
    if steps:
        report(f"{peer.__name__}_learns", statistics.median(steps), "steps_to_475")


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for peer in (cleanrl, stable_baselines3, torchrl, rlox):
        try:
            if not wanted or peer.__name__ in wanted:
                measure(peer)
        except Exception as error:  # not installed, or of another version
            print(f"left out: {peer.__name__}: {error}", file=sys.stderr)
    try:
        if not wanted or "rollout" in wanted:
            rollout_of_stable_baselines3()
    except ImportError as error:
        print(f"left out: rollout_sb3: {error}", file=sys.stderr)
