#!/usr/bin/env python3
"""same_bits.py reports other bits, and ignores times."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

RUN = {
    "checkpoints/step-00000002/model.safetensors": b"weights",
    "metrics.jsonl": b'{"step":1,"split":"train","loss":2.5,"time":1.5}\n{"step":2,"split":"train","loss":2.25,"samples_per_second":9}\n',
    "summary.json": b'{"steps": 2, "final": {"loss": 2.25}, "wall_seconds": 3, "versions": {"trainkit": "0.1"}}',
    "results/scores.json": b"{}",
    "report.html": b"at noon",
    "tensorboard/events.1": b"1",
}


class SameBitsTest(unittest.TestCase):
    def compare(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            for run, files in (("a", RUN), ("b", {**RUN, **changes})):
                for name, content in files.items():
                    path = pathlib.Path(folder) / run / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if content is not None:
                        path.write_bytes(content)
            done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("same_bits.py"), "trainer", f"{folder}/a", f"{folder}/b"],
                                  capture_output=True, text=True)
            self.assertEqual(done.stderr, "")
            return done.returncode, done.stdout

    def test_equal_runs(self):
        self.assertEqual(self.compare({}), (0, "same    trainer: 4 files, 0.0 MB\n"))

    def test_other_times(self):
        changes = {"metrics.jsonl": RUN["metrics.jsonl"].replace(b"1.5}", b"7.5}").replace(b":9}", b":8}"),
                   "summary.json": RUN["summary.json"].replace(b": 3,", b": 4,").replace(b"0.1", b"0.2"),
                   "report.html": b"at one", "tensorboard/events.1": None, "tensorboard/events.2": b"2"}
        self.assertEqual(self.compare(changes)[0], 0)

    def test_other_bits(self):
        for changes, words in (({"checkpoints/step-00000002/model.safetensors": b"weightz"}, "7 and 7 bytes, the first other byte is 6"),
                               ({"results/scores.json": b"{ }"}, "results/scores.json: 2 and 3 bytes"),
                               ({"metrics.jsonl": RUN["metrics.jsonl"].replace(b"2.25", b"2.250")}, "record 2: loss is 2.25 and 2.250"),
                               ({"metrics.jsonl": RUN["metrics.jsonl"] * 2}, "metrics.jsonl: 2 records and 4"),
                               ({"summary.json": RUN["summary.json"].replace(b"2.25", b"2.5")}, "summary.json: record 1: final is"),
                               ({"results/scores.json": None}, "results/scores.json is only in"),
                               ({"results/more.json": b"{}"}, "results/more.json is only in")):
            code, output = self.compare(changes)
            self.assertEqual(code, 1)
            self.assertIn("DIFFERS trainer: 1 of ", output)
            self.assertIn(words, output)


if __name__ == "__main__":
    unittest.main()
