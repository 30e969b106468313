#!/usr/bin/env python3
"""Measures compile times, and prints the table of docs/building.md.

    bench/build_time.py [ROW ...]     rows: transformer, everything, test, change, readme, bench, demo (all by default)

Each row starts from scratch in a separate folder (.deps/build-time), without ccache, with the packages of `./dev setup`
already installed; only `demo` installs everything, on a fresh Debian 12 (it needs root and debootstrap). Wall time and
processor time are printed in seconds. Run nothing else on the machine.
"""

import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORK = ROOT / ".deps/build-time"
BUILD = WORK / "build"
ENVIRONMENT = {**os.environ, "CCACHE_DISABLE": "1", "TRAINKIT_BUILD": str(BUILD)}


def run(command, **options):
    """Runs a command and returns (wall seconds, processor seconds); its output goes to .deps/build-time/log."""
    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    with open(WORK / "log", "a") as log:
        print("+", *command, file=log, flush=True)
        start, before = time.monotonic(), used()
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT, **options)
        wall = time.monotonic() - start
    if done.returncode:
        sys.exit(f"build_time: failed ({done.returncode}): {' '.join(map(str, command))}; see {WORK / 'log'}")
    return wall, used() - before


def from_scratch():
    shutil.rmtree(BUILD, ignore_errors=True)


def transformer():
    from_scratch()
    return run(["./dev", "build", "trainkit-transformer"])


def everything():
    from_scratch()
    return run(["./dev", "build"])


def test():
    from_scratch()
    return run(["./dev", "test"])


def change():
    """Changes a line of prefetcher.cpp: `./dev test -R unit.data.prefetcher` compiles, links and runs its tests."""
    command = ["./dev", "test", "-R", r"^unit\.data\.prefetcher$"]
    run(command)
    source = ROOT / "libtrainkit/src/data/loader/prefetcher.cpp"
    text = source.read_text()
    try:
        source.write_text(text + "// one line\n")
        return run(command)
    finally:
        source.write_text(text)
        run(command)


def readme():
    """Compiles and links the README's program with the installed library and CMAKE_BUILD_TYPE=Release."""
    run(["./dev", "build"])
    prefix, project = WORK / "installed", WORK / "readme"
    shutil.rmtree(prefix, ignore_errors=True)
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir(parents=True)
    run(["cmake", "--install", BUILD, "--prefix", prefix])
    shutil.copy(ROOT / "examples/readme.cpp", project / "main.cpp")
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(readme LANGUAGES CXX)\nfind_package(trainkit REQUIRED)\n"
        "add_executable(program main.cpp)\ntarget_link_libraries(program PRIVATE trainkit::trainkit)\n")
    compiler = os.environ.get("CXX") or shutil.which("clang++-19") or "c++"
    run(["bash", "-c", f". .deps/environment && cmake -G Ninja -S {project} -B {project}/build -DCMAKE_BUILD_TYPE=Release "
                       f"-DCMAKE_CXX_COMPILER={compiler} -DCMAKE_PREFIX_PATH='{prefix}' -DTorch_DIR=$Torch_DIR"])
    return run(["cmake", "--build", project / "build"])


def bench():
    """Builds the targets of `./dev bench --filter Rows` in a tree where the library is built."""
    run(["./dev", "build", "trainkit_train"])
    names = subprocess.run(["python3", "bench/run.py", "--targets", "--filter", "Rows"], cwd=ROOT, capture_output=True, text=True,
                           check=True).stdout.split()
    return run(["./dev", "build", *names])


def demo():
    """Runs `./dev demo` of a clone on a fresh Debian 12, installation included."""
    debian = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / "trainkit-build-time-debian"
    shutil.rmtree(debian, ignore_errors=True)
    try:
        run(["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", debian])
        run(["git", "clone", "-q", ROOT, debian / "trainkit"])
        # This machine's network settings: name servers, and its certificates under a name that no package overwrites
        # (pip prefers REQUESTS_CA_BUNDLE to its own PIP_CERT).
        shutil.copy("/etc/resolv.conf", debian / "etc/resolv.conf")
        shutil.copy(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"), debian / "etc/build-time.crt")
        for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            ENVIRONMENT[name] = "/etc/build-time.crt"
        run(["mount", "-t", "proc", "proc", debian / "proc"])
        try:
            return run(["chroot", debian, "/trainkit/dev", "demo"])
        finally:
            run(["umount", debian / "proc"])
    finally:
        shutil.rmtree(debian, ignore_errors=True)


ROWS = {
    "transformer": (transformer, "`./dev build trainkit-transformer` from scratch", 180),
    "demo": (demo, "`./dev demo` on a fresh Debian 12, installation included", 480),
    "everything": (everything, "library, trainers, tests, examples from scratch (`./dev build`)", 600),
    "test": (test, "`./dev test` from scratch, installation excluded", 1200),
    "change": (change, "one line changed in `prefetcher.cpp`: rebuild and run its tests", 20),
    "readme": (readme, "the README's program against the installed library, compile and link", 12),
    "bench": (bench, "`./dev bench --filter Rows`: its builds, the library built", None),
}


def main():
    if "--help" in sys.argv or "-h" in sys.argv:
        print(__doc__)
        return
    wanted = sys.argv[1:] or list(ROWS)
    unknown = set(wanted) - set(ROWS)
    if unknown:
        sys.exit(f"build_time: unknown row {', '.join(sorted(unknown))}; rows: {', '.join(ROWS)}")
    WORK.mkdir(parents=True, exist_ok=True)
    subprocess.run(["./dev", "setup"], cwd=ROOT, check=True)
    print("| what | wall time | processor time | target |\n|---|---|---|---|", flush=True)
    for row in wanted:
        measure, what, target = ROWS[row]
        wall, cpu = measure()
        print(f"| {what} | {wall:.0f} s | {cpu:.0f} s | {f'{target} s' if target else ''} |", flush=True)


if __name__ == "__main__":
    main()
