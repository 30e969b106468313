"""Interactions of MovieLens 1M's size that the peers of the recommender share."""

import numpy as np


def interactions(count):
    """(users, items) of `count` different pairs: 6,040 users alike, 3,706 items of which the first are chosen most."""
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, 6040, 1_700_000) * 3706 + (3706 * rng.random(1_700_000) ** 2).astype(np.int64))
    pairs = rng.permutation(pairs)[:count]
    return pairs // 3706, pairs % 3706
