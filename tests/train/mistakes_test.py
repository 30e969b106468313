#!/usr/bin/env python3
"""mistakes_test.py COMMAND...: compiles mistakes.cpp with COMMAND, which must fail with the errors that it announces."""

import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).with_name("mistakes.cpp")


def main():
    expected = re.findall(r"// error: (.*)", SOURCE.read_text())
    ended = subprocess.run([*sys.argv[1:], str(SOURCE)], capture_output=True, text=True)
    errors = [line for line in ended.stderr.splitlines() if re.search(r"\berror:", line)]
    for text in expected:  # the compiler may report them in another order
        found = [error for error in errors if text in error]
        if not found:
            sys.exit(f"no error with\n  {text}\n\n{ended.stderr[-4000:]}")
    if ended.returncode == 0 or len(errors) != len(expected):
        sys.exit(f"{len(errors)} errors instead of {len(expected)}:\n" + "\n".join(errors) + "\n" + ended.stderr[-4000:])
    print(f"{len(errors)} mistakes, each with one error")


main()
