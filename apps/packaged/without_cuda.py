#!/usr/bin/env python3
"""Makes libraries with the names of LibTorch's and NVIDIA's that find no device.

    without_cuda.py --compiler COMPILER PROGRAM LIBRARY... FOLDER

A program that was linked with LIBRARY... starts with the results instead, where LibTorch has no CUDA: each function that
PROGRAM takes from a library returns "no device", and each variable is 0.
"""

import argparse
import os
import pathlib
import re
import subprocess


def output(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def symbols(file, *options):
    """The dynamic symbols of a file: name -> (version, kind, size)."""
    found = {}
    for line in output("nm", "-D", "-S", *options, file).splitlines():
        words = line.split()
        name, _, version = words[-1].partition("@")
        found[name] = (version.lstrip("@"), words[-2], int(words[1], 16) if len(words) == 4 else 8)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", required=True)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("library", type=pathlib.Path, nargs="+")
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    used = symbols(options.program)
    for library in options.library:
        soname = re.search(r"SONAME.*\[(.*)\]", output("readelf", "-d", library))[1]
        defined = symbols(library, "--defined-only")
        text, data, versions = [".text"], [".bss", ".balign 16"], {}
        for name in sorted(used.keys() & defined.keys()):
            version, kind, size = defined[name]
            if kind in "BDRVu" or name.startswith(("_init", "_fini")):
                if kind in "BD":
                    data += [f".globl {name}", f".type {name},@object", f".size {name},{size}", f"{name}: .zero {size}"]
                continue
            code = 100 if name.startswith("cuda") else 0  # cudaErrorNoDevice
            text += [f".globl {name}", f".type {name},@function", f"{name}: movl ${code}, %eax", "ret"]
            if version:
                versions.setdefault(version, []).append(name)
        source = options.folder / (soname + ".s")
        source.write_text("\n".join([*text, *data, '.section .note.GNU-stack,"",@progbits', ""]))
        script = options.folder / (soname + ".versions")
        script.write_text("".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in versions.items()))
        command = [options.compiler, "-shared", "-nostdlib", "-s", f"-Wl,-soname,{soname}", "-o", options.folder / soname, source]
        if versions:
            command.insert(1, f"-Wl,--version-script={script}")
        output(*command)
        os.remove(source)
        os.remove(script)
    (options.folder / "complete").touch()


if __name__ == "__main__":
    main()
