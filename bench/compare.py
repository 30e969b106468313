#!/usr/bin/env python3
"""Compares the benchmarks of the working tree with those of another commit.

    ./dev bench --compare REF [--gpu] [--filter REGEX] [--quick] [--repetitions N] [--removed REGEX]

Builds the matching suites of both in the same way, then runs them in turns, N times (default 5), on one machine: in each
repetition first one, then the other goes first. A benchmark is slower, or faster, if its slowest and fastest repetition do
not overlap with those of the other commit. One that seems slower runs again, 15 times. Exit code 1 if a benchmark is
slower, or if one of the other commit is missing now (--removed names those that were removed on purpose).
"""

import argparse
import copy
import pathlib
import re
import statistics
import sys

import run


def spread(values):
    return min(values), statistics.median(values), max(values)


def verdict(now, before):
    """"slower" or "faster" if no repetition overlaps; else ""."""
    if min(now) > max(before):
        return "slower"
    return "faster" if max(now) < min(before) else ""


def rows(now, before):
    """(name, medians in seconds now and before, lowest and highest ratio of a repetition, verdict), slowest first. The
    ratio is the time of the other commit over the time now: above 1 is faster."""
    found = []
    for name in sorted(set(now) & set(before)):
        shared = sorted(set(now[name].times) & set(before[name].times))
        if not shared:
            continue
        ours, theirs = ([times[i] for i in shared] for times in (now[name].times, before[name].times))
        ratios = [theirs[i] / ours[i] for i in range(len(shared)) if ours[i] > 0]
        if ratios:
            found.append((name, statistics.median(ours), statistics.median(theirs), spread(ratios), verdict(ours, theirs)))
    return sorted(found, key=lambda row: row[3][1])


def printed(found, ref):
    lines = [f"{'benchmark':60} {'now, us':>12} {ref[:12] + ', us':>16} {'ratio':>7}  lowest - highest"]
    for name, ours, theirs, (low, median, high), change in found:
        lines.append(f"{name:60} {ours * 1e6:12,.3f} {theirs * 1e6:16,.3f} {median:7.2f}  {low:.2f} - {high:.2f}  {change}".rstrip())
    return "\n".join(lines)


AGAIN = 15  # repetitions of a benchmark that seems slower


def measure(options, suites, repetitions):
    """Runs the suites of both builds in turns. Returns the measurements of each build by the names of benchmarks."""
    results = {"now": {}, "before": {}}
    for repetition in range(repetitions):
        print(f"repetition {repetition + 1} of {repetitions}", flush=True)
        order = ["now", "before"] if repetition % 2 == 0 else ["before", "now"]
        for suite in suites:
            for which in order:
                build = getattr(options, which)
                if not (build / "bin" / suite).exists():
                    continue
                log = build / "bench"
                log.mkdir(exist_ok=True)
                run.run_suite(build / "bin" / suite, options, repetition, results[which], log)
    return results


def measured_again(options, found):
    """Returns `found` with new measurements of the rows that seem slower."""
    slower = [row[0] for row in found if row[4] == "slower"]
    if not slower:
        return found
    print(f"{len(slower)} seem slower: again", flush=True)
    options = copy.copy(options)
    options.filter = "|".join(f"^{re.escape(name.partition(':')[2])}(/|$)" for name in slower)
    results = measure(options, sorted({name.partition(":")[0] for name in slower}), AGAIN)
    again = {row[0]: row for row in rows(results["now"], results["before"]) if row[0] in slower}
    return sorted((again.get(row[0], row) for row in found), key=lambda row: row[3][1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", help="the other commit")
    parser.add_argument("--now", type=pathlib.Path, required=True, help="build folder of the working tree")
    parser.add_argument("--before", type=pathlib.Path, required=True, help="build folder of the other commit")
    parser.add_argument("--filter", default="", help="compare only benchmarks whose name matches")
    parser.add_argument("--gpu", action="store_true", help="compare bench_gpu instead of the others")
    parser.add_argument("--quick", action="store_true", help="short repetitions")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--removed", default="(?!)", help="benchmarks that may be missing now: their names match")
    options = parser.parse_args()
    options.build = options.now  # whose files both read
    suites = run.targets(options.filter, gpu=options.gpu)
    if not options.filter:
        suites = sorted({path.name for build in (options.now, options.before) for path in (build / "bin").glob("bench_*")
                         if run.needs_gpu(path.name) == options.gpu})
    results = measure(options, suites, options.repetitions)
    found = rows(results["now"], results["before"])
    if not found:
        sys.exit("bench: no benchmark ran in both commits")
    found = measured_again(options, found)
    print(printed(found, options.ref))
    new = sorted(set(results["now"]) - set(results["before"]))
    if new:
        print(f"not in {options.ref}: {', '.join(new)}")
    missing = [name for name in sorted(set(results["before"]) - set(results["now"])) if not re.search(options.removed, name)]
    if missing:
        print(f"missing now: {', '.join(missing)}")
    slower = [row[0] for row in found if row[4] == "slower"]
    print(f"{len(slower)} of {len(found)} benchmarks are slower than {options.ref}")
    return 1 if slower or missing else 0


if __name__ == "__main__":
    sys.exit(main())
