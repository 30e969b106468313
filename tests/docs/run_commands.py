#!/usr/bin/env python3
"""Runs the commands of a page as a reader would, from the first to the last, in one empty folder.

    tests/docs/run_commands.py PAGE PROGRAMS

Runs every ```sh block, and writes every ```python block that begins with a comment with a file name ("# export.py") as
that file. Other blocks are not run. PROGRAMS is the folder of the programs; Python is TRAINKIT_PYTHON, with the package
trainkit of this tree. Prints "skipped: ..." without a Python with torch. Exit status: 0 if every command succeeds.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.M | re.S)
FILE_NAME = re.compile(r"# (\w+\.py)\b")


def run(page, programs):
    python = os.environ.get("TRAINKIT_PYTHON", "python3")
    if subprocess.run([python, "-c", "import torch, numpy, safetensors"], stderr=subprocess.DEVNULL).returncode:
        print("skipped: no Python with torch")
        return 0
    text = pathlib.Path(page).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "bin").mkdir()
        path = f"{folder}/bin:{pathlib.Path(programs).resolve()}:{os.environ['PATH']}"
        (folder / "bin/python").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
        (folder / "bin/python").chmod(0o755)
        environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "packaging/wheel"), "CUDA_VISIBLE_DEVICES": ""}
        for match in BLOCK.finditer(text):
            kind, code = match.groups()
            line = text.count("\n", 0, match.start()) + 2
            if kind == "python":
                if name := FILE_NAME.match(code):
                    (folder / name[1]).write_text(code, encoding="utf-8")
                continue
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=folder, env=environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            print(done.stdout)
            if done.returncode:
                print(f"{page}:{line}: exits with {done.returncode}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
