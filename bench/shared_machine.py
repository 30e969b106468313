#!/usr/bin/env python3
"""Measures training next to other busy processes, and prints the table of docs/tuning.md.

    bench/shared_machine.py [--steps N] [--repeats N]

Trains a small pixel classifier (trainkit-hsi), a small Transformer and the README's program with 0, 1 and 2 other
processes that use a processor each: with the default, with LibTorch's usual waiting (GOMP_SPINCOUNT), and with one thread. Prints the median
seconds of each run. Run nothing else on the machine. Needs `./dev build`.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BIN = pathlib.Path(__file__).resolve().parents[1] / "build/bin"
WAYS = {
    "default": {},
    "threads that poll": {"GOMP_SPINCOUNT": "300000"},  # libgomp's own default
    "1 thread": {"OMP_NUM_THREADS": "1"},
}


def run(words, extra, folder):
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")}
    start = time.monotonic()
    done = subprocess.run(words, env={**environment, **extra}, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"shared_machine: {' '.join(words)}: {done.stderr}")
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run([BIN / "trainkit-hsi", "--make_demo_data", "scene"], {}, folder)
        run([BIN / "trainkit-transformer", "--make_demo_data", "text"], {}, folder)
        shared = ["--max_steps", str(asked.steps), "--epochs", "1000", "--eval_every", "0", "--save_every", "0",
                  "--device", "cpu", "--output_dir", "run", "--overwrite"]
        programs = {
            "2-D CNN": [BIN / "trainkit-hsi", "--cube", "scene/demo.mat", "--gt", "scene/demo_gt.mat",
                        "--no-write_maps", *shared],
            "Transformer": [BIN / "trainkit-transformer", "--input", "text", "--hidden_dim", "64", "--n_layers", "2",
                            "--n_heads", "2", "--block_size", "32", "--batch_size", "8", "--sample_tokens", "1", *shared],
            "README program": [BIN / "example_readme"],
        }
        print("| other busy processes | program | " + " | ".join(WAYS) + " |")
        print("|---|---|" + "---|" * len(WAYS))
        for load in range(3):
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
            try:
                for name, words in programs.items():
                    seconds = {way: [] for way in WAYS}
                    for _ in range(asked.repeats):
                        for way, extra in WAYS.items():
                            seconds[way].append(run([str(word) for word in words], extra, folder))
                    cells = " | ".join(f"{statistics.median(seconds[way]):.1f} s" for way in WAYS)
                    print(f"| {load} | {name} | {cells} |", flush=True)
            finally:
                for other in others:
                    other.kill()


main()
