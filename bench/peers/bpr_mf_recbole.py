"""The work of BM_BprMfEpoch in RecBole 1.2.1: its BPR, its loader and its sampler, two threads. Without RecBole
(`pip install recbole==1.2.1`) it prints a message and no result."""

import json
import logging
import os
import pathlib
import sys
import tempfile
import time

import numpy as np
import torch

import _made_up

for name, kind in {"float": float, "float_": np.float64, "int": int, "object": object, "complex_": np.complex128,
                   "string_": np.bytes_, "unicode_": np.str_}.items():
    if name not in np.__dict__:
        setattr(np, name, kind)  # NumPy removed these names, and RecBole 1.2.1 still uses them
try:
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.general_recommender import BPR
    from recbole.trainer import Trainer
    from recbole.utils import init_seed
except ImportError as error:
    sys.exit(print(f"skipped: {error}", file=sys.stderr))

torch.set_num_threads(2)
QUICK = bool(os.environ.get("TRAINKIT_BENCH_QUICK"))
users, items = _made_up.interactions(50_000 if QUICK else 1_000_000)
sys.argv = sys.argv[:1]
logging.disable(logging.CRITICAL)
with tempfile.TemporaryDirectory() as folder:
    data = pathlib.Path(folder) / "made"
    data.mkdir()
    lines = [f"{user}\t{item}\n" for user, item in zip(users, items)]
    for part, some in {"train": lines, "validation": lines[:10], "test": lines[:10]}.items():
        (data / f"made.{part}.inter").write_text("user_id:token\titem_id:token\n" + "".join(some))
    os.chdir(folder)  # RecBole writes logs to the working directory
    config = Config("BPR", "made", config_dict={
        "data_path": folder, "checkpoint_dir": folder, "benchmark_filename": ["train", "validation", "test"],
        "load_col": {"inter": ["user_id", "item_id"]}, "embedding_size": 64, "train_batch_size": 2048,
        "learning_rate": 1e-3, "use_gpu": False, "show_progress": False, "worker": 0, "seed": 0})
    init_seed(0, True)
    train, _, _ = data_preparation(config, create_dataset(config))
    trainer = Trainer(config, BPR(config, train.dataset))
    rates = []
    for epoch in range(1 if QUICK else 3):
        start = time.perf_counter()
        trainer._train_epoch(train, epoch)
        rates.append(len(users) / (time.perf_counter() - start))
print(json.dumps({"name": "adam", "value": max(rates), "unit": "samples/s"}))
