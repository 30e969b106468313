#!/usr/bin/env python3
"""Runs the tests of a build with a sanitizer in parts, and records each part in tests/sanitizers.md.

    tests/sanitize.py BUILD asan|tsan [PART...]

A part is a module whose tests are labelled `unit` or `multi_process`, such as `train`; without PART all of them run. A
part that has passed at this commit is not run again. `./dev sanitize` calls this.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEDGER = ROOT / "tests/sanitizers.md"
HEAD = """# What passed under the sanitizers

`./dev sanitize [asan|tsan] [PART...]` writes a row here for each part that passes. asan: AddressSanitizer and
UndefinedBehaviorSanitizer; tsan: ThreadSanitizer. LibTorch itself is not instrumented. Commits end with + if sources
differed from the commit.

| part | sanitizer | compiler | commit | date | passed | skipped | left out | minutes |
|---|---|---|---|---|---|---|---|---|
"""
# Tests that a sanitizer cannot run, and why. Every other test of label `unit` or `multi_process` runs.
LEFT_OUT = {
}


def tests_of(build):
    """Maps each part to the names of its tests."""
    out = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], capture_output=True, text=True, check=True)
    parts = {}
    for test in json.loads(out.stdout)["tests"]:
        labels = {label for p in test.get("properties", []) if p["name"] == "LABELS" for label in p["value"]}
        match = re.match(r"(?:unit\.)?(\w+)\.", test["name"])
        if labels & {"unit", "multi_process"} and match:
            parts.setdefault(match[1], []).append(test["name"])
    return parts


def rows():
    """Maps (part, sanitizer) to the cells of its row."""
    if not LEDGER.exists():
        return {}
    cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in LEDGER.read_text().splitlines() if line.startswith("| ")]
    return {(row[0], row[1]): row for row in cells[1:]}


def write(table):
    lines = ["| " + " | ".join(table[key]) + " |\n" for key in sorted(table)]
    LEDGER.write_text(HEAD + "".join(lines))


def commit():
    git = lambda *words: subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()
    changed = git("status", "--porcelain", "--", "libtrainkit", "apps", "tests", ":!tests/sanitizers.md")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def left_out(sanitizer, name):
    return next((why for (kind, pattern), why in LEFT_OUT.items() if kind in (sanitizer, "both") and re.fullmatch(pattern, name)), None)


def run_part(build, sanitizer, part, names, jobs):
    """Runs the tests of a part. Returns (passed, skipped, failed)."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        pattern = "^(" + "|".join(re.escape(name) for name in names) + ")$"
        subprocess.run(["ctest", "--test-dir", str(build), "-R", pattern, "-j", str(jobs), "--output-on-failure",
                        "--output-junit", str(report)], check=False)
        return count(xml.parse(report).getroot())


def count(report):
    """Returns (passed, skipped, failed) of a report of CTest. A test whose program is missing has failed."""
    passed = skipped = failed = 0
    for case in report.iter("testcase"):
        reason = case.find("skipped")
        if case.get("status") == "run":
            passed += 1
        elif reason is not None and reason.get("message", "").startswith("SKIP_"):
            skipped += 1
        else:
            failed += 1
    return passed, skipped, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("sanitizer", choices=["asan", "tsan"])
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "c++"))
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1)
    args = parser.parse_args()
    parts = tests_of(args.build)
    unknown = [part for part in args.parts if part not in parts]
    if unknown:
        parser.error(f"no tests of {', '.join(unknown)}; parts: {', '.join(sorted(parts))}")
    here, bad = commit(), []
    for part in args.parts or sorted(parts):
        key = (part, args.sanitizer)
        if rows().get(key, [""] * 4)[3] == here and not here.endswith("+"):
            print(f"-- {part}: has passed at {here}", flush=True)
            continue
        reasons = {name: left_out(args.sanitizer, name) for name in parts[part]}
        names = [name for name in parts[part] if not reasons[name]]
        begin = datetime.datetime.now()
        passed, skipped, failed = run_part(args.build, args.sanitizer, part, names, args.jobs) if names else (0, 0, 0)
        minutes = (datetime.datetime.now() - begin).total_seconds() / 60
        print(f"-- {part}: {passed} passed, {skipped} skipped, {failed} failed, {minutes:.1f} min", flush=True)
        if failed:
            bad.append(part)
            continue
        without = "; ".join(f"{name}: {why}" for name, why in reasons.items() if why)
        table = rows()
        table[key] = [part, args.sanitizer, pathlib.Path(args.compiler).name, here, begin.strftime("%Y-%m-%d"), str(passed),
                      str(skipped), without or "none", f"{minutes:.0f}"]
        write(table)
    if bad:
        sys.exit(f"sanitize: failed: {', '.join(bad)}")


if __name__ == "__main__":
    main()
