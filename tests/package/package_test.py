#!/usr/bin/env python3
"""The installed tree, moved after installation. Part of the normal tests; compiles one small program.

    package_test.py BUILD SOURCE TORCH COMPILER WORK [unittest arguments]

BUILD: a finished build. TORCH: the torch package or LibTorch folder that it was built with. WORK: a folder for output.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

BUILD, SOURCE, TORCH = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(3))
COMPILER = sys.argv.pop(1)
WORK = pathlib.Path(sys.argv.pop(1)).resolve()
FIRST, PREFIX = WORK / "first", WORK / "moved"
PROGRAMS = ["trainkit", "trainkit-emotion", "trainkit-gpt2rec", "trainkit-hsi", "trainkit-train", "trainkit-transformer"]


def run(*command, environment=None, cwd=None):
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **(environment or {})}
    return subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, cwd=cwd or WORK)


def setUpModule():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    subprocess.run(["cmake", "--install", BUILD, "--prefix", FIRST, "--strip"], check=True, stdout=subprocess.DEVNULL)
    FIRST.rename(PREFIX)
    (WORK / "empty").mkdir()


class InstalledTreeTest(unittest.TestCase):
    def files(self):
        return [path for path in PREFIX.rglob("*") if path.is_file()]

    def test_every_program_has_a_launcher(self):
        self.assertEqual(sorted(path.name for path in (PREFIX / "bin").iterdir()), PROGRAMS)
        [folder] = (PREFIX / "libexec/trainkit").iterdir()
        self.assertRegex(folder.name, r"^2\.\d+$")
        self.assertEqual(sorted(path.name for path in folder.iterdir()), PROGRAMS)
        self.assertTrue((PREFIX / "share/trainkit/config_3x4090.json").is_file())

    def test_no_path_of_the_build_machine_remains_in_any_file(self):
        machine = {str(place).encode() for place in (BUILD, SOURCE, FIRST, TORCH, TORCH.parent, pathlib.Path.home())}
        machine -= {b"/", b"/usr"}
        own = re.compile(rb"/(?:work|root|tmp|home/\w+|Users/\w+)/[\w.+/-]*(?:libtrainkit|torch|site-packages|\.cpp|\.cu)\b")
        for path in self.files():
            content = path.read_bytes()
            for place in machine:
                self.assertNotIn(place + b"/", content, path)
            found = own.search(content)
            self.assertIsNone(found, f"{path}: {found and found.group()}")

    def test_no_program_has_a_runpath(self):
        for path in (PREFIX / "libexec/trainkit").glob("*/*"):
            header = run("readelf", "-d", path).stdout
            self.assertIn("libtorch_cpu.so", header)
            self.assertNotRegex(header, "RPATH|RUNPATH")

    def test_text_files_of_the_package_hold_no_absolute_path(self):
        for path in self.files():
            if path.suffix in (".cmake", ".pc"):
                text = re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.M)
                self.assertEqual(re.findall(r"(?<![\w}./*])/[A-Za-z][\w/]*", text), [], path)


class ProgramTest(unittest.TestCase):
    """Each way to find LibTorch, with a program that uses it."""

    def trains(self, prefix, **environment):
        shutil.rmtree(WORK / "run", ignore_errors=True)
        return run(prefix / "bin/trainkit-transformer", "--make_demo_data", WORK / "run/text", environment=environment)

    def python3(self, packages):
        """A folder for PATH with a python3 that imports from these packages."""
        shutil.rmtree(WORK / "python", ignore_errors=True)
        (WORK / "python").mkdir()
        (WORK / "python/python3").write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
        (WORK / "python/python3").chmod(0o755)
        return str(WORK / "python")

    def test_without_libtorch_one_line_says_what_to_install(self):
        for name in PROGRAMS:
            result = run(PREFIX / "bin" / name, "--help", environment={"PATH": str(WORK / "empty")})
            self.assertEqual(result.returncode, 2, result)
            self.assertEqual(result.stdout, "")
            self.assertRegex(result.stderr, r'\Atrainkit: error\[torch\.missing\] [^\n]*pip install "torch==2\.\d+\.\*"\n\Z')

    def test_trainkit_torch_is_used(self):
        result = self.trains(PREFIX, PATH=str(WORK / "empty"), TRAINKIT_TORCH=str(TORCH))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_torch_of_python3_is_used(self):
        if not (TORCH / "__init__.py").exists():
            self.skipTest("LibTorch is not the torch package of a Python")
        result = self.trains(PREFIX, PATH=self.python3(TORCH.parent))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_libtorch_beside_the_installation_is_used(self):
        packages = WORK / "packages"
        shutil.rmtree(packages, ignore_errors=True)
        packages.mkdir()
        (packages / "torch").symlink_to(TORCH)
        shutil.copytree(PREFIX, packages / "trainkit")
        result = self.trains(packages / "trainkit", PATH=str(WORK / "empty"))
        self.assertEqual(result.returncode, 0, result.stderr)
        shutil.rmtree(packages)

    def test_every_program_starts(self):
        for name in PROGRAMS:
            result = run(PREFIX / "bin" / name, "--help", environment={"TRAINKIT_TORCH": str(TORCH)})
            self.assertEqual((result.returncode, result.stderr), (0, ""), name)

    def test_launch_starts_programs_of_its_own_folder_and_gives_others_the_library_path_of_before(self):
        given = {"TRAINKIT_TORCH": str(TORCH), "LD_LIBRARY_PATH": "/before"}
        launch = [PREFIX / "bin/trainkit", "launch", "--nproc_per_node", "1", "--"]
        result = run(*launch, "trainkit-transformer", "--help", environment=given)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("--block_size", result.stdout)
        result = run(*launch, "/bin/sh", "-c", 'echo "path is $LD_LIBRARY_PATH"', environment=given)
        self.assertIn("path is /before\n", result.stdout)

    def test_plan_finds_the_trainers(self):
        self.trains(PREFIX, TRAINKIT_TORCH=str(TORCH))
        text = next((WORK / "run/text").glob("*.txt"))
        result = run(PREFIX / "bin/trainkit", "plan", "--app", "transformer", "--gpu_memory", "24GiB", "--", "--input", text,
                     environment={"TRAINKIT_TORCH": str(TORCH)})
        self.assertEqual(result.returncode, 0, result.stderr)


class ConsumerTest(unittest.TestCase):
    """Projects that use the installed library."""

    def configure(self, name, lines, *arguments, toolkit=True):
        folder = WORK / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n" + lines)
        prefix = run(PREFIX / "bin/trainkit", "--cmake_prefix", environment={"TRAINKIT_TORCH": str(TORCH)}).stdout.strip()
        self.assertEqual(prefix, f"{PREFIX};{TORCH}")
        variables = {name: os.environ[name] for name in ("CUDACXX", "CUDA_TOOLKIT_ROOT_DIR", "CUDA_HOME") if toolkit and name in os.environ}
        variables["TORCH_CUDA_ARCH_LIST"] = "8.0"  # else LibTorch's package compiles a program that looks for GPUs
        if "CUDA_TOOLKIT_ROOT_DIR" in variables:
            arguments += (f"-DCUDA_TOOLKIT_ROOT_DIR={variables['CUDA_TOOLKIT_ROOT_DIR']}",)
        return run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}",
                   f"-DCMAKE_CXX_COMPILER={COMPILER}", *arguments, environment=variables)

    # packages that core does not need, treated as not installed
    ABSENT = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("FFmpeg", "PNG", "Matio", "ZLIB", "yaml-cpp")]

    def test_core_needs_none_of_the_packages_of_other_modules(self):
        show = """
get_target_property(modules trainkit::trainkit INTERFACE_LINK_LIBRARIES)
message(STATUS "modules: ${modules}")
"""
        result = self.configure("core", "find_package(trainkit REQUIRED COMPONENTS core optim)" + show, *self.ABSENT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("modules: trainkit::core;trainkit::amp;trainkit::optim\n", result.stdout)

    def test_a_module_brings_the_packages_of_those_below_it(self):
        result = self.configure("config", "find_package(trainkit REQUIRED COMPONENTS config)", *self.ABSENT)
        self.assertIn("yaml-cpp", result.stderr)
        result = self.configure("train", "find_package(trainkit REQUIRED COMPONENTS data train)", self.ABSENT[1])
        self.assertIn("PNG", result.stderr)

    def test_libraries_that_are_loaded_at_their_first_use_are_not_searched_for(self):
        result = self.configure("late", "find_package(trainkit REQUIRED)", self.ABSENT[0], self.ABSENT[2])
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_second_find_package_adds_modules(self):
        lines = """
find_package(trainkit REQUIRED COMPONENTS optim)
find_package(trainkit REQUIRED COMPONENTS memory)
get_target_property(modules trainkit::trainkit INTERFACE_LINK_LIBRARIES)
list(SORT modules)
message(STATUS "modules: ${modules}")
"""
        result = self.configure("twice", lines)
        self.assertIn("modules: trainkit::amp;trainkit::core;trainkit::memory;trainkit::optim\n", result.stdout)

    def test_no_cuda_toolkit_is_needed(self):
        lines = """
find_package(trainkit REQUIRED COMPONENTS core)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/main.cpp "int main() {}")
add_executable(program ${CMAKE_CURRENT_BINARY_DIR}/main.cpp)
target_link_libraries(program PRIVATE trainkit::trainkit)
trainkit_precompile(program)
get_target_property(precompiled program PRECOMPILE_HEADERS)
message(STATUS "cuda: ${CUDA_FOUND}, precompiled: ${precompiled}")
"""
        if not (TORCH / "lib/libtorch_cuda.so").exists():
            self.skipTest("a LibTorch without CUDA")
        result = self.configure("no_toolkit", lines, "-Dtrainkit_NVCC=OFF", toolkit=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("no CUDA toolkit found", result.stdout)
        self.assertRegex(result.stdout, r"cuda: , precompiled: .*torch/nn/module\.h")

    def test_pkg_config_is_enough_to_build_the_consumer(self):
        if shutil.which("pkg-config") is None:
            self.skipTest("no pkg-config")
        flags = run("pkg-config", f"--define-variable=torch={TORCH}", "--cflags", "--libs", "trainkit",
                    environment={"PKG_CONFIG_PATH": str(PREFIX / "lib/pkgconfig")})
        self.assertEqual(flags.returncode, 0, flags.stderr)
        flags = flags.stdout.split()
        result = run(COMPILER, "-c", SOURCE / "examples/consumer/main.cpp", "-o", WORK / "consumer.o", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        modules = [flag for flag in flags if flag.startswith("-ltrainkit_")]
        every_module = ["-Wl,--whole-archive", *modules, "-Wl,--no-whole-archive"]
        for name, first in {"all": every_module, "consumer": []}.items():
            result = run(COMPILER, WORK / "consumer.o", "-o", WORK / name, f"-L{PREFIX / 'lib'}", *first, *flags)
            self.assertEqual(result.returncode, 0, result.stderr)
        result = run(WORK / "consumer")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"y = (3|2\.99)\S* x")


if __name__ == "__main__":
    unittest.main(verbosity=2)
