#!/usr/bin/env python3
"""The launcher of installed programs, with fake folders instead of LibTorch and of the programs.

    launcher_test.py LAUNCHER COMPILER
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

LAUNCHER, COMPILER = sys.argv.pop(1), sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """#!/bin/sh
echo "path=$LD_LIBRARY_PATH saved=$TRAINKIT_LD_LIBRARY_PATH arguments=$*"
"""


class LauncherTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name).resolve()
        self.prefix = self.root / "site-packages" / "trainkit"
        self.program("trainkit", PROGRAM)
        (self.root / "empty").mkdir()

    def tearDown(self):
        self.folder.cleanup()

    def program(self, name, text, series="2.11", file=None):
        for place in ("bin", f"libexec/trainkit/{series}"):
            (self.prefix / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(LAUNCHER, self.prefix / "bin" / name)
        path = self.prefix / "libexec/trainkit" / series / (file or name)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def torch(self, place, version="2.11.0+cu130"):
        """A folder that looks like a Python's torch package."""
        (self.root / place / "lib").mkdir(parents=True)
        (self.root / place / "lib" / "libtorch_cpu.so").touch()
        (self.root / place / "version.py").write_text(f"__all__ = []\n__version__ = '{version}'\n")
        return self.root / place

    def python3(self, packages):
        """A folder for PATH with a python3 that finds these packages."""
        folder = self.root / "python"
        folder.mkdir(exist_ok=True)
        (folder / "python3").write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
        (folder / "python3").chmod(0o755)
        return folder

    def start(self, *arguments, program="trainkit", path=None, cwd=None, **environment):
        command = [self.prefix / "bin" / program, *arguments]
        environment["PATH"] = str(path or self.root / "empty")
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=cwd or self.root)

    def assert_fails(self, result, *words):
        self.assertEqual(result.returncode, 2, result)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def assert_uses(self, result, torch):
        self.assertEqual(result.returncode, 0, result)
        self.assertIn(f"path={torch}/lib ", result.stdout)

    def test_without_libtorch_one_line_names_the_command_that_installs_it(self):
        self.assert_fails(self.start(), "trainkit: error[torch.missing] ", 'pip install "torch==2.11.*"')

    def test_each_place_beside_the_program_is_searched(self):
        for place in ("site-packages/trainkit/torch", "site-packages/torch", "site-packages/trainkit/libtorch",
                      "site-packages/trainkit/bin", "site-packages/trainkit/lib/python3.11/site-packages/torch",
                      "site-packages/trainkit/lib/python3.13/dist-packages/torch"):
            with self.subTest(place):
                torch = self.torch(place)
                self.assert_uses(self.start(), torch)
                shutil.rmtree(self.root / place / "lib")

    def test_trainkit_torch_is_a_package_or_its_libraries_or_the_folder_of_the_package(self):
        torch = self.torch("elsewhere/torch")
        for place in (torch, torch / "lib", torch.parent):
            with self.subTest(place):
                self.assert_uses(self.start(TRAINKIT_TORCH=str(place)), torch)

    def test_the_order_is_beside_the_program_then_the_variable_then_python(self):
        python, chosen = self.torch("packages/torch"), self.torch("chosen/torch")
        path = self.python3(python.parent)
        self.assert_uses(self.start(path=path), python)
        self.assert_uses(self.start(path=path, TRAINKIT_TORCH=str(chosen)), chosen)
        beside = self.torch("site-packages/torch")
        self.assert_uses(self.start(path=path, TRAINKIT_TORCH=str(chosen)), beside)

    def test_python_does_not_import_torch_and_does_not_look_in_the_working_folder(self):
        torch = self.torch("packages/torch")
        (torch / "__init__.py").write_text("raise SystemExit('torch was imported')")
        self.assert_uses(self.start(path=self.python3(torch.parent)), torch)
        self.assert_fails(self.start(path=self.python3(self.root / "empty"), cwd=torch.parent), "torch.missing")

    def test_another_version_is_refused_and_a_later_place_used(self):
        old = self.torch("site-packages/torch", "2.10.1")
        self.assert_fails(self.start(), f"error[torch.version] {old}", "got 2.10.1, expected 2.11", "pip install")
        self.assert_fails(self.start(TRAINKIT_TORCH=str(self.torch("other/torch", "2.110.0"))), "got 2.110.0")
        torch = self.torch("packages/torch")
        self.assert_uses(self.start(path=self.python3(torch.parent)), torch)

    def test_the_program_for_the_version_that_is_found_is_started(self):
        for series in ("2.9", "2.12"):
            self.program("trainkit", f"#!/bin/sh\necho {series}\n", series)
        for version, expected in {"2.9.0": "2.9\n", "2.12.1+cu130": "2.12\n"}.items():
            torch = self.torch(f"torch-{version}/torch", version)
            self.assertEqual(self.start(TRAINKIT_TORCH=str(torch)).stdout, expected)
        other = self.torch("torch-2.13/torch", "2.13.0")
        self.assert_fails(self.start(TRAINKIT_TORCH=str(other)), "got 2.13.0, expected 2.9, 2.11 or 2.12", 'pip install "torch==2.12.*"')
        self.assert_fails(self.start(), "LibTorch 2.9, 2.11 or 2.12 was not found", 'pip install "torch==2.12.*"')

    def test_one_file_with_all_programs_gets_the_name_of_the_launcher(self):
        (self.prefix / "libexec/trainkit/2.11/trainkit").unlink()
        self.program("trainkit-hsi", "", file="programs")
        source = self.root / "names.cpp"
        source.write_text("#include <cstdio>\nint main(int, char** argv) { std::puts(argv[0]); }")
        subprocess.run([COMPILER, source, "-o", self.prefix / "libexec/trainkit/2.11/programs"], check=True)
        torch = self.torch("site-packages/torch")
        result = self.start(program="trainkit-hsi")
        self.assertEqual((result.stdout, result.returncode), (f"{self.prefix}/bin/trainkit-hsi\n", 0), result)

    def test_cmake_prefix_names_the_library_of_the_series_in_a_package(self):
        library = self.prefix / "libtrainkit/2.11"
        library.mkdir(parents=True)
        torch = self.torch("chosen/torch")
        self.assertEqual(self.start("--cmake_prefix", TRAINKIT_TORCH=str(torch)).stdout, f"{library};{torch}\n")

    def test_a_libtorch_of_conda_or_of_a_distribution_is_refused(self):
        for library, place, builder in (("libprotobuf.so.32", "usr/torch", "a distribution"),
                                        ("libabsl_base.so.2501.0.0", "conda/torch", "conda-forge"),
                                        ("libgomp-12345.so.1", "conda/own/torch", None)):
            with self.subTest(builder):
                torch = self.torch(place)
                (self.root / "conda/conda-meta").mkdir(parents=True, exist_ok=True)
                self.shared_library(torch / "lib/libtorch_cpu.so", needs=library)
                result = self.start(TRAINKIT_TORCH=str(torch))
                if builder is None:
                    self.assert_uses(result, torch)
                else:
                    self.assert_fails(result, f"error[torch.build] {torch}: a LibTorch of {builder}, ", 'pip install "torch==2.11.*"', "from source")

    def test_a_system_with_an_older_c_library_is_named(self):
        self.torch("site-packages/torch")
        (self.root / "empty/libc.so.6").write_text("GLIBC_2.2.5 GLIBC_2.31")
        result = self.start(LD_LIBRARY_PATH=str(self.root / "empty"))
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(result.stderr.splitlines()[0],
                         "trainkit: error[program.glibc] trainkit: the system's C library is older than glibc 2.34")

    def test_a_libtorch_without_cuda_gets_libraries_that_find_no_device(self):
        self.linked("libc10_cuda.so")
        torch = self.torch("chosen/torch")
        folder = self.prefix / "libexec/trainkit/2.11/without_cuda"
        folder.mkdir()
        shutil.copy(self.root / "library.so", folder / "libc10_cuda.so")
        self.assertEqual(self.start(program="trainkit-linked", TRAINKIT_TORCH=str(torch)).returncode, 0)
        (torch / "lib/libc10_cuda.so").touch()  # one with CUDA uses its own
        self.assertNotEqual(self.start(program="trainkit-linked", TRAINKIT_TORCH=str(torch)).returncode, 0)

    def test_a_variable_that_names_no_libtorch_is_an_error(self):
        torch = self.torch("packages/torch")
        result = self.start(path=self.python3(torch.parent), TRAINKIT_TORCH=str(self.root / "empty"))
        self.assert_fails(result, "error[torch.place] TRAINKIT_TORCH", str(self.root / "empty"))

    def test_the_program_gets_its_arguments_and_the_library_path_of_before(self):
        torch = self.torch("chosen/torch")
        result = self.start("a", "b c", TRAINKIT_TORCH=str(torch), LD_LIBRARY_PATH="/nowhere")
        self.assertEqual(result.stdout, f"path={torch}/lib:/nowhere saved=/nowhere arguments=a b c\n")

    def test_cmake_prefix_names_the_prefix_and_libtorch(self):
        torch = self.torch("chosen/torch")
        result = self.start("--cmake_prefix", TRAINKIT_TORCH=str(torch))
        self.assertEqual(result.stdout, f"{self.prefix};{torch}\n")

    def test_the_version_of_a_trainer_needs_no_libtorch(self):
        self.program("trainkit-hsi", "#!/bin/sh\nexit 1\n")
        version = re.search(r"^project\(\w+ VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
        result = self.start("--version", program="trainkit-hsi")
        self.assertEqual((result.stdout, result.returncode), (f"trainkit-hsi {version}\n", 0))

    def test_a_link_to_the_launcher_starts_the_program(self):
        torch = self.torch("site-packages/torch")
        (self.root / "link").symlink_to(self.prefix / "bin/trainkit")
        result = subprocess.run([self.root / "link"], env={"PATH": ""}, capture_output=True, text=True)
        self.assert_uses(result, torch)

    def shared_library(self, path, needs):
        source = self.root / "needs.cpp"
        source.write_text("int g() { return 0; }")
        subprocess.run([COMPILER, "-shared", "-fPIC", f"-Wl,-soname,{needs}", source, "-o", self.root / "needed.so"], check=True)
        source.write_text("int g(); int h() { return g(); }")
        subprocess.run([COMPILER, "-shared", "-fPIC", source, self.root / "needed.so", "-o", path], check=True)

    def linked(self, library):
        """A program that needs a missing shared library."""
        program = self.program("trainkit-linked", "")
        source = self.root / "a.cpp"
        source.write_text("int f() { return 0; }")
        subprocess.run([COMPILER, "-shared", "-fPIC", f"-Wl,-soname,{library}", source, "-o", self.root / "library.so"],
                       check=True)
        source.write_text("int f(); int main() { return f(); }")
        subprocess.run([COMPILER, source, self.root / "library.so", "-o", program], check=True)

    def test_a_missing_library_is_named_with_its_debian_package(self):
        self.linked("libavcodec.so.4242")
        torch = self.torch("chosen/torch")
        result = self.start(program="trainkit-linked", TRAINKIT_TORCH=str(torch))
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr.splitlines(), [
            "trainkit: error[program.library] trainkit-linked: missing shared libraries: libavcodec.so.4242",
            "  hint: on Debian 12: apt-get install libavcodec4242"])

    def test_a_libtorch_without_a_library_that_the_program_uses_is_refused(self):
        self.linked("libc10_cuda.so")
        torch = self.torch("chosen/torch")
        result = self.start(program="trainkit-linked", TRAINKIT_TORCH=str(torch))
        self.assert_fails(result, f"error[torch.library] {torch}", "libc10_cuda.so", 'pip install "torch==2.11.*"')

    def test_libraries_in_the_nvidia_packages_beside_torch_are_found(self):
        self.linked("libcudart.so.13")
        torch = self.torch("packages/torch")
        cuda = torch.parent / "nvidia/cu13/lib"
        cuda.mkdir(parents=True)
        shutil.copy(self.root / "library.so", cuda / "libcudart.so.13")
        self.assertEqual(self.start(program="trainkit-linked", TRAINKIT_TORCH=str(torch)).returncode, 0)


if __name__ == "__main__":
    unittest.main()
