"""Makes a copy of a LibTorch from PyPI as a LibTorch without CUDA has it: no library of CUDA, and a CMake package that
looks for none. Files that do not differ are links.

usage: torch_without_cuda.py FOLDER_OF_TORCH NEW_FOLDER
"""
import pathlib
import re
import shutil
import subprocess
import sys

CUDA_TARGETS = "c10_cuda|torch_cuda|torch_cuda_library|torch_nvshmem"
CUDA_LIBRARY = re.compile(r"lib(c10_cuda|caffe2_nvrtc|torch_cuda.*|torch_nvshmem)\.so")


def replaced(text, pattern, replacement):
    new, count = re.subn(pattern, replacement, text)
    if count == 0:
        sys.exit(f"the CMake package of LibTorch has no text like {pattern}")
    return new


def targets(text):
    """Drops the paragraphs of CUDA's targets, and their names in lists."""
    text = "\n\n".join(part for part in text.split("\n\n")
                       if not re.match(rf"(# (Create imported|Import) target \"?|list\(APPEND \w+ |set_target_properties\()({CUDA_TARGETS})\b", part))
    return re.sub(rf"[ ;]({CUDA_TARGETS})\b", "", text)


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    shutil.rmtree(target, ignore_errors=True)
    (target / "lib").mkdir(parents=True)
    for file in source.joinpath("lib").glob("*.so*"):
        if not CUDA_LIBRARY.match(file.name):
            (target / "lib" / file.name).symlink_to(file)
    # libtorch.so has no code. It names the libraries that a program loads with it.
    shutil.copyfile(source / "lib/libtorch.so", tmp := target / "lib/libtorch.tmp")
    subprocess.run(["patchelf", "--remove-needed", "libtorch_cuda.so", tmp], check=True)
    tmp.rename(target / "lib/libtorch.so")
    (target / "include").symlink_to(source / "include")
    if (nvidia := source.parent / "nvidia").exists():  # for libtorch_cpu.so, which measures time with CUDA's profiler
        if not (target.parent / "nvidia").exists():
            (target.parent / "nvidia").symlink_to(nvidia)

    shutil.copytree(source / "share/cmake", target / "share/cmake")
    package = target / "share/cmake"
    for name, pattern, replacement in (
            ("Torch/TorchConfig.cmake", r"if\((?:ON|1)\)(\n  if\(MSVC\)\n    find_library\(CAFFE2_NVRTC)", r"if(OFF)\1"),
            ("Caffe2/Caffe2Config.cmake", r"if\((?:ON|1)\)(\n  # The file public/cuda.cmake)", r"if(OFF)\1")):
        file = package / name
        file.write_text(replaced(file.read_text(), pattern, replacement))
    for file in package.glob("Caffe2/Caffe2Targets*.cmake"):
        file.write_text(targets(file.read_text()))


if __name__ == "__main__":
    main()
