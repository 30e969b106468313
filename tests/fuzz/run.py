#!/usr/bin/env python3
"""Runs the fuzz targets and prints their findings: `./dev fuzz [MINUTES] [TARGET...]` calls it.

Every program fuzz_<target> of BUILD starts from its own seeds, the repository's corpus and useful inputs of earlier
runs in CORPUS/<target>. A finding is minimised and saved in CORPUS/<target>.findings.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# Memory limits for any file: of one block, and of the whole process (mostly LibTorch and the sanitizer).
LIMITS = ["-malloc_limit_mb=256", "-rss_limit_mb=3072", "-timeout=20", "-report_slow_units=3600"]


def environment(scratch):
    env = dict(os.environ, TMPDIR=scratch, OMP_NUM_THREADS="1")
    env["ASAN_OPTIONS"] = "allocator_may_return_null=1:detect_leaks=1:handle_abort=1:malloc_context_size=0"
    env["UBSAN_OPTIONS"] = "print_stacktrace=1"
    return env


def minimise(program, finding, env):
    """Minimises a failing input, for at most one minute."""
    small = finding.with_name("min-" + finding.name)
    command = [program, "-minimize_crash=1", "-max_total_time=60", *LIMITS, f"-exact_artifact_path={small}", finding]
    subprocess.run(list(map(str, command)), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return small if small.exists() else finding


def run_target(target, args, seconds):
    program = args.build / "bin" / f"fuzz_{target}"
    corpus, findings = args.corpus / target, args.corpus / f"{target}.findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    before = set(findings.iterdir())
    with tempfile.TemporaryDirectory(prefix="trainkit-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        env = environment(scratch)
        seeds = pathlib.Path(scratch, "seeds")
        subprocess.run([str(program), "--write_seeds", str(seeds)], env=env, check=True, stderr=subprocess.DEVNULL)
        folders = [corpus, seeds] + [folder for folder in [HERE / "corpus" / target] if folder.is_dir()]
        command = [program, *LIMITS, "-print_final_stats=1", "-reload=0", f"-artifact_prefix={findings}/", f"-seed={args.seed}"]
        dictionary = HERE / "dictionaries" / f"{target}.txt"
        if dictionary.exists():
            command.append(f"-dict={dictionary}")
        command.append(f"-runs={args.runs}" if args.runs else f"-max_total_time={max(1, round(seconds))}")
        start = time.monotonic()
        log = args.corpus / f"{target}.log"
        with log.open("w") as out:
            code = subprocess.run(list(map(str, command + folders)), env=env, stdout=out, stderr=out).returncode
        wall = time.monotonic() - start
        text = log.read_text(errors="replace")
        runs = int((re.findall(r"stat::number_of_executed_units: *(\d+)", text) or re.findall(r"^#(\d+)\t", text, re.M) or [0])[-1])
        found = [minimise(program, path, env) for path in sorted(set(findings.iterdir()) - before)]
    return {"target": target, "code": code, "runs": runs, "wall": wall, "log": log, "found": found,
            "coverage": int((re.findall(r"cov: (\d+)", text) or [0])[-1]),
            "corpus": sum(1 for _ in corpus.iterdir())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default="build-fuzz")
    parser.add_argument("--corpus", type=pathlib.Path, default=".deps/fuzz")
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together")
    parser.add_argument("--runs", type=int, default=0, help="inputs of each target, instead of a time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=int(time.time()) % 2**31, help="of libFuzzer's choices")
    parser.add_argument("targets", nargs="*")
    args = parser.parse_args()
    args.build, args.corpus = args.build.resolve(), args.corpus.resolve()
    known = sorted(path.name.removeprefix("fuzz_") for path in (args.build / "bin").glob("fuzz_*"))
    unknown = [target for target in args.targets if target not in known]
    if unknown or not known:
        sys.exit(f"unknown target {', '.join(unknown)}; available: {', '.join(known)}")
    targets = args.targets or known
    jobs = min(args.jobs, len(targets))
    seconds = args.minutes * 60 * jobs / len(targets)
    results = []
    print(f"{'target':<20} {'inputs':>10} {'per second':>10} {'coverage':>8} {'corpus':>6}  findings", flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(run_target, target, args, seconds) for target in targets]):
            r = future.result()
            results.append(r)
            found = f"{len(r['found'])}" if r["found"] or r["code"] == 0 else f"ended with {r['code']}, see {r['log']}"
            print(f"{r['target']:<20} {r['runs']:>10,} {r['runs'] / max(r['wall'], 1e-9):>10,.0f} {r['coverage']:>8,} "
                  f"{r['corpus']:>6,}  {found}", flush=True)
    print(f"seed {args.seed}, {sum(r['runs'] for r in results):,} inputs in all")
    for r in results:
        for path in r["found"]:
            print(f"\n{r['target']}: {path}\n  reproduce:  {args.build}/bin/fuzz_{r['target']} {path}\n"
                  f"  after the fix: cp {path} tests/fuzz/corpus/{r['target']}/, which ./dev test replays")
    sys.exit(any(r["code"] != 0 for r in results))


if __name__ == "__main__":
    main()
