"""Prints scikit-learn's metrics for a file of rows `class 0 to 4, predicted class, binary class, output, target`."""

import sys
import warnings

import numpy as np
from sklearn import metrics

rows = np.loadtxt(sys.argv[1], delimiter=",")
truth, predicted, binary = rows[:, :3].astype(np.int64).T
output, target = rows[:, 3], rows[:, 4]
warnings.simplefilter("ignore")  # for a class that is predicted but does not occur
for average in ("micro", "macro", "weighted"):
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(truth, predicted, average=average, zero_division=0)
    print(average, repr(float(precision)), repr(float(recall)), repr(float(f1)), sep=",")
chosen = (output > 0.5).astype(np.int64)
precision, recall, f1, _ = metrics.precision_recall_fscore_support(binary, chosen, average="binary", zero_division=0)
print("binary", repr(float(precision)), repr(float(recall)), repr(float(f1)), sep=",")
print("accuracy", repr(float(metrics.accuracy_score(truth, predicted))), sep=",")
print("auroc", repr(float(metrics.roc_auc_score(binary, output))), sep=",")
print("mae", repr(float(metrics.mean_absolute_error(target, output))), sep=",")
print("rmse", repr(float(metrics.root_mean_squared_error(target, output))), sep=",")
print("r2", repr(float(metrics.r2_score(target, output))), sep=",")
