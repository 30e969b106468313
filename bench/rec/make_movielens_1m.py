#!/usr/bin/env python3
"""Writes a data set of MovieLens 1M's size in its format, with tastes learned from MovieLens 100k.

    make_movielens_1m.py ML_100K ML_1M_SIDE OUT [--seed N]

ML_100K is the folder of u.data, u.item and u.user; ML_1M_SIDE that of movies.dat and users.dat of MovieLens 1M. A movie
has the factors (truncated SVD of the normalised interactions) of the same title in MovieLens 100k, or noisy factors of a
movie with similar genres. A user has those of two users of similar age and the same gender. Items are drawn without
replacement with the logit: log popularity + standardised score (Gumbel top-k); the number per user is log-normal.
For measurements where MovieLens 1M itself cannot be downloaded; scores on it are not those of MovieLens 1M.
"""

import argparse
import pathlib
import re
import shutil

import numpy as np

GENRES = ("Action Adventure Animation Children's Comedy Crime Documentary Drama Fantasy Film-Noir Horror Musical Mystery "
          "Romance Sci-Fi Thriller War Western").split()
DIMENSIONS, ITEMS = 24, 3706


def rows(path, separator):
    return [line.split(separator) for line in path.read_text(encoding="latin-1").splitlines()]


def factors(folder):
    """User factors, item factors and popularity of MovieLens 100k."""
    ratings = np.loadtxt(folder / "u.data", dtype=int)
    chosen = np.zeros((943, 1682), np.float32)
    chosen[ratings[:, 0] - 1, ratings[:, 1] - 1] = 1
    popularity = chosen.sum(0)
    scaled = chosen / np.sqrt(chosen.sum(1, keepdims=True) * np.maximum(popularity, 1))
    users, values, items = np.linalg.svd(scaled, full_matrices=False)
    root = np.sqrt(values[:DIMENSIONS])
    return users[:, :DIMENSIONS] * root, items[:DIMENSIONS].T * root, popularity


def make_items(movies, known, items, popularity, random):
    plain = lambda title: re.sub(r"[^a-z0-9()]", "", title.lower())
    by_title = {plain(row[1]): i for i, row in enumerate(known)}
    genres = np.array([[int(value) for value in row[6:24]] for row in known], float)
    spread = np.abs(items).mean(0)
    made, counts = [], []
    for movie in movies:
        i = by_title.get(plain(movie[1]))
        if i is not None:
            made.append(items[i])
            counts.append(popularity[i])
            continue
        own = np.array([genre in movie[2].split("|") for genre in GENRES], float)
        similarity = genres @ own / np.sqrt(np.maximum(genres.sum(1) * own.sum(), 1)) + random.normal(0, 0.05, len(genres))
        near = np.argsort(-similarity)[:20]
        made.append(items[random.choice(near)] * 0.8 + random.normal(0, 0.25, DIMENSIONS) * spread)
        counts.append(popularity[random.choice(near)] * random.uniform(0.3, 1))
    keep = np.argsort(-np.array(counts))[:ITEMS]
    return np.array(made)[keep], np.array(counts)[keep], np.array([int(movie[0]) for movie in movies])[keep]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("ml_100k", "ml_1m_side", "out"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    user_factors, item_factors, popularity = factors(options.ml_100k)
    items, counts, ids = make_items(rows(options.ml_1m_side / "movies.dat", "::"), rows(options.ml_100k / "u.item", "|"),
                                    item_factors, popularity, random)
    known = rows(options.ml_100k / "u.user", "|")
    ages, genders = np.array([int(row[1]) for row in known]), np.array([row[2] for row in known])
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("movies.dat", "users.dat"):
        shutil.copy(options.ml_1m_side / name, options.out)
    spread = np.abs(user_factors).mean(0)
    with open(options.out / "ratings.dat", "w") as file:
        for n, user in enumerate(rows(options.ml_1m_side / "users.dat", "::")):
            similar = np.where(genders == user[1])[0]
            similar = similar[np.argsort(np.abs(ages[similar] - int(user[2])) + random.uniform(0, 5, len(similar)))[:60]]
            first, second = random.choice(similar, 2)
            taste = 0.8 * user_factors[first] + 0.2 * user_factors[second] + random.normal(0, 0.15, DIMENSIONS) * spread
            scores = items @ taste
            logits = np.log(counts + 1) + (scores - scores.mean()) / scores.std()
            count = int(np.clip(np.exp(random.normal(4.57, 1.0)), 20, 2000))
            chosen = np.argpartition(-(logits + random.gumbel(size=len(logits))), count)[:count]
            random.shuffle(chosen)
            for time, item in enumerate(chosen):
                file.write(f"{user[0]}::{ids[item]}::4::{956700000 + n * 1000 + time}\n")


if __name__ == "__main__":
    main()
