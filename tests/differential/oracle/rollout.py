"""The rollouts of a program: its simulators, its policy, and advantages by their definition, as made.cpp."""
import torch


class Rollout:
    """Collects horizon x simulators rows under the weights of the moment."""

    def __init__(self, buffer, table):
        self.buffer, self.table = buffer, table
        self.size = len(table["y"])
        self.episode, self.at = [0] * buffer["simulators"], [0] * buffer["simulators"]
        self.returns, self.lengths = list(self.at), list(self.at)
        self.metrics = {}

    def rows(self):
        """Rows of the table that the simulators see."""
        return [(31 * i + 7 * self.episode[i] + self.at[i]) % self.size for i in range(len(self.at))]

    def values(self, head):
        """Values of the observations, in eighths."""
        x, m = self.table["x"][self.rows()], self.table["m"][self.rows()]
        means = x.double().nan_to_num(0, 0, 0).flatten(1).mean(1)
        return (8 * means * head.detach().double().sum().tanh()).round() / 8 + m / 4

    def collect(self, head):
        """Returns all rows by field, those of a step one after the other."""
        rows, values, after, rewards, over, ends, ended = [], [], [], [], [], [], []
        for _ in range(self.buffer["horizon"]):
            value = self.values(head)
            rows += self.rows()
            values.append(value)
            rewards.append([((i + 3 * self.episode[i] + 5 * self.at[i]) % 9 - 4) / 4 for i in range(len(self.at))])
            self.at = [at + 1 + int(value[i] > 0) for i, at in enumerate(self.at)]
            after.append(self.values(head))
            ends.append([at >= 4 + i % 3 for i, at in enumerate(self.at)])
            over.append([end and (i + self.episode[i]) % 3 != 1 for i, end in enumerate(ends[-1])])
            for i, end in enumerate(ends[-1]):
                self.returns[i] += rewards[-1][i]
                self.lengths[i] += 1
                if end:
                    ended.append((self.returns[i], self.lengths[i]))
                    self.episode[i] += 1
                    self.at[i] = self.returns[i] = self.lengths[i] = 0
        self.metrics = {"episodes": float(len(ended))}
        if ended:
            self.metrics["episode_return"] = sum(one[0] for one in ended) / len(ended)
            self.metrics["episode_length"] = sum(one[1] for one in ended) / len(ended)
        advantages = self.advantages(values, after, rewards, over, ends)
        table = {name: column[rows] for name, column in self.table.items()}
        table["advantage"] = torch.stack(advantages).flatten()
        table["return"] = table["advantage"] + torch.stack(values).flatten()
        return table

    def advantages(self, values, after, rewards, over, ends):
        discount, decay = self.buffer["discount"], self.buffer["discount"] * self.buffer["lambda"]
        advantages, later = [], torch.zeros(len(self.at), dtype=torch.float64)
        for t in reversed(range(len(values))):
            delta = torch.tensor(rewards[t]) + discount * after[t].masked_fill(torch.tensor(over[t]), 0) - values[t]
            later = delta + decay * later.masked_fill(torch.tensor(ends[t]), 0)
            advantages.insert(0, later)
        return advantages

    def batch(self, table, indices):
        batch = {name: column[indices] for name, column in table.items()}
        if self.buffer["normalize"]:
            own = batch["advantage"]
            spread = own.std() if len(own) > 1 else torch.zeros(())
            batch["advantage"] = ((own - own.mean()) / (spread + 1e-8)).float()
        return batch
