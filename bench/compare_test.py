#!/usr/bin/env python3
"""compare.py reports what is slower, with suites that print known times."""

import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

import compare

SUITE = """#!/bin/sh
for argument; do case $argument in --benchmark_out=*) out=${{argument#*=}} ;; esac; done
echo "$*" >> "$(dirname "$0")/calls"
cat > "$out" <<JSON
{{"benchmarks": [
  {{"name": "BM_Same/real_time", "run_type": "iteration", "real_time": 5.0, "cpu_time": 1.0, "time_unit": "us", "iterations": 10}},
  {{"name": "BM_Changed", "run_type": "iteration", "real_time": {changed}, "cpu_time": 1.0, "time_unit": "us", "iterations": 10}}{more}
]}}
JSON
"""
NEW = """,
  {"name": "BM_New", "run_type": "iteration", "real_time": 1.0, "cpu_time": 1.0, "time_unit": "us", "iterations": 10}"""


class CompareTest(unittest.TestCase):
    def build(self, folder, changed, more=""):
        suite = folder / "bin/bench_x"
        suite.parent.mkdir(parents=True)
        suite.write_text(SUITE.format(changed=changed, more=more))
        suite.chmod(suite.stat().st_mode | stat.S_IXUSR)
        return folder

    def compare(self, now, before, more="", more_before="", options=()):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            return subprocess.run(
                [sys.executable, pathlib.Path(compare.__file__), "abc123", "--repetitions", "3",
                 "--now", self.build(root / "now", now, more), "--before", self.build(root / "before", before, more_before),
                 *options], capture_output=True, text=True)

    def test_a_slower_benchmark_is_reported_first_and_ends_with_1(self):
        done = self.compare(8.0, 4.0)
        self.assertEqual(done.returncode, 1, done.stderr)
        lines = [line for line in done.stdout.splitlines() if "BM_" in line]
        self.assertRegex(lines[0], r"bench_x:BM_Changed +8\.000 +4\.000 +0\.50  0\.50 - 0\.50  slower$")
        self.assertRegex(lines[1], r"bench_x:BM_Same +5\.000 +5\.000 +1\.00  1\.00 - 1\.00$")
        self.assertIn("1 of 2 benchmarks are slower than abc123", done.stdout)

    def test_a_faster_benchmark_and_a_new_one_end_with_0(self):
        done = self.compare(2.0, 4.0, NEW)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"BM_Changed +2\.000 +4\.000 +2\.00  2\.00 - 2\.00  faster")
        self.assertIn("not in abc123: bench_x:BM_New", done.stdout)
        self.assertIn("0 of 2 benchmarks are slower", done.stdout)

    def test_a_benchmark_that_is_missing_now_ends_with_1(self):
        done = self.compare(2.0, 4.0, more_before=NEW)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("missing now: bench_x:BM_New", done.stdout)
        done = self.compare(2.0, 4.0, more_before=NEW, options=["--removed", "BM_N"])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_benchmark_that_seems_slower_runs_again(self):
        self.assertIn("1 seem slower: again", self.compare(8.0, 4.0).stdout)
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            now = self.build(root / "now", "$([ -e $0.second ] && echo 4.0 || { [ $(wc -l < $(dirname $0)/calls) -ge 3 ] && "
                                           "touch $0.second; echo 8.0; })")
            done = subprocess.run([sys.executable, pathlib.Path(compare.__file__), "abc123", "--repetitions", "3", "--now", now,
                                   "--before", self.build(root / "before", 4.0)], capture_output=True, text=True)
            calls = (now / "bin/calls").read_text().splitlines()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(calls), 3 + compare.AGAIN)
        self.assertIn("--benchmark_filter=^BM_Changed(/|$)", calls[-1])

    def test_overlapping_repetitions_are_no_difference(self):
        self.assertEqual(compare.verdict([2, 3, 9], [1, 2, 3]), "")
        self.assertEqual(compare.verdict([4, 5, 9], [1, 2, 3]), "slower")
        self.assertEqual(compare.verdict([1, 2, 2.5], [3, 4, 5]), "faster")

    def test_no_common_benchmark_is_an_error(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            (root / "before/bin").mkdir(parents=True)
            done = subprocess.run([sys.executable, pathlib.Path(compare.__file__), "abc123", "--repetitions", "1", "--now",
                                   self.build(root / "now", 1.0), "--before", root / "before"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("no benchmark ran in both commits", done.stderr)


if __name__ == "__main__":
    unittest.main()
