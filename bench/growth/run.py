#!/usr/bin/env python3
"""Measures how costs grow with the size of the work, and fails where they grow faster.

    bench/growth/run.py [--build DIR] [--publish] [--counts] [ROW...]

Runs each row of build/bin/growth_rows and growth_recommender at its sizes, by processor time and peak memory above that
before the work. Fits the exponent of the time (1: twice the work takes twice the time) and fails above the bound of the
row, 1.15 unless it has another, or if the memory of a size is above the row's bound. Prints the values of
bench/growth.json, the last published ones, next to the new ones; --publish replaces them.

--counts checks bytes alone, memory and reads from files, at small sizes: a test without times.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Without it a small time is mostly the noise of the machine.
LEAST_SECONDS = 0.01
RECOMMENDER = "growth_recommender"


class Row:
    """sizes: a factor 8 apart. memory: bound of the peak in MB at a size. reads: bound of the MB read from files, for
    --counts. exponent: bound of the time's. program: that of build/bin which runs it."""

    def __init__(self, sizes, unit, memory, reads, exponent=1.15, small=None, program="growth_rows"):
        self.sizes, self.unit, self.memory, self.reads, self.exponent = sizes, unit, memory, reads, exponent
        self.small, self.program = small or [sizes[0], sizes[1]], program


ROWS = {
    # Reads the file twice: to check its values, and to copy them.
    "weights": Row([32, 256, 2048], "MiB", lambda n: 24, lambda n: 2.1 * n + 1, small=[32, 64]),
    "state": Row([1_000, 8_000, 64_000], "tensors", lambda n: 10 + 0.004 * n, lambda n: 1 + 0.001 * n),
    # Maps of long names: n log n, and from some thousand names on they are not in the caches.
    "optimizer": Row([1_000, 8_000, 64_000], "parameters", lambda n: 20 + 0.006 * n, lambda n: 1 + 0.003 * n,
                     exponent=1.3, small=[1_000, 4_000]),
    # Reads the end of metrics.jsonl alone.
    "resume": Row([15_625, 125_000, 1_000_000], "records", lambda n: 20, lambda n: 18, exponent=0.5),
    "report": Row([15_625, 125_000, 1_000_000], "records", lambda n: 100, lambda n: 2 + 0.0005 * n),
    "watch": Row([15_625, 125_000, 1_000_000], "records", lambda n: 100, lambda n: 1, exponent=0.5),
    # Computes nothing, and touches neither weights nor logits (3.3 GB at 200,000).
    "plan": Row([3_125, 25_000, 200_000], "words", lambda n: 80, lambda n: 1, exponent=0.5),
    # The text, its prepared form and its tokens are mapped; the system drops their pages when memory is short.
    "text": Row([4, 32, 256], "MiB", lambda n: 20 + 2.1 * n, lambda n: 1),
    # Neither text nor tokens are read.
    "text_again": Row([4, 32, 256], "MiB", lambda n: 2, lambda n: 1, exponent=0.5),
    "tokens": Row([1, 8, 64], "MiB", lambda n: 60, lambda n: 1),
    "scene": Row([16, 128, 1024], "MiB", lambda n: 250 + 1.3 * n, lambda n: 1, small=[8, 64]),
    "predict_scene": Row([16, 128, 1024], "MiB", lambda n: 850, lambda n: 1, small=[8, 64]),
    # For one rank: at 32 ranks at most twice the cost at 8.
    "ranks": Row([2, 8, 32], "ranks", lambda n: 100 + 40 * n, lambda n: 1, exponent=0.5, small=[2, 8]),
    # Maps the file of about 24 bytes an event.
    "reading": Row([78_125, 625_000, 5_000_000], "events", lambda n: 10 + 0.00011 * n, lambda n: 1,
                   program=RECOMMENDER),
    "ranking": Row([625, 5_000, 40_000], "users", lambda n: 10 + 0.0005 * n, lambda n: 1, small=[625, 1_250],
                   program=RECOMMENDER),
    # Reads the items of the user alone.
    "recommend": Row([78_125, 625_000, 5_000_000], "events", lambda n: 1, lambda n: 0.1, exponent=0.5,
                     program=RECOMMENDER),
}


def measure(program, name, size):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([program, name, str(size), folder], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"growth: {name} {size}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def exponent(sizes, seconds):
    """The slope of the logarithm of the time from the first size to the last."""
    first, last = (max(value, LEAST_SECONDS) for value in (seconds[0], seconds[-1]))
    return math.log(last / first) / math.log(sizes[-1] / sizes[0])


def problems_of(name, row, sizes, values, counts):
    problems = []
    for size, value in zip(sizes, values):
        if value["peak_mb"] > row.memory(size):
            problems.append(f"{name}: {value['peak_mb']:.0f} MB at {size} {row.unit}, at most {row.memory(size):.0f}")
        if counts and value["read_mb"] > row.reads(size):
            problems.append(f"{name}: read {value['read_mb']:.1f} MB at {size} {row.unit}, at most {row.reads(size):.1f}")
    slope = exponent(sizes, [value["seconds"] for value in values])
    if not counts and slope > row.exponent:
        problems.append(f"{name}: the time grows with the power {slope:.2f}, at most {row.exponent}")
    return problems


def line_of(name, row, sizes, values, published):
    seconds = [value["seconds"] for value in values]
    before = published.get(name, {}).get("seconds")
    was = "" if not before else "  was " + ", ".join(f"{value:.3g}" for value in before) + " s"
    return (f"{name:10} {', '.join(f'{size:,}' for size in sizes)} {row.unit}: "
            f"{', '.join(f'{value:.3g}' for value in seconds)} s; "
            f"{', '.join(format(value['peak_mb'], '.0f') for value in values)} MB; "
            f"exponent {exponent(sizes, seconds):.2f}{was}")


def page_problems(root, published):
    """The numbers of docs/job-size.md are those of the tool, and those that are measured are at most 1.5 times too large."""
    header = "libtrainkit/include/trainkit/app/job_sizes.h"
    costs = {unit: [float(memory), float(disk)] for unit, memory, disk in re.findall(
        r'\{"([^"]+)", ([\d.]+), ([\d.]+)\}', (root / header).read_text())}
    page = {unit: [float(memory), float(disk)] for unit, memory, disk in re.findall(
        r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|", (root / "docs/job-size.md").read_text(), re.M)}
    if costs != page:
        yield f"docs/job-size.md says {page}, {header} {costs}"
    for unit, name, scale in (("scene value", "scene", 4), ("event", "reading", 1 << 20)):
        # MB of memory for MiB of values of 4 bytes, and for events.
        row = published[name]
        measured = scale * (row["peak_mb"][-1] - row["peak_mb"][0]) / (row["sizes"][-1] - row["sizes"][0])
        if not measured <= costs[unit][0] <= 1.5 * measured:
            yield f"a unit of {unit} takes {measured:.2f} bytes, docs/job-size.md says {costs[unit][0]:g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--counts", action="store_true")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    options = parser.parse_args()
    unknown = sorted(set(options.rows) - set(ROWS))
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    file = ROOT / "bench/growth.json"
    published = json.loads(file.read_text()) if file.exists() else {}
    problems = [] if options.rows or options.publish else list(page_problems(ROOT, published))
    for name in options.rows or ROWS:
        row = ROWS[name]
        if row.program == RECOMMENDER and not (options.build / "bin" / row.program).exists():
            print(f"{name:10} skipped: {row.program} is not built")  # a build without the programs
            continue
        sizes = row.small if options.counts else row.sizes
        values = [measure(options.build / "bin" / row.program, name, size) for size in sizes]
        print(line_of(name, row, sizes, values, {} if options.counts else published), flush=True)
        problems += problems_of(name, row, sizes, values, options.counts)
        published[name] = {"sizes": sizes, "seconds": [round(value["seconds"], 4) for value in values],
                           "peak_mb": [round(value["peak_mb"]) for value in values]}
    if options.publish and not options.counts:
        file.write_text(json.dumps(published, indent=1) + "\n")
    print("".join(f"growth: {problem}\n" for problem in problems), end="", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
