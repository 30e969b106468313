"""RecBole's BPR on the split file of a run of trainkit-gpt2rec: the peer of its bpr_mf.

    pip install recbole==1.2.1 && python tests/reference/recbole_bpr.py runs/gpt2rec/split.tsv [seed]

Prints one JSON object: the test scores at the epoch with the best validation ndcg@10.
"""

import json
import logging
import pathlib
import sys
import tempfile

import numpy as np
import torch

for name, kind in {"float": float, "float_": np.float64, "int": int, "object": object, "complex_": np.complex128,
                   "string_": np.bytes_, "unicode_": np.str_}.items():
    if name not in np.__dict__:
        setattr(np, name, kind)  # NumPy removed these names, and RecBole 1.2.1 still uses them
load = torch.load
torch.load = lambda *a, **k: load(*a, **{**k, "weights_only": False})  # its own checkpoints

from recbole.config import Config  # noqa: E402
from recbole.data import create_dataset, data_preparation  # noqa: E402
from recbole.model.general_recommender import BPR  # noqa: E402
from recbole.trainer import Trainer  # noqa: E402
from recbole.utils import init_seed  # noqa: E402

split, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
sys.argv = sys.argv[:1]
with tempfile.TemporaryDirectory() as folder:
    data = pathlib.Path(folder) / "split"
    data.mkdir()
    parts = {name: ["user_id:token\titem_id:token\n"] for name in ("train", "validation", "test")}
    for line in split.read_text().splitlines():
        fields = line.split("\t")
        if len(fields) == 3 and fields[2] in parts:
            parts[fields[2]].append(f"{fields[0]}\t{fields[1]}\n")
    for name, lines in parts.items():
        (data / f"split.{name}.inter").write_text("".join(lines))
    config = Config("BPR", "split", config_dict={
        "data_path": folder, "checkpoint_dir": folder, "benchmark_filename": ["train", "validation", "test"],
        "load_col": {"inter": ["user_id", "item_id"]}, "embedding_size": 64, "train_batch_size": 2048, "epochs": 300,
        "learning_rate": 1e-3, "eval_batch_size": 2_000_000, "use_gpu": False, "show_progress": False, "worker": 0, "seed": seed, "stopping_step": 10,
        "valid_metric": "NDCG@10", "metrics": ["Recall", "NDCG", "Hit", "MRR", "Precision"], "topk": [10],
        "eval_args": {"order": "RO", "group_by": "user", "mode": "full"}, "metric_decimal_place": 6})
    logging.disable(logging.CRITICAL)
    init_seed(seed, True)
    train, valid, test = data_preparation(config, create_dataset(config))
    model = BPR(config, train.dataset)
    trainer = Trainer(config, model)
    best, _ = trainer.fit(train, valid, verbose=False, show_progress=False)
    result = trainer.evaluate(test, load_best_model=True, show_progress=False)
    print(json.dumps({"seed": seed, "validation_ndcg@10": best, **{k: float(v) for k, v in result.items()}}))
