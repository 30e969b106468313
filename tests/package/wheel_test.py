#!/usr/bin/env python3
"""The wheel of ./dev package as auditwheel and pip see it.

    wheel_test.py WHEEL [unittest arguments]

Needs auditwheel in the Python that runs it.
"""

import email
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

WHEEL = pathlib.Path(sys.argv.pop(1)).resolve()
PROGRAMS = ["trainkit", "trainkit-emotion", "trainkit-gpt2rec", "trainkit-hsi", "trainkit-train", "trainkit-transformer"]
CARRIED = ["libtrainkit_ffmpeg.so", "libtrainkit_hdf5.so"]
LICENCES = ["Abseil", "FFmpeg", "HDF5", "cpp-httplib", "fmt", "glibc", "jemalloc", "libaec", "libpng", "matio", "nlohmann-json", "protozero",
            "xxHash", "yaml-cpp", "zlib"]
OF_TORCH = r"lib(torch|c10|cudart|nccl)\b.*|lib(torch|c10)_.*"
OF_SYSTEM = r"lib(c|m|gcc_s|stdc\+\+|pthread|dl|rt)\.so\..*|ld-linux-x86-64\.so\.2"


def needed(path):
    text = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name) / "trainkit"
        with zipfile.ZipFile(WHEEL) as file:
            cls.names = file.namelist()
            file.extractall(cls.folder.name)
        [metadata] = pathlib.Path(cls.folder.name).glob("*.dist-info/METADATA")
        cls.metadata = email.message_from_string(metadata.read_text())
        cls.series = sorted(path.name for path in (cls.root / "libexec/trainkit").iterdir() if path.is_dir())

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_its_name_size_and_requirement(self):
        self.assertRegex(WHEEL.name, r"^libtrainkit-[0-9.]+-py3-none-manylinux_2_3[45]_x86_64\.whl$")
        self.assertLessEqual(WHEEL.stat().st_size, 100e6)
        self.assertEqual(self.metadata["Name"], "libtrainkit")
        [requirement] = self.metadata.get_all("Requires-Dist")
        for series in self.series:
            self.assertNotIn(f"!={series}", requirement)
        self.assertRegex(requirement, r"^torch(==2\.\d+\.\*|[<>=!.*,0-9]*>=2\.\d+[<>=!.*,0-9]*)$")

    def test_auditwheel_finds_no_library_but_those_of_torch(self):
        answer = subprocess.run([sys.executable, "-m", "auditwheel", "show", "--json", WHEEL], capture_output=True, text=True)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        found = json.loads(answer.stdout)
        print(json.dumps(found))
        tag, symbols = (tuple(map(int, re.search(r"_(\d+)_(\d+)_", text).groups())) for text in (WHEEL.name, found["sym_tag"]))
        self.assertLessEqual(symbols, tag)
        for library in found["external_libs"]:
            self.assertRegex(library, f"^({OF_TORCH})$")

    def test_every_series_has_one_file_of_programs_that_needs_only_torch_and_the_system(self):
        self.assertEqual(sorted(path.name for path in (self.root / "bin").iterdir()), PROGRAMS)
        self.assertTrue(self.series)
        for series in self.series:
            folder = self.root / "libexec/trainkit" / series
            self.assertEqual(sorted(path.name for path in folder.iterdir()), ["programs", "without_cuda"])
            for library in needed(folder / "programs"):
                self.assertRegex(library, f"^({OF_TORCH}|{OF_SYSTEM})$")
            for path in (folder / "without_cuda").iterdir():
                self.assertEqual(needed(path), [])

    def test_carried_libraries_need_only_the_system(self):
        for name in CARRIED:
            for library in needed(self.root / "libexec/trainkit" / name):
                self.assertRegex(library, f"^({OF_SYSTEM})$")
        text = (self.root / "libexec/trainkit/libtrainkit_ffmpeg.so").read_bytes()
        self.assertIn(b"LGPL version 2.1 or later", text)
        self.assertNotIn(b"--enable-gpl", text)

    def test_every_library_inside_has_its_licence_and_source(self):
        folder = self.root / "share/doc/trainkit/licences"
        self.assertEqual(sorted(path.stem for path in folder.iterdir()), sorted(LICENCES))
        for path in folder.iterdir():
            self.assertRegex(path.read_text(), rf"^{path.stem}\nSource: .*deb\.debian\.org")


if __name__ == "__main__":
    unittest.main(verbosity=2)
