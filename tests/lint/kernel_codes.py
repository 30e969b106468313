#!/usr/bin/env python3
"""Checks that compiled CUDA objects contain code for each architecture they were built for.

    kernel_codes.py "sm_75 ... compute_120" OBJECT...

Reads the headers of nvcc's "fat binaries" in the section .nv_fatbin. If cuobjdump is found (CUOBJDUMP, PATH, or next to
NVCC), its listing must be the same. Exit status: 0 if all codes are present, else 1.
"""

import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

MAGIC = 0xBA55ED50  # of a fat binary; not documented by NVIDIA, hence the comparison with cuobjdump
PTX, MACHINE_CODE = 1, 2  # kinds of entries


def section(data, wanted):
    """The bytes of a section of a 64-bit little-endian ELF file; empty if there is no such section."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    table, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        begin = headers[names][4] + name
        if data[begin:data.index(b"\0", begin)] == wanted:
            return data[offset:offset + length]
    return b""


def codes_of(data):
    """Names of all code in an object, sorted: sm_89, compute_120."""
    fat, at, found = section(data, b".nv_fatbin"), 0, set()
    while at + 16 <= len(fat):
        magic, _, header, length = struct.unpack_from("<IHHQ", fat, at)
        if magic != MAGIC:
            raise ValueError(f"no fat binary at byte {at} of .nv_fatbin")
        entry, end = at + header, at + header + length
        while entry < end:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", fat, entry)
            capability, = struct.unpack_from("<I", fat, entry + 28)
            if kind in (PTX, MACHINE_CODE):
                found.add(f"{'compute' if kind == PTX else 'sm'}_{capability}")
            entry += entry_header + payload
        at = -(-end // 8) * 8
    return sorted(found)


def listed(cuobjdump, path):
    """The same names from cuobjdump."""
    found = set()
    for option, prefix in (("--list-elf", "sm"), ("--list-ptx", "compute")):
        text = subprocess.run([cuobjdump, option, path], capture_output=True, text=True, check=True).stdout
        found.update(f"{prefix}_{number}" for number in re.findall(r"\.sm_(\d+)[af]?\.(?:cubin|ptx)", text))
    return sorted(found)


def find_cuobjdump():
    beside = pathlib.Path(os.environ.get("NVCC", "nvcc")).with_name("cuobjdump")
    return os.environ.get("CUOBJDUMP") or shutil.which("cuobjdump") or shutil.which(str(beside))


def main():
    expected = sorted({re.sub("[af]$", "", name) for name in sys.argv[1].split()})
    cuobjdump = find_cuobjdump()
    wrong = not expected
    for path in sys.argv[2:]:
        found = codes_of(pathlib.Path(path).read_bytes())
        ways = {"headers": found, **({"cuobjdump": listed(cuobjdump, path)} if cuobjdump else {})}
        for way, codes in ways.items():
            print(f"{pathlib.Path(path).name}: {' '.join(codes)} ({way})")
            if codes != expected:
                print(f"{path}: expected {' '.join(expected)}")
                wrong = True
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
