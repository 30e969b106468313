"""The programs of trainkit. Each command of the wheel is replaced by the program of its name in bin/ beside this file."""

import os
import sys


def run():
    name = os.path.basename(sys.argv[0])
    os.execv(os.path.join(os.path.dirname(__file__), "bin", name), [name, *sys.argv[1:]])
