"""The programs of trainkit, and the export of PyTorch models that they train.

Each command of the wheel is replaced by the program of its name in bin/ beside this file. export_model() writes a
PyTorch model as a file that C++ trains; it needs torch, which is imported when it is called.
"""

import os
import sys


def run():
    name = os.path.basename(sys.argv[0])
    os.execv(os.path.join(os.path.dirname(__file__), "bin", name), [name, *sys.argv[1:]])


def __getattr__(name):
    if name in ("export_model", "ExportError"):
        from trainkit import export
        return getattr(export, name)
    raise AttributeError(f"module 'trainkit' has no attribute '{name}'")
