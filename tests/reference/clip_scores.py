"""Prints scikit-learn's scores for trainkit-emotion's predictions.csv: name,value... , per label in the file's
order."""

import csv
import sys

from sklearn import metrics

with open(sys.argv[1], newline="") as file:
    rows = list(csv.DictReader(file))
labels = [name[2:] for name in rows[0] if name.startswith("p_")]
rows = [row for row in rows if row["predicted"]]
truth, predicted = [row["label"] for row in rows], [row["predicted"] for row in rows]
for row in rows:
    likely = max(labels, key=lambda label: float(row["p_" + label]))
    assert likely == row["predicted"], row
precision, recall, f1, support = metrics.precision_recall_fscore_support(truth, predicted, labels=labels, zero_division=0)
for name, values in (
    ("accuracy", [metrics.accuracy_score(truth, predicted)]),
    ("weighted_f1", [metrics.f1_score(truth, predicted, average="weighted", zero_division=0)]),
    ("macro_f1", [metrics.f1_score(truth, predicted, average="macro", zero_division=0)]),
    ("precision", precision),
    ("recall", recall),
    ("f1", f1),
    ("rows", support),
    ("confusion", metrics.confusion_matrix(truth, predicted, labels=labels).ravel()),
):
    print(name, *(repr(float(value)) for value in values), sep=",")
