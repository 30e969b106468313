#!/usr/bin/env python3
"""Keeps figures that pages quote equal to their sources.

    docs/tools/figures.py           writes the figures into the pages
    docs/tools/figures.py --check   names those that differ

A quoted figure is between two comments, which a reader does not see:

    <!-- figure AMD: row by row over torch::data get -->19.8 ×<!-- end -->    the median of bench/published.json for the
                                                      first processor whose name begins so; "range AMD: ..." is its range
    <!-- figure interruptions -->2,100<!-- end -->    the sum of the column in "Measured" of docs/reliability.md
    <!-- figure differences -->0<!-- end -->          the sum of the other column
    <!-- figure memory -->0.99 %<!-- end -->          the largest error of allocated memory in docs/guide/memory.md
    <!-- figure lines examples/gan.cpp -->65<!-- end -->    the lines of files without blank lines and comments, in sum

Exit status of --check: 0 without differences, else 1.
"""

import json
import math
import pathlib
import re
import sys

FIGURE = re.compile(r"<!-- (?P<kind>figure|range) (?P<source>[^>]+?) -->(?P<value>[^<]*)<!-- end -->")


def read(root, name):
    return (root / name).read_text(encoding="utf-8")


def section(text, heading):
    return re.split(r"^#+ ", text.split(f" {heading}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def interruptions(root):
    """(number of interruptions, number of differences) of the table "Measured"."""
    rows = re.findall(r"^\| `[^|]*\| ([^|]*) \| (\d+) \|", section(read(root, "docs/reliability.md"), "Measured"), re.M)
    # "100; 100; 100 each" is a count for each kind of interruption; the last one is for three signals.
    counts = [int(count) * (3 if each else 1) for cell, _ in rows for count, each in re.findall(r"(\d+)( each)?", cell)]
    return sum(counts), sum(int(differences) for _, differences in rows)


def largest_memory_error(root):
    """The largest error of the allocated memory, in percent; the first figure with a sign of each row."""
    rows = re.findall(r"^\|[^|]*\|[^|]*\| ([+-][\d.]+) % \|", section(read(root, "docs/guide/memory.md"), "Predicted and counted"), re.M)
    return max(rows, key=lambda error: abs(float(error))).lstrip("+-")


def shown(value):
    """Three significant digits, as in docs/benchmarks.md (bench/run.py)."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 4)}f}"


def benchmark(root, kind, source):
    processor, _, name = source.partition(": ")
    machines = json.loads(read(root, "bench/published.json"))
    rows = next((rows for machine, rows in machines.items() if machine.startswith(processor)), {})
    if name not in rows:
        return None
    row = rows[name]
    return f"{shown(row['median'])} ×" if kind == "figure" else f"{shown(row['lowest'])} – {shown(row['highest'])}"


def lines_of_code(root, name):
    """Number of lines without blank ones, comments and Python's text at the head of a file."""
    text = read(root, name)
    if name.endswith(".py"):
        text = re.sub(r'\A""".*?"""', "", text, flags=re.S)
    comment = "#" if name.endswith(".py") else "//"
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith(comment))


def value_of(root, kind, source):
    """The current value of a figure; None for an unknown source."""
    if source in ("interruptions", "differences"):
        return f"{interruptions(root)[source == 'differences']:,}"
    if source == "memory":
        return f"{largest_memory_error(root)} %"
    if source.startswith("lines "):
        return f"{sum(lines_of_code(root, name) for name in source.split()[1:]):,}"
    return benchmark(root, kind, source)


def update(root, name):
    """The page with current figures, and its problems."""
    text, problems = read(root, name), []

    def current(found):
        value = value_of(root, found["kind"], found["source"])
        if value is None:
            problems.append(f"{name}: there is no figure '{found['source']}'")
            return found[0]
        if value != found["value"]:
            problems.append(f"{name}: says {found['value']} for '{found['source']}', which is {value}: run docs/tools/figures.py")
        return found[0].replace(f"-->{found['value']}<!--", f"-->{value}<!--")
    if re.search(r"^\s*<!-- (figure|range) ", text, re.M):
        problems.append(f"{name}: a figure begins a line, which ends the paragraph or list before it")
    return FIGURE.sub(current, text), problems


def benchmark_problems(root):
    """The head of docs/benchmarks.md, its picture and bench/published.json name the same commit for the values of its first table."""
    if not (root / "docs/benchmarks.md").exists():
        return
    text, published = read(root, "docs/benchmarks.md"), json.loads(read(root, "bench/published.json"))
    commit = re.search(r"commit (\w+)", text)[1]
    if f"commit {commit};" not in read(root, "docs/benchmarks.svg"):
        yield f"docs/benchmarks.svg: is not of commit {commit}, as docs/benchmarks.md"
    machine = re.search(r"^- Machine: ([^;]*)", text, re.M)[1]
    table = section(text, "Ratios and targets")
    for name, median in re.findall(r"^\| ([^|]+?) \| ([\d.,]+) ", table, re.M):
        row = published.get(machine, {}).get(name)
        if row and shown(row["median"]) == median and row["commit"] != commit:
            yield f"bench/published.json: '{name}' is of commit {row['commit']}, in docs/benchmarks.md of {commit}"


def pages(root):
    return [name for name in ("README.md", *(str(path.relative_to(root)) for path in sorted(root.glob("docs/**/*.md"))))
            if (root / name).exists()]


def check(root):
    return [*(problem for name in pages(root) for problem in update(root, name)[1]), *benchmark_problems(root)]


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    if sys.argv[1:] == ["--check"]:
        problems = check(root)
        print("\n".join(problems))
        return 1 if problems else 0
    for name in pages(root):
        text, problems = update(root, name)
        print("\n".join(problem for problem in problems if "there is no" in problem), end="")
        if text != read(root, name):
            (root / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
