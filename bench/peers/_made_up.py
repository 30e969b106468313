"""Interactions with the size of MovieLens 1M, shared by the recommender's peers."""

import numpy as np


def interactions(count):
    """(users, items) of `count` distinct pairs: 6,040 users with equal probability, 3,706 items of which the first are
    the most popular."""
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, 6040, 1_700_000) * 3706 + (3706 * rng.random(1_700_000) ** 2).astype(np.int64))
    pairs = rng.permutation(pairs)[:count]
    return pairs // 3706, pairs % 3706
