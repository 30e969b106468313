#!/usr/bin/env python3
"""The page docs/errors.md: every error id of the sources, with the text of docs/errors.toml.

    docs/tools/errors.py           writes docs/errors.md
    docs/tools/errors.py --check   names what differs between the sources, the table and the page

Exit status of --check: 0 without differences, else 1.
"""

import pathlib
import re
import sys
import tomllib

TABLE, PAGE = "docs/errors.toml", "docs/errors.md"
FOLDERS = ("libtrainkit/include", "libtrainkit/src", "apps")

# Text that looks like an id: names of state entries, of pickled types and of files.
NOT_IDS = {"config.data", "torch.cuda", "torch.device", "torch.save", "torch.serialization", "torch.storage", "torch.strided"}
FILE_NAME = re.compile(r"\.(html|json|pkl|txt|yaml)$")
# Ids made of two parts: the class, and a pattern of the calls that supply the rest.
COMPOSED = {
    "libtrainkit/src/config/command_line.cpp": [("cli", r'\bflag_error\("(\w+)"')],
    "libtrainkit/src/config/option_uses.cpp": [("cli", r'\bflag_error\("(\w+)"')],
    "libtrainkit/src/config/words.cpp": [("cli", r'\bflag_error\("(\w+)"')],
    "libtrainkit/src/config/config.cpp": [("cli", r'\bflag_error\("(\w+)"'), ("cli", r'\bblame\([^;"]*"(\w+)",'),
                                          ("config", r'\bblame\([^;"]*"(\w+)",')],
    "libtrainkit/src/app/program/predictor.cpp": [("run", r'\brun_error\("(\w+)"'), ("run", r'\bis_run \? "(\w+)" : "none",')],
    # The kind of a text or table makes its ids.
    "libtrainkit/include/trainkit/io/text_file.h": [("data", r'\bkind = "(\w+)"')],
    "libtrainkit/include/trainkit/io/table.h": [("data", r'\bkind = "(\w+)"')],
    "libtrainkit/src/io/files/text_file.cpp": [],
    "libtrainkit/src/io/tables/json_rows.cpp": [],
    "libtrainkit/src/io/tables/table.cpp": [],
    "libtrainkit/src/io/tables/table_rows.cpp": [],
    "apps/gpt2_recommender/movielens.cpp": [("data", r'"(ratings|users|items)"')],
    "apps/gpt2_recommender/recbole.cpp": [("data", r'"(ratings|users|items)"')],
    "apps/gpt2_recommender/tables.cpp": [("data", r'\.kind = "(\w+)"')],
    "apps/gpt2_recommender/split_file.cpp": [("data", r'\.kind = "(\w+)"')],
    "apps/gpt2_recommender/candidates.cpp": [("data", r'\.kind = "(\w+)"')],
}

EXIT_CODES = [  # (name in core/error.h, number, meaning)
    ("kBug", 1, "a bug of trainkit, or of a custom module"), ("kUsage", 2, "the command line, the environment or the caller's code"),
    ("kConfig", 3, "a configuration file"), ("kData", 4, "a data set"), ("kWeights", 5, "weights, a checkpoint or a run that is read"),
    ("kStorage", 6, "storage: full, read-only or failing"), ("kOutOfMemory", 7, "out of memory with one row per micro-batch"),
    ("kDistributed", 8, "another rank, or the network"), ("kNumerics", 9, "values that are not finite"),
    ("kStalledWorker", 10, "a worker that did not respond within the timeout"), ("kDevice", 11, "a GPU that failed")]
MANY = 9  # exit codes of an error that forwards those of another program
NUMBER = {name: number for name, number, _ in EXIT_CODES}

CLASSES = {
    "bug": "Bugs", "ckpt": "Checkpoints", "cli": "Command line", "config": "Configuration files", "data": "Data",
    "device": "Devices", "dist": "Several processes", "doctor": "trainkit doctor", "env": "Environment", "launch": "trainkit launch",
    "log": "Logs", "memory": "Memory", "onnx": "ONNX files", "plan": "trainkit plan", "program": "Starting a program",
    "resume": "trainkit verify-resume", "rl": "Simulators", "run": "Trained runs", "scale": "trainkit scale", "storage": "Storage",
    "tool": "trainkit and other programs", "torch": "Finding LibTorch", "train": "Training", "user": "Your own code",
    "weights": "Weights"}

HEAD = """# Errors

<!-- Written by docs/tools/errors.py from docs/errors.toml and the sources. Do not edit. -->

Lists every error id with its cause, an example and a remedy. [Troubleshooting](troubleshooting.md) starts from symptoms
instead.

A program reports an error as one line on stderr, and a `hint:` line where one helps. `<output_dir>/error.json` contains
the same fields:

```
trainkit: error[<class>.<id>] <file>[:line:column]: <flag, key or tensor>: <problem> (got '<value>', expected <rule>)
  hint: <remedy>
```

In C++, `error_of(status)` returns these fields and `exit_code(status)` the exit code:
[core](guide/core.md#one-form-of-an-error).

## Exit codes

0 is success. 128 + n means that signal n stopped the run after a verified save. The other codes give the class of the
error:

"""


def read(root, name):
    return (root / name).read_text(encoding="utf-8")


def sources(root):
    """Maps the name of each source to its code, without comments of a whole line."""
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in (".h", ".cpp", ".cu"))
    return {str(path.relative_to(root)): re.sub(r"^\s*//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.M) for path in paths}


def ids_of(codes):
    """Maps each id of the sources to the exit codes that are set next to it, and the names of its files; and lists problems."""
    found, problems = {}, []
    classes = "|".join(CLASSES)
    literal = re.compile(rf'"((?:{classes})\.[a-z][a-z0-9_]*)"|\.id = "([a-z]+\.[a-z_]+)"|"\[((?:{classes})\.[a-z]+)\] ')
    for name, code in codes.items():
        made = [(match.start(), next(filter(None, match.groups()))) for match in literal.finditer(code)]
        for kind, calls in COMPOSED.get(name, []):
            made += [(match.start(), f"{kind}.{match[1]}") for match in re.finditer(calls, code)]
        for at, id_ in made:
            if id_ in NOT_IDS or FILE_NAME.search(id_):
                continue
            exit_codes, files = found.setdefault(id_, (set(), set()))
            files.add(name)
            # The exit code of an Error is the member in front of its id.
            before = re.search(r"exit_code = ExitCode::(k\w+),\s*(?:\.id = [^\"]*)?$", code[:at])
            if before:
                exit_codes.add(NUMBER[before[1]])
            if re.search(r"\bdata_error\(\s*$", code[:at]):
                exit_codes.add(NUMBER["kData"])
        if re.search(rf'"(?:{classes})\."\)? \+', code) and name not in COMPOSED:
            problems.append(f"{name}: makes an id of two parts: name it in COMPOSED of docs/tools/errors.py")
    return found, problems


def problems_of_example(id_, example, text):
    """An example is a line of its id whose texts are in the sources: a changed message must change its example."""
    match = re.fullmatch(r"error\[([a-z0-9._]+)\] (.+)", example)
    if not match or match[1] != id_:
        yield f"{TABLE}: [{id_}]: the example does not begin with error[{id_}]"
        return
    missing = [run for run in runs_of_words(match[2]) if not is_in(run, text)]
    if id_ in COMPOSED_TEXT:
        missing = [run for run in missing if not any(map(text.__contains__, pairs(run)))]
    if missing:
        yield f"{TABLE}: [{id_}]: no string of the sources has the example's text '{missing[0]}'"


# Messages of the operating system and of FFmpeg.
SYSTEM = re.compile("No such file or directory|No space left on device|Resource temporarily unavailable|"
                    "Invalid data found when processing input|Address already in use|Permission denied")
# Ids whose message is put together from several strings: two words of each run in the sources are enough.
COMPOSED_TEXT = {"data.csv", "data.timeout", "data.vocabulary", "dist.peer", "doctor.verify", "onnx.model",
                 "plan.unavailable", "run.file", "train.nonfinite"}


def runs_of_words(text):
    """All runs of two or more plain words between the values of an example; the first one may be a number."""
    text = re.sub(r" \(got |: |; |, expected |\(expected |\)|'[^']*'", " | ", SYSTEM.sub("", text))
    return re.findall(r"(?<![\w.'/:-])(?:\d+ [a-z]+|[a-z]+ [a-z]+)(?: [a-z]+)*(?![\w.'/:-])", text)


def pairs(run):
    words = run.split()
    return map(" ".join, zip(words, words[1:]))


def is_in(run, text):
    """A number of an example is a placeholder, or the end of a string, in the sources."""
    words = re.sub(r"^\d+ ", "", run)
    before = re.compile(r"[}\d\"] ?$" if words != run else r"(^|\W)$")
    at = text.find(words)
    while at >= 0:
        end = at + len(words)
        if before.search(text[max(at - 2, 0):at]) and not re.match(r"\w", text[end:end + 1]):
            return True
        at = text.find(words, at + 1)
    return False


def entries_of(root):
    table = tomllib.loads((root / TABLE).read_text(encoding="utf-8"))
    return {f"{kind}.{name}": entry for kind, entries in table.items() for name, entry in entries.items()}


def check(root):
    codes, entries = sources(root), entries_of(root)
    found, problems = ids_of(codes)
    problems += [f"{sorted(found[id_][1])[0]}: the id {id_} has no entry in {TABLE}" for id_ in sorted(found.keys() - entries.keys())]
    problems += [f"{TABLE}: [{id_}] is no id of the sources" for id_ in sorted(entries.keys() - found.keys())]
    text = re.sub(r'"\s*"', "", "\n".join(codes.values()))  # adjacent strings are one
    for id_ in sorted(entries.keys() & found.keys()):
        problems += problems_of_entry(id_, entries[id_], found[id_][0], text)
    if not problems and (root / PAGE).read_text(encoding="utf-8") != page(entries, found):
        problems.append(f"{PAGE}: is not what docs/tools/errors.py writes: run it")
    return problems


def problems_of_entry(id_, entry, exit_codes, text):
    if set(entry) - {"exit"} != {"cause", "example", "remedy"}:
        yield f"{TABLE}: [{id_}]: needs cause, example and remedy, and nothing else"
        return
    if not entry.get("exit", exit_codes):
        yield f"{TABLE}: [{id_}]: needs its exit codes"
    if not exit_codes <= set(entry.get("exit", exit_codes)):
        yield f"{TABLE}: [{id_}]: exit is {entry['exit']}, but the sources set {sorted(exit_codes)}"
    if id_ not in WITHOUT_TEXT:
        yield from problems_of_example(id_, entry["example"], text)


# Ids whose message is that of LibTorch, of the operating system or of the caller's code.
WITHOUT_TEXT = {"bug.internal", "ckpt.file", "config.file", "data.loss", "data.row", "device.failed", "dist.unavailable",
                "program.missing", "program.start", "run.failed", "storage.full", "storage.io", "storage.write",
                "user.exception", "weights.file"}


def page(entries, found):
    exits = {id_: entry.get("exit") or sorted(found[id_][0]) for id_, entry in entries.items()}
    text = HEAD + "| exit code | error in | ids |\n|---|---|---|\n"
    for _, number, meaning in EXIT_CODES:
        links = [f"[{id_}](#{id_.replace('.', '')})" for id_ in sorted(entries) if number in exits[id_] and len(exits[id_]) <= MANY]
        text += f"| {number} | {meaning} | {', '.join(links)} |\n"
    forwarded = [f"[{id_}](#{id_.replace('.', '')})" for id_ in sorted(entries) if len(exits[id_]) > MANY]
    if forwarded:
        text += f"\nErrors of a program that another one started have the exit code of that program: {', '.join(forwarded)}.\n"
    for kind, title in sorted(CLASSES.items(), key=lambda pair: pair[1].lower()):
        of_kind = [id_ for id_ in sorted(entries) if id_.split(".")[0] == kind]
        text += f"\n## {title}\n" if of_kind else ""
        for id_ in of_kind:
            entry, codes = entries[id_], exits[id_]
            ending = "of the started program" if len(codes) > MANY else " or ".join(map(str, codes))
            text += (f"\n### {id_}\n\nExit code {ending}. {entry['cause']}\n\n```\ntrainkit: {entry['example']}\n```\n\n"
                     f"Remedy: {entry['remedy']}\n")
    return text


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    if sys.argv[1:] != ["--check"]:
        found, _ = ids_of(sources(root))
        entries = {id_: entry for id_, entry in entries_of(root).items() if id_ in found}
        (root / PAGE).write_text(page(entries, found), encoding="utf-8")
        return 0
    problems = check(root)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
