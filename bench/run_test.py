#!/usr/bin/env python3
"""run.py reports the values that suites and peers print: checked with programs that print known values."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree

import run

SUITE = """#!/bin/sh
# a suite whose n-th run takes n + 1 us a step
count=$(cat {folder}/count 2>/dev/null || echo 0)
echo $((count + 1)) > {folder}/count
for argument; do case $argument in --benchmark_out=*) out=${{argument#*=}} ;; esac; done
cat > "$out" <<JSON
{{"benchmarks": [{{"name": "BM_Step/iterations:10/real_time", "run_type": "iteration", "real_time": $((count + 1)).0,
  "cpu_time": 1.0, "time_unit": "us", "iterations": 10, "bytes": 640}}]}}
JSON
"""


class RunTest(unittest.TestCase):
    def measured(self, times=(), rates=()):
        measurement = run.Measurement()
        for repetition, value in enumerate(times):
            measurement.times[repetition] = value
            measurement.repetitions.add(repetition)
        for repetition, value in enumerate(rates):
            measurement.rates[repetition] = value
            measurement.repetitions.add(repetition)
        return measurement

    def test_a_filter_names_the_suites_that_hold_a_match(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for suite, source in {"nn": "BENCHMARK(BM_Step)->Arg(1);", "io": "BENCHMARK_CAPTURE(BM_Read, large, 7);"}.items():
                (root / "bench" / suite).mkdir(parents=True)
                (root / "bench" / suite / "CMakeLists.txt").touch()
                (root / "bench" / suite / "a_bench.cpp").write_text(source)
            (root / "bench/ratios.json").write_text(json.dumps([{"ours": "bench_nn:BM_Step/workers:2", "at_most": 1}]))
            (root / "bench/gpu").mkdir()
            (root / "bench/gpu/CMakeLists.txt").touch()
            self.assertEqual(run.targets("", root, gpu=True), ["bench_gpu"])
            self.assertEqual(run.targets("Step", root), ["bench_nn"])
            self.assertEqual(run.targets("workers:2", root), ["bench_nn"])
            self.assertEqual(run.targets("Read/large", root), ["bench_io"])
            self.assertEqual(run.targets("", root), ["bench_io", "bench_nn"])
            self.assertEqual(run.targets("/rows:8", root), ["bench_io", "bench_nn"])  # no file contains such a name
            (root / "bench/peers").mkdir()
            (root / "bench/peers/programs.py").write_text('"""A peer."""\n# builds: program device\n')
            self.assertEqual(run.targets("programs", root), ["program", "device"])
            self.assertEqual(run.targets("Step", root), ["bench_nn"])

    def test_a_peer_writes_the_files_of_the_selected_benchmarks(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "models.py")
            script.write_text("# sets up: BM_Trained\nimport sys\nopen(sys.argv[2] + '/' + sys.argv[1], 'w').close()\n")
            for selected, written in {"BM_Other": False, "Trained": True, "models": True, "": True}.items():
                log = pathlib.Path(folder, selected or "all")
                log.mkdir()
                run.set_up(script, types.SimpleNamespace(filter=selected), log)
                self.assertEqual((log / "--set-up").exists(), written, selected)

    def test_only_a_run_with_gpu_shows_devices_to_its_programs(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            (root / "build/bin").mkdir(parents=True)
            (root / "bench/peers").mkdir(parents=True)
            (root / "bench/run.py").write_text(pathlib.Path(run.__file__).read_text())
            (root / "docs").mkdir()
            (root / "bench/ratios.json").write_text(json.dumps([
                {"name": "on a GPU", "ours": "bench_gpu:BM_Step", "peer": "gpu_training:step"},
                {"name": "on the CPU", "ours": "bench_nn:BM_Step", "peer": "python:step"}]))
            for suite in ("bench_gpu", "bench_nn"):
                program = root / "build/bin" / suite
                program.write_text(SUITE.format(folder=root) + f'echo "{suite} sees ${{CUDA_VISIBLE_DEVICES}}" >> {root}/seen\n')
                program.chmod(program.stat().st_mode | stat.S_IXUSR)
            for peer in ("gpu_training", "python"):
                (root / f"bench/peers/{peer}.py").write_text(
                    'import os, sys\nprint(\'{"name": "step", "value": 12, "unit": "us"}\')\n'
                    'print("step_compiled: failed\\nleft out: another: not installed", file=sys.stderr)\n'
                    f'open("{root}/seen", "a").write(f"{peer} sees {{os.environ[\'CUDA_VISIBLE_DEVICES\']}}\\n")\n')
            for flags, seen in ((["--gpu"], "bench_gpu sees 0\ngpu_training sees 0\n"), ([], "bench_nn sees \npython sees \n")):
                (root / "seen").unlink(missing_ok=True)
                done = subprocess.run([sys.executable, root / "bench/run.py", "--build", root / "build", "--repetitions", "1", *flags],
                                      capture_output=True, text=True, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
                self.assertEqual((root / "seen").read_text(), seen)
                self.assertIn("on a GPU" if flags else "on the CPU", done.stdout)
                self.assertNotIn("not measured", done.stdout)
                self.assertEqual("step_compiled: failed" in done.stderr, bool(flags))
                self.assertEqual("left out: another" in done.stderr, not flags)

    def test_a_ratio_is_formed_within_each_repetition(self):
        results = {"s:ours": self.measured(times=[1e-6, 2e-6]), "p:peer": self.measured(times=[3e-6, 4e-6])}
        values = run.evaluate({"ours": "s:ours", "peer": "p:peer"}, results)
        self.assertEqual([round(value, 9) for value in values], [3.0, 2.0])

    def test_twice_the_rate_is_a_ratio_of_two(self):
        results = {"s:ours": self.measured(rates=[200.0]), "p:peer": self.measured(rates=[100.0])}
        self.assertEqual(run.evaluate({"ours": "s:ours", "peer": "p:peer"}, results), [2.0])

    def test_a_counter_is_compared_with_what_the_peer_reports_in_its_name(self):
        results = {"s:ours": self.measured(rates=[7.0]), "p:peer": self.measured(rates=[100.0])}
        results["s:ours"].counters["steps"] = {0: 30.0}
        row = {"ours": "s:ours", "counter": "steps", "peer": "p:peer", "at_most": 1.2}
        self.assertEqual(run.evaluate(row, results), [0.3])
        results["p:peer"].counters["steps"] = {0: 60.0}
        self.assertEqual(run.evaluate(row, results), [0.5])

    def test_a_difference_has_the_unit_asked_for(self):
        results = {"s:ours": self.measured(times=[5e-6]), "s:hand": self.measured(times=[4e-6])}
        value, = run.evaluate({"ours": "s:ours", "minus": "s:hand", "unit": "us", "at_most": 1}, results)
        self.assertAlmostEqual(value, 1.0)

    def test_a_benchmark_that_did_not_run_gives_no_figure(self):
        self.assertEqual(run.evaluate({"ours": "s:ours", "peer": "p:peer"}, {"s:ours": self.measured(times=[1.0])}), [])

    def test_targets_bound_from_the_side_they_name(self):
        self.assertTrue(run.met({"at_least": 1.3}, 1.3))
        self.assertFalse(run.met({"at_least": 1.3}, 1.29))
        self.assertFalse(run.met({"at_most": 1}, 1.01))

    def test_a_row_is_slower_when_all_of_now_is_worse_than_all_of_before(self):
        before = {"lowest": 1.5, "highest": 1.7}
        ratio, memory = {"ours": "a", "peer": "b"}, {"ours": "a", "unit": "ms", "at_most": 3}
        self.assertEqual(run.change(ratio, [1.2, 1.4], before), "slower")
        self.assertEqual(run.change(ratio, [1.4, 1.6], before), "")
        self.assertEqual(run.change(ratio, [1.8], before), "faster")
        self.assertEqual(run.change(memory, [1.8, 1.9], before), "slower")
        self.assertEqual(run.change(memory, [1.4], before), "faster")
        self.assertEqual(run.change(ratio, [1.2], None), "")

    def test_a_whole_run_reports_what_the_programs_gave(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            (root / "build/bin").mkdir(parents=True)
            (root / "bench/peers").mkdir(parents=True)
            suite = root / "build/bin/bench_fake"
            suite.write_text(SUITE.format(folder=root))
            suite.chmod(suite.stat().st_mode | stat.S_IXUSR)
            (root / "bench/peers/python.py").write_text('print(\'{"name": "step", "value": 12, "unit": "us"}\')\n')
            (root / "bench/run.py").write_text(pathlib.Path(run.__file__).read_text())
            (root / "docs").mkdir()
            (root / "bench/ratios.json").write_text(json.dumps([
                {"name": "step over Python", "ours": "bench_fake:BM_Step", "peer": "python:step", "at_least": 7},
                {"name": "memory", "ours": "bench_fake:BM_Step", "counter": "bytes", "at_most": 600}]))
            printed = subprocess.run([sys.executable, root / "bench/run.py", "--build", root / "build", "--repetitions", "3"],
                                     capture_output=True, text=True, check=True).stdout
            page = (root / "docs/benchmarks.md").read_text()
            # the suite took 1, 2 and 3 us, the peer 12: ratios 12, 6, 4
            self.assertIn("| step over Python | 6.00 × | 4.00 – 12.0 | ≥ 7 × |  | **missed** |", page)
            self.assertIn("| memory | 640 | 640 – 640 | ≤ 600 |  | **missed** |", page)
            self.assertIn("| `bench_fake:BM_Step` | 2.00 |", page)
            self.assertIn("MISSED", printed)
            # the suite now takes 4 us and more: at most three times the peer's speed, before at least four times
            again = subprocess.run([sys.executable, root / "bench/run.py", "--build", root / "build", "--repetitions", "2"],
                                   capture_output=True, text=True, check=True).stdout
            self.assertIn("slower than published", again)
            self.assertRegex((root / "docs/benchmarks.md").read_text(),
                             r"\| step over Python \| 2\.70 × \| 2\.40 – 3\.00 \| ≥ 7 × \| 6\.00 ×,  \| \*\*missed\*\*, \*\*slower\*\* \|")
            self.assertIn("step over Python", (root / "docs/benchmarks.svg").read_text())

    def test_the_compiler_is_that_of_the_build(self):
        with tempfile.TemporaryDirectory() as folder:
            compiler = pathlib.Path(folder) / "own++"
            compiler.write_text("#!/bin/sh\necho own compiler 7\necho more\n")
            compiler.chmod(stat.S_IRWXU)
            (pathlib.Path(folder) / "CMakeCache.txt").write_text(f"A:STRING=1\nCMAKE_CXX_COMPILER:FILEPATH={compiler}\n")
            self.assertEqual(run.compiler(pathlib.Path(folder)), "own compiler 7")

    def test_the_picture_has_whole_labels_and_an_axis(self):
        long = "patches copied by a worker: training over a peer with quite a long name & settings"
        picture = run.chart([({"name": long, "ours": "a", "peer": "b", "at_least": 2}, [2.9, 3.0, 3.1]),
                             ({"name": "short", "ours": "a", "peer": "b"}, [0.4, 0.5])], "2026-11-21, commit abc")
        root = xml.etree.ElementTree.fromstring(picture)
        texts = {"".join(text.itertext()): text for text in root.iter("{http://www.w3.org/2000/svg}text")}
        self.assertGreaterEqual(float(texts[long].get("x")), 7 * len(long))  # the label ends there
        for mark in ("0.5", "1.0 = peer", "2", "our rate divided by the peer's, logarithmic"):
            self.assertIn(mark, texts)
        self.assertIn("2026-11-21, commit abc", picture)
        for text in texts.values():
            self.assertLess(float(text.get("x")), float(root.get("width")))
            self.assertLess(float(text.get("y")), float(root.get("height")))


if __name__ == "__main__":
    unittest.main()
