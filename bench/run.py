#!/usr/bin/env python3
"""Measures the library against its peers, and reports ratios.

    bench/run.py [--gpu] [--filter REGEX] [--quick] [--repetitions N] [--build DIR] [--publish] [--targets]

Runs every suite build/bin/bench_* and every peer bench/peers/*.py, in turn, N times. Each repetition measures ours, the
peer and the floor within a few minutes: a ratio is formed within a repetition, and its median and range over the
repetitions are reported. bench/ratios.json lists the ratios and their targets. A full run writes docs/benchmarks.md and
docs/benchmarks.svg; with --filter, --quick or --gpu they go to build/bench/. bench/published.json has the values published
before: a row is slower if all its values are worse than all values published for the same processor name. A full run
publishes its rows; --publish those of a partial run.

With --gpu, only bench_gpu and its peers run, and they alone see the GPUs. --filter then selects the cases of bench_gpu; a
peer runs completely.

A peer prints one JSON object per line: {"name": ..., "value": ..., "unit": "us" or "rows/s" or ...}.
"""

import argparse
import datetime
import html
import json
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class Measurement:
    """Values of one benchmark, one per repetition. A time is in seconds; a rate is per second."""

    def __init__(self):
        self.times, self.rates, self.counters, self.repetitions = {}, {}, {}, set()

    def value(self, metric, repetition):
        return {"time": self.times, "rate": self.rates}.get(metric, self.counters.get(metric, {})).get(repetition)

    def rate(self, repetition):
        """Work per second: the reported rate, else the inverse of the time."""
        if repetition in self.rates:
            return self.rates[repetition]
        return 1 / self.times[repetition] if self.times.get(repetition) else None


def needs_gpu(name):
    """Whether a suite, a peer or a row's benchmark runs on a GPU."""
    return name.startswith(("bench_gpu", "gpu_"))


def environment(name, options):
    """Only programs that need a GPU see one."""
    return {**os.environ, "TRAINKIT_BENCH_QUICK": "1" if options.quick else "",
            "TRAINKIT_BENCH_FILES": str(options.build / "bench"),
            **({} if needs_gpu(name) else {"CUDA_VISIBLE_DEVICES": ""})}


def add(results, name, repetition):
    measurement = results.setdefault(name, Measurement())
    measurement.repetitions.add(repetition)
    return measurement


def targets(pattern, root=ROOT, gpu=False):
    """Returns the targets to build: the suites with a matching benchmark name in their sources or in ratios.json, and the
    targets that matching peers list after "# builds:". All suites if nothing matches: a name may have arguments that no
    file contains. With `gpu` bench_gpu alone, else never."""
    if gpu:
        return ["bench_gpu"]
    found, everything = [], []
    rows = json.loads((root / "bench/ratios.json").read_text())
    for folder in sorted(path.parent for path in (root / "bench").glob("*/CMakeLists.txt")):
        suite = f"bench_{folder.name}"
        if needs_gpu(suite):
            continue
        everything.append(suite)
        names = [name.partition(":")[2] for row in rows for name in (row["ours"], row.get("minus", ""), row.get("peer", ""))
                 if name.startswith(suite + ":")]
        for source in sorted(folder.glob("*.cpp")):
            for name, case in re.findall(r"BENCHMARK(?:_CAPTURE|_TEMPLATE\w*)?\(\s*(\w+)(?:\s*,\s*(\w+))?", source.read_text()):
                names += [name, f"{name}/{case}"]
        if any(re.search(pattern, name) for name in names):
            found.append(suite)
    for script in sorted((root / "bench/peers").glob("[!_]*.py")):
        if re.search(pattern, script.stem):
            found += re.findall(r"^# builds: (.*)", script.read_text(), re.MULTILINE)[:1]
    return " ".join(found).split() or everything


def run_suite(program, options, repetition, results, log):
    output = log / f"{program.name}.{repetition}.json"
    output.unlink(missing_ok=True)
    command = [program, f"--benchmark_out={output}", "--benchmark_out_format=json"]
    if options.filter:
        command.append(f"--benchmark_filter={options.filter}")
    if options.quick:
        command.append("--benchmark_min_time=0.05")
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env=environment(program.name, options))
    if done.returncode or not output.exists() or not output.stat().st_size:
        if "Failed to match" not in done.stderr and done.returncode:
            print(f"   {program.name} failed: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return
    for entry in json.loads(output.read_text())["benchmarks"]:
        if entry.get("run_type") == "aggregate":
            continue
        if entry.get("error_occurred"):
            print(f"   {entry['name']}: {entry['error_message']}", file=sys.stderr)
            continue
        # Google Benchmark adds these to the name; they describe the timing, not the work
        name = re.sub(r"/(real_time|manual_time|process_time|iterations:\d+|min_time:[\d.]+|repeats:\d+)", "", entry["name"])
        measurement = add(results, f"{program.name}:{name}", repetition)
        measurement.times[repetition] = entry["real_time"] * SECONDS[entry["time_unit"]]
        for counter in set(entry) - {"real_time", "cpu_time", "iterations", "threads", "repetitions", "repetition_index",
                                     "family_index", "per_family_instance_index"}:
            if isinstance(entry[counter], (int, float)):
                measurement.counters.setdefault(counter, {})[repetition] = entry[counter]
        if "items_per_second" in entry:
            measurement.rates[repetition] = entry["items_per_second"]


def set_up(script, options, log):
    """Lets a peer write what suites read, if it lists a selected benchmark after "# sets up:"."""
    names = " ".join(re.findall(r"^# sets up: (.*)", script.read_text(), re.MULTILINE)).split()
    if any(re.search(options.filter, name) for name in names and [*names, script.stem]):
        done = subprocess.run([sys.executable, script, "--set-up", log], capture_output=True, text=True)
        if done.returncode:
            print(f"   {script.name} --set-up failed: {done.stderr.strip()[-300:]}", file=sys.stderr)


def run_peer(script, options, repetition, results):
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment(script.stem, options))
    pattern = r"\w+: |no GPU" if needs_gpu(script.stem) else "left out: "  # variants that failed
    notes = [line for line in done.stderr.splitlines() if re.match(pattern, line)]
    print("".join(f"   {note}\n" for note in notes), end="", file=sys.stderr)
    if done.returncode:
        print(f"   {script.name} failed: {done.stderr.strip()[-300:]}", file=sys.stderr)
    for line in done.stdout.splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        measurement = add(results, f"{script.stem}:{entry['name']}", repetition)
        if entry["unit"] in SECONDS:
            measurement.times[repetition] = entry["value"] * SECONDS[entry["unit"]]
        elif entry["unit"].endswith("/s"):
            measurement.rates[repetition] = entry["value"]
        else:
            measurement.counters.setdefault(entry["unit"], {})[repetition] = entry["value"]


def evaluate(row, results):
    """The row's value in each repetition; [] if a benchmark was not run.

    {"ours": A, "peer": B, "at_least": 1.3}                    work per second of A (or its counter) over that of B (or
                                                               over what B reports in the counter's name as unit)
    {"ours": A, "minus": B, "unit": "us", "at_most": 1}        difference in time
    {"ours": A, "unit": "ms", "at_most": 1}                    time of A
    {"ours": A, "counter": "over_peer", "unit": "×", "at_least": 1.3}   a counter of A, here a ratio formed within it
    """
    ours = results.get(row["ours"])
    other = results.get(row.get("peer") or row.get("minus"))
    if not ours or (("peer" in row or "minus" in row) and not other):
        return []
    values = []
    for repetition in sorted(ours.repetitions & (other.repetitions if other else ours.repetitions)):
        if "peer" in row:
            mine = ours.value(row["counter"], repetition) if "counter" in row else ours.rate(repetition)
            theirs = other.value(row.get("counter"), repetition) or other.rate(repetition)
            value = mine / theirs if mine and theirs else None
        elif "counter" in row:
            value = ours.value(row["counter"], repetition)
        else:
            value = ours.value("time", repetition)
            if other and value is not None:
                base = other.value("time", repetition)
                value = value - base if base is not None else None
            value = value / SECONDS[row["unit"]] if value is not None else None
        if value is not None:
            values.append(value)
    return values


def met(row, value):
    return value >= row["at_least"] if "at_least" in row else value <= row["at_most"] if "at_most" in row else True


def higher_is_better(row):
    return "at_least" in row or ("at_most" not in row and unit_of(row) == "×")


def change(row, values, before):
    """"slower" or "faster" if all values are worse, or better, than all values before; else ""."""
    if not before:
        return ""
    above, below = min(values) > before["highest"], max(values) < before["lowest"]
    if not above and not below:
        return ""
    return "faster" if above == higher_is_better(row) else "slower"


def figure(value):
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def engineering(value):
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{figure(value / factor)} {letter}"
    return figure(value)


def unit_of(row):
    return row.get("unit", "×" if "peer" in row else "")


def target_text(row):
    unit = f" {unit_of(row)}".rstrip()
    if "at_least" in row:
        return f"≥ {row['at_least']}{unit}"
    return f"≤ {row['at_most']}{unit}" if "at_most" in row else ""


def command_output(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def gpu_name():
    program = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU')"
    return command_output([sys.executable, "-c", program])


def compiler(build):
    """The name and version of the compiler of a build folder."""
    cache = build / "CMakeCache.txt"
    found = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)", cache.read_text() if cache.exists() else "", re.M)
    return command_output([found.group(1) if found else "c++", "--version"]).split("\n")[0]


def machine(build, gpu=False):
    """Facts of this machine and of a build folder, and with `gpu` of its GPU. The processor's name includes its vector
    instructions, since a virtual machine may hide the model."""
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    cpu = re.search(r"model name\s*: (.*)", cpuinfo)
    flags = (re.search(r"^flags\s*: (.*)", cpuinfo, re.M) or [""])[0].split()
    vectors = next((f" with {name}" for flag, name in (("amx_tile", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2"))
                    if flag in flags), "")
    memory = int(re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1))
    system = re.search(r'PRETTY_NAME="(.*)"', pathlib.Path("/etc/os-release").read_text())
    versions = command_output([sys.executable, "-c", "import importlib.metadata as m\nfor n in ('torch', 'numpy'): print(n, m.version(n))"])
    return {
        "processor": f"{cpu.group(1) if cpu else platform.machine()}{vectors}, {os.cpu_count()} cores, {memory / 2**20:.0f} GiB"
                     + (f", {gpu_name()}" if gpu else ""),
        "system": f"{system.group(1) if system else platform.system()}, Linux {platform.release().split('-')[0]}",
        "versions": ", ".join([compiler(build), *versions.split("\n")]),
        "commit": command_output(["git", "rev-parse", "--short", "HEAD"]),
    }


def table(header, rows):
    return "\n".join([f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *(f"| {' | '.join(row)} |" for row in rows)])


def report(ratios, results, loads, options, facts, published):
    now = datetime.datetime.now(datetime.timezone.utc)
    command = " ".join(["./dev bench", *["--gpu"] * options.gpu, *[f"--filter '{options.filter}'"] * bool(options.filter),
                        *["--quick"] * options.quick])
    rows = []
    for row, values in ratios:
        median = statistics.median(values)
        unit = f" {unit_of(row)}".rstrip()
        before = published.get(row["name"])
        verdicts = [("met" if met(row, median) else "**missed**") if target_text(row) else "",
                    change(row, values, before).replace("slower", "**slower**")]
        rows.append([row["name"], f"{figure(median)}{unit}", f"{figure(min(values))} – {figure(max(values))}",
                     target_text(row), f"{figure(before['median'])}{unit}, {before['commit']}" if before else "",
                     ", ".join(filter(None, verdicts))])
    everything = []
    for name, measurement in sorted(results.items()):
        times, rates = list(measurement.times.values()), list(measurement.rates.values())
        everything.append([f"`{name}`", f"{figure(statistics.median(times) * 1e6)}" if times else "",
                           f"{engineering(statistics.median(rates))}" if rates else "", str(len(measurement.repetitions))])
    return f"""# Benchmarks

Written by `{command}` on {now:%Y-%m-%d %H:%M} UTC. Repetitions: {options.repetitions}; in each repetition, every suite and
every peer ran once, one after the other. A ratio is our rate divided by the rate of the peer (or of the floor) in the
same repetition: above 1 is faster. The table gives the median over the repetitions, with the lowest and the highest.
"Before" is the last published median for the same processor name; a row is slower or faster if its range and the
published range do not overlap.

- Machine: {facts['processor']}; {facts['system']}
- Versions: {facts['versions']}; commit {facts['commit']}
- Load average when each repetition began: {', '.join(f'{load:.1f}' for load in loads)}. Other work on the cores
  changes the range of a ratio and its median; compare only figures of quiet runs.

## Ratios and targets

{table(['what', 'median', 'lowest – highest', 'target', 'before', ''], rows)}

![Ratios](benchmarks.svg)

[bench/ratios.json](../bench/ratios.json) defines each name. [bench/README.md](../bench/README.md) explains how to add a
benchmark or a peer.

## Every benchmark

{table(['benchmark', 'time, µs', 'items/s', 'repetitions'], everything)}
"""


def chart(ratios, source):
    """Bars of the ratios of one run on a logarithmic axis, with a dashed tick at each target. `source` names the run."""
    bars = [(row, statistics.median(values), min(values), max(values)) for row, values in ratios if unit_of(row) == "×"]
    if not bars:
        return None
    top = max(2.0, *(max(high, row.get("at_least", 1)) for row, _, _, high in bars)) * 1.1
    bottom = min(0.5, *(low for _, _, low, _ in bars)) / 1.1
    # Wider than Helvetica, Arial and DejaVu Sans at 12 pixels, so that no label is cut.
    left, width, height, begin = 16 + 7.5 * max(len(row["name"]) for row, *_ in bars), 420, 24, 76
    bottom_y = begin + len(bars) * height

    def x(value):
        return left + width * math.log(value / bottom) / math.log(top / bottom)

    parts = [f'<text x="16" y="24" font-size="16" font-weight="600">Speed compared with the peer</text>',
             f'<text x="16" y="44" fill="#555">{html.escape(source)}; bars: median, lines: lowest to highest, dashed: target</text>']
    for mark in (step * 10**power for power in range(-3, 4) for step in (1, 2, 5)):
        if bottom <= mark <= top:
            colour, label, weight = ("#222", "1.0 = peer", ' font-weight="600"') if mark == 1 else ("#ddd", f"{mark:g}", "")
            parts += [f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{begin - 4}" y2="{bottom_y}" stroke="{colour}"/>',
                      f'<text x="{x(mark):.1f}" y="{bottom_y + 16}" text-anchor="middle"'
                      f'{weight}>{label}</text>']
    for index, (row, median, low, high) in enumerate(bars):
        y = begin + index * height
        colour = "#2a7a4b" if met(row, median) else "#b5542b"
        first, last = sorted((x(1.0), x(median)))
        parts += [f'<text x="{left - 8:.1f}" y="{y + 12}" text-anchor="end">{html.escape(row["name"])}</text>',
                  f'<rect x="{first:.1f}" y="{y + 1}" width="{max(1, last - first):.1f}" height="14" fill="{colour}"/>',
                  f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y + 8}" y2="{y + 8}" stroke="#222"/>',
                  f'<text x="{left + width + 8:.1f}" y="{y + 12}">{figure(median)} ×</text>']
        if "at_least" in row:
            parts.append(f'<line x1="{x(row["at_least"]):.1f}" x2="{x(row["at_least"]):.1f}" y1="{y - 2}" y2="{y + 18}" '
                         f'stroke="#222" stroke-width="2" stroke-dasharray="3 2"/>')
    parts.append(f'<text x="{left + width / 2:.1f}" y="{bottom_y + 34}" text-anchor="middle" fill="#555">'
                 'our rate divided by the peer\'s, logarithmic</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90:.0f}" height="{bottom_y + 46}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>\n'
            + "\n".join(parts) + "\n</svg>\n")


def read_published(facts):
    """Rows by name of bench/published.json for this processor."""
    file = ROOT / "bench/published.json"
    return (json.loads(file.read_text()) if file.exists() else {}).get(facts["processor"], {})


def publish(ratios, facts):
    file = ROOT / "bench/published.json"
    machines = json.loads(file.read_text()) if file.exists() else {}
    rows = machines.setdefault(facts["processor"], {})
    for row, values in ratios:
        rows[row["name"]] = {"median": statistics.median(values), "lowest": min(values), "highest": max(values),
                             "commit": facts["commit"]}
    file.write_text(published_text(machines))


def published_text(machines):
    """Writes one line per row, so that a changed row changes one line."""
    parts = []
    for processor in sorted(machines):
        rows = machines[processor]
        lines = (f"    {json.dumps(name, ensure_ascii=False)}: {json.dumps(rows[name])}" for name in sorted(rows))
        parts.append(f"  {json.dumps(processor)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="", help="run only benchmarks and peers whose name matches")
    parser.add_argument("--gpu", action="store_true", help="run bench_gpu and its peers, on the GPU, instead of the others")
    parser.add_argument("--quick", action="store_true", help="run one short repetition as a smoke test")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--publish", action="store_true", help="save the results in bench/published.json (default for a full run)")
    parser.add_argument("--targets", action="store_true", help="print the selected suites without running them")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    options = parser.parse_args()
    options.repetitions = options.repetitions or (1 if options.quick else 5)

    if options.targets:
        print(*targets(options.filter, gpu=options.gpu))
        return
    suites = sorted(suite for suite in (options.build / "bin").glob("bench_*") if needs_gpu(suite.name) == options.gpu)
    peers = sorted(script for script in (ROOT / "bench/peers").glob("[!_]*.py") if needs_gpu(script.stem) == options.gpu)
    if options.filter and not options.gpu:
        suites = [suite for suite in suites if suite.name in targets(options.filter)]
        peers = [script for script in peers if re.search(options.filter, script.stem)]
    if not suites and not peers:
        sys.exit(f"bench: no suite bench_* in {options.build / 'bin'}; run ./dev build")
    log = options.build / "bench"
    log.mkdir(exist_ok=True)
    if not options.gpu:
        for script in sorted((ROOT / "bench/peers").glob("[!_]*.py")):
            set_up(script, options, log)
    results, loads = {}, []
    for repetition in range(options.repetitions):
        loads.append(os.getloadavg()[0])
        print(f"repetition {repetition + 1} of {options.repetitions}, load average {loads[-1]:.1f}", flush=True)
        for suite in suites:
            run_suite(suite, options, repetition, results, log)
        for script in peers:
            run_peer(script, options, repetition, results)

    facts = machine(options.build, options.gpu)
    published = {} if options.quick else read_published(facts)  # short runs are a smoke test; ignore their timings
    ratios = []
    for row in json.loads((ROOT / "bench/ratios.json").read_text()):
        values = evaluate(row, results)
        if values:
            ratios.append((row, values))
            median = statistics.median(values)
            verdict = "" if not target_text(row) else "met" if met(row, median) else "MISSED"
            changed = change(row, values, published.get(row["name"]))
            print(f"  {row['name']:58} {figure(median):>8}  [{figure(min(values))} .. {figure(max(values))}]  {target_text(row)} {verdict}"
                  f"{f'  {changed} than published' if changed else ''}")
        elif not options.filter and needs_gpu(row["ours"]) == options.gpu:
            print(f"  {row['name']:58} not measured: {row['ours']} and {row.get('peer') or row.get('minus') or '-'} did not both run")
    partial = options.filter or options.quick or options.gpu
    folder = log if partial else ROOT / "docs"
    (folder / "benchmarks.md").write_text(report(ratios, results, loads, options, facts, published))
    day = datetime.datetime.now(datetime.timezone.utc)
    picture = chart(ratios, f"{day:%Y-%m-%d}, {facts['processor']}, commit {facts['commit']}")
    if picture:
        (folder / "benchmarks.svg").write_text(picture)
    if options.publish or not partial:
        publish(ratios, facts)
    print(f"wrote {os.path.relpath(folder / 'benchmarks.md')}")


if __name__ == "__main__":
    main()
