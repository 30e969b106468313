#!/usr/bin/env python3
"""The C++ blocks of the pages, as programs that are built and run.

    tests/docs/pages.py extract FOLDER PAGE...   writes FOLDER/programs.cpp with every ```cpp block, and their names
    tests/docs/pages.py check PAGE...            names the blocks that are not programs, and missing includes
    tests/docs/pages.py run PAGE N PROGRAM [NAME]   runs PROGRAM NAME, block N of PAGE, in a temporary folder

A block is a whole program: whoever reads it can compile it. If the text behind it begins with "prints" or "It prints", the
program must print the lines of the block that follows: whole numbers exactly, decimal numbers within 5 % (the last digits of
a sum differ between processors). "for example" in that text allows any numbers, for times. "exits with 4" is the exit code,
otherwise 0. Exit status: 0 as the page says, 1 not so.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```cpp\n(?P<code>.*?)^```\n(?P<behind>\n*(?:It )?prints(?P<how>[^`]*?):?\n+```\w*\n(?P<output>.*?)^```)?",
                   re.M | re.S)


INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"(trainkit/[\w/]+\.h)"', re.M)
HEADERS = pathlib.Path(__file__).resolve().parents[2] / "libtrainkit/include"
# Types, and functions whose declaration begins in column 0.
TYPE = re.compile(r"^(?:class|struct|enum class|enum)[ \t]+(\w+)[^;]*\{|^using[ \t]+(\w+)[ \t]*=", re.M)
FUNCTION = re.compile(r"^(?!using|return|namespace|template|struct|class|enum|TORCH_MODULE)[a-zA-Z][\w:<>,&* \t]*?[ \t&*](\w+)\(", re.M)
NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
TOLERANCE = 0.05


def blocks(page):
    """(line, code, output or None, exit code, whether its numbers count) of every C++ block of a page."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        code = re.search(r"exits with (\d+)", match["how"] or "")
        numbers_count = "for example" not in (match["how"] or "")
        yield text.count("\n", 0, match.start()) + 2, match["code"], match["output"], int(code[1]) if code else 0, numbers_count


def is_program(code):
    return "int main(" in code


def without_comments(code):
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', re.sub(r"//[^\n]*", "", code))


def public_headers(folder):
    """Maps each public header to the headers that it includes, itself included, and to the names that it declares."""
    included, names = {}, {}
    for path in sorted(folder.rglob("trainkit/**/*.h")):
        header, text = str(path.relative_to(folder)), path.read_text(encoding="utf-8")
        included[header] = {header, *INCLUDE.findall(text)}
        names[header] = {name for pattern in (TYPE, FUNCTION) for match in pattern.findall(without_comments(text))
                         for name in ([match] if isinstance(match, str) else match) if name}
    return included, names


def closure(headers, included):
    """Returns the headers and those that they include, directly or not."""
    found, open_ones = set(), list(headers)
    while open_ones:
        header = open_ones.pop()
        if header not in found:
            found.add(header)
            open_ones += included.get(header, ())
    return found


def missing_includes(code, included, names):
    """(name, header) of each public name that a program uses without a header of its own that declares it. The programs
    are compiled as one source with all includes, so the compiler does not notice it."""
    reached = closure(INCLUDE.findall(code), included)
    known = set().union(*(names.get(header, ()) for header in reached))
    text = without_comments(code)
    own = set(re.findall(r"\b(?:struct|class|auto|using)[ \t&*]+(\w+)", text))
    used = set(re.findall(r"(?<![\w.>:])(?:trainkit::)?(\w+)\b", text))
    for header in sorted(names):
        for name in sorted((names[header] - known - own) & used):
            is_type = name[0].isupper()
            if is_type or re.search(rf"(?<![\w.>:&*])(?:trainkit::)?{name}\(", text):
                yield name, header


def check(*pages):
    problems, (included, names) = [], public_headers(HEADERS)
    for page in pages:
        for line, code, *_ in blocks(page):
            if not is_program(code):
                problems.append(f"{page}:{line}: a C++ block without main() cannot be compiled: make it a program")
                continue
            problems += [f"{page}:{line}: uses {name} without #include \"{header}\""
                         for name, header in missing_includes(code, included, names)]
    return problems


def as_function(name, line, page, code):
    """Returns (includes, rest) of a program: its main becomes the function run_<name> in a separate namespace."""
    includes = re.findall(r"^#include .*$", code, re.M)
    code = re.sub(r"^#include .*$", "", code, flags=re.M)
    head, arguments, body = re.split(r"^int main\((.*?)\)", code.rstrip(), maxsplit=1, flags=re.M)
    if not body.endswith("}") or re.search(r"^\}", body[:-1], re.M):
        raise SystemExit(f"{page}:{line}: main() is not the last function of the program")
    body = body[:-1] + "\n  return 0;\n}"  # only main may end without a return
    parameters = arguments or "int, char**"
    return includes, (f'namespace {name} {{\n#line {line} "{page}"\n{head}int run({parameters}){body}\n}}  // namespace {name}\n')


def extract(folder, *pages):
    """Writes the programs as functions of one source, FOLDER/programs.cpp, whose main calls the one that its first
    argument names; prints page, number and name of each."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    includes, functions, names = {}, [], []
    for page in pages:
        for number, (line, code, *_) in enumerate(blocks(page), 1):
            if not is_program(code):
                continue
            name = f"{re.sub(r'[^a-z0-9]', '_', pathlib.Path(page).stem.lower())}_{number}"
            more, function = as_function(name, line, page, code)
            includes.update(dict.fromkeys(more))
            functions.append(function)
            names.append(name)
            print(f"{page}|{number}|{name}")
    calls = "".join(f'  if (name == "{name}") return {name}::run(argc - 1, argv + 1);\n' for name in names)
    source = ("// Written by tests/docs/pages.py.\n" + "\n".join(includes) + "\n#include <string_view>\n\n" + "\n".join(functions) +
              f'\nint main(int argc, char** argv) {{\n  const std::string_view name = argc > 1 ? argv[1] : "";\n{calls}  return 99;\n}}\n')
    program = folder / "programs.cpp"
    if not program.exists() or program.read_text(encoding="utf-8") != source:
        program.write_text(source, encoding="utf-8")
    return []


def same_number(wanted, printed):
    if wanted.isdigit():
        return wanted == printed
    return abs(float(printed) - float(wanted)) <= TOLERANCE * abs(float(wanted))


def same_line(wanted, printed, numbers_count):
    """Whether two lines are equal, each number as the module's text says."""
    wanted, printed = NUMBER.split(wanted.rstrip()), NUMBER.split(printed.rstrip())
    return wanted[::2] == printed[::2] and (
        not numbers_count or all(same_number(*pair) for pair in zip(wanted[1::2], printed[1::2])))


def stands_in(wanted, lines, numbers_count=True):
    return any(all(same_line(*pair, numbers_count) for pair in zip(wanted, lines[at:]))
               for at in range(len(lines) - len(wanted) + 1))


def run(page, number, program, *name):
    line, _, output, exit_code, numbers_count = list(blocks(page))[int(number) - 1]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([pathlib.Path(program).resolve(), *name], cwd=folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    problems = []
    if done.returncode != exit_code:
        problems.append(f"{page}:{line}: exits with {done.returncode}, not {exit_code}")
    if output is not None and not stands_in(output.splitlines(), done.stdout.splitlines(), numbers_count):
        problems.append(f"{page}:{line}: does not print what the page shows")
    if problems:
        problems.append(done.stdout)
    return problems


def main():
    command, *arguments = sys.argv[1:]
    problems = {"extract": extract, "check": check, "run": run}[command](*arguments)
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
