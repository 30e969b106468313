"""Prints scikit-learn's scores for a file of rows `true class,predicted class`, classes 0 to 5."""

import sys
import warnings

import numpy as np
from sklearn import metrics

truth, predicted = np.loadtxt(sys.argv[1], delimiter=",", dtype=np.int64).T
classes = list(range(6))
warnings.simplefilter("ignore")  # for a class that is predicted but does not occur
precision, recall, f1, support = metrics.precision_recall_fscore_support(truth, predicted, labels=classes, zero_division=0)
for name, values in (
    ("oa", [metrics.accuracy_score(truth, predicted)]),
    ("aa", [metrics.balanced_accuracy_score(truth, predicted)]),
    ("weighted_f1", [metrics.f1_score(truth, predicted, average="weighted", zero_division=0)]),
    ("macro_f1", [metrics.f1_score(truth, predicted, average="macro", zero_division=0)]),
    ("kappa", [metrics.cohen_kappa_score(truth, predicted)]),
    ("precision", precision),
    ("recall", recall),
    ("f1", f1),
    ("support", support),
    ("counts", metrics.confusion_matrix(truth, predicted, labels=classes).ravel()),
):
    print(name, *(repr(float(value)) for value in values), sep=",")
