"""RecBole's metrics for the scores that tests/apps/rec/rec_ranking_test.cpp also generates; that test contains this output.

    pip install recbole==1.2.1 && python tests/reference/recbole_metrics.py
"""

import numpy as np
import torch

np.float = float  # NumPy removed this name, and RecBole 1.2.1 still uses it

from recbole.evaluator.collector import DataStruct
from recbole.evaluator.metrics import MRR, NDCG, Hit, ItemCoverage, Precision, Recall

USERS, ITEMS, KS = 50, 80, [1, 5, 10, 20]


def mix64(x):
    with np.errstate(over="ignore"):
        x = np.uint64(x)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


bits = np.array([[int(mix64(u * ITEMS + i + 1)) for i in range(ITEMS)] for u in range(USERS)], dtype=np.uint64)
scores = torch.from_numpy((bits >> np.uint64(40)).astype(np.float32) / 2**24)
kind = (bits & np.uint64(15)).astype(int)  # 0, 1: training; 2: positives of the test; user 7 has none
positive = torch.from_numpy(kind == 2)
positive[7] = False
scores[torch.from_numpy(kind < 2)] = -torch.inf
have = positive.any(1)
scores, positive = scores[have], positive[have]
lists = torch.topk(scores, max(KS), dim=1).indices
data = DataStruct()
data.set("rec.items", lists)
data.set("rec.topk", torch.cat([positive.gather(1, lists).int(), positive.sum(1, keepdim=True).int()], 1))
data.set("data.num_items", ITEMS)
config = {"topk": KS, "metric_decimal_place": 10}
for metric in (Recall, Precision, NDCG, MRR, Hit, ItemCoverage):
    for name, value in metric(config).calculate_metric(data).items():
        print(f'{{"{name.replace("itemcoverage", "coverage")}", {value:.10f}}},')
