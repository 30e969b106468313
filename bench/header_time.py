#!/usr/bin/env python3
"""Measures what each public header adds to LibTorch's headers, and prints the table of docs/building.md.

    bench/header_time.py [--build DIR] [--repetitions N] [HEADER ...]

Each header is compiled alone (-fsyntax-only, without the precompiled header). So is a file that has only the headers of
LibTorch and of other libraries that it includes, directly or through other public headers. The difference is what the
header adds. The smallest of N times is printed, in seconds of processor time. Exit status 1 if a header adds more than
LIMIT seconds. Run nothing else on the machine.
"""

import argparse
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
INCLUDE = ROOT / "libtrainkit/include"
LIMIT = 2.0
SHOWN = 12  # rows of the table


def commands(build):
    """Maps each public header to the compiler's command that compiles it alone, without its source and output."""
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", "all_verify_interface_header_sets"],
                           capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for line in lines:
        match = re.search(r"-c \S*/(trainkit/[\w/]+\.h)\.cxx\b", line)
        if not match:
            continue
        words = shlex.split(line.split("&&")[-1] if "&&" in line else line)
        words = [word for word in words if not word.endswith("ccache")]
        kept, skip = [], 0
        for word, following in zip(words, words[1:] + [""]):
            if skip:
                skip -= 1
            elif word in ("-o", "-c", "-MT", "-MF", "-include", "-include-pch"):
                skip = 1
            elif word == "-Xclang" and following in ("-include", "-include-pch"):
                skip = 3
            elif word not in ("-MD", "-Winvalid-pch"):
                kept.append(word)
        found[match[1]] = kept
    return found


def others(header, seen):
    """Returns the headers of other libraries that a public header includes, in order."""
    if header in seen:
        return []
    seen.add(header)
    found = []
    for quoted, other in re.findall(r'^#include (?:"(trainkit/[^"]+)"|<([^>]+)>)', (INCLUDE / header).read_text(), re.M):
        found += others(quoted, seen) if quoted else [other] if other not in seen else []
        seen.add(other)
    return found


def seconds(command, text, folder, repetitions):
    source = pathlib.Path(folder) / "file.cpp"
    source.write_text(text)
    times = []
    for _ in range(repetitions):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "-fsyntax-only", source], cwd=folder, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("headers", nargs="*")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for header, command in sorted(commands(arguments.build).items()):
            if arguments.headers and header not in arguments.headers:
                continue
            other = "".join(f"#include <{name}>\n" for name in others(header, set()))
            alone = seconds(command, f'#include "{header}"\n', folder, arguments.repetitions)
            rows.append((alone - seconds(command, other, folder, arguments.repetitions), alone, header))
    rows.sort(reverse=True)
    print("| header | alone | adds |\n|---|---|---|")
    for adds, alone, header in rows[:SHOWN]:
        print(f"| `{header}` | {alone:.2f} s | {adds:.2f} s |")
    print(f"| the other {max(len(rows) - SHOWN, 0)} | | at most {max((row[0] for row in rows[SHOWN:]), default=0):.2f} s |")
    return 1 if any(adds > LIMIT for adds, _, _ in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
