#!/usr/bin/env python3
"""The project's own checks, beyond those of compilers and formatters.

    tests/lint/check.py [--root DIR] [--build DIR] [--print] [CHECK ...]

Each check is a function that yields problems, one line each: "file:line: problem". The quick ones are a test of every
build (lint.checks); those that need --build (a built tree) run in `./dev lint`. `classes --print` shows the ten
largest classes, `cycles --print` the cycles between folders, `surface --print` the number of public names,
`private_includes --print` the internal headers that programs include. Exit status: 0 without problems, else 1.
"""

import argparse
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs/tools"))
import classes
import errors
import figures
import folders
import private_includes
import surface

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\s+"trainkit/(\w+)/([\w/]+\.h)"', re.M)

# LibTorch's own file functions: reading runs code from the file or crashes on a damaged one, writing aborts the process
# on a full disk.
BANNED_SOURCE = re.compile(
    r"\btorch::(load|save|pickle_load|pickle_save)\s*\(|\b(InputArchive|OutputArchive)\b|\bjit::(load|pickle|unpickle)")
BANNED_SYMBOL = re.compile(
    r"^(torch::(load|save|pickle_load|pickle_save)\b|torch::serialize::(Input|Output)Archive::"
    r"|torch::jit::(load|import_ir_module|pickle|unpickle|pickle_load|pickle_save)\(|caffe2::serialize::PyTorchStream)")

# Folders that exist only on a developer's own machine.
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/")


def line_of(text, position):
    return text.count("\n", 0, position) + 1


class Tree:
    """The tracked files of a checkout (every file outside a git checkout)."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        listing = subprocess.run(["git", "-C", self.root, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
                                 capture_output=True, text=True)
        if listing.returncode == 0:
            names = [name for name in listing.stdout.split("\0") if name]
        else:
            names = [str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()]
        self.files = sorted(name for name in names if (self.root / name).is_file())

    def matching(self, pattern):
        return [name for name in self.files if re.search(pattern, name)]

    def read(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def modules(self):
        """The modules, in dependency order, as libtrainkit/CMakeLists.txt lists them."""
        return re.search(r"foreach\(module ([\w\s]+)\)", self.read("libtrainkit/CMakeLists.txt")).group(1).split()

    def dependencies(self):
        """Maps each module to the modules that it may include: itself and the modules of DEPENDS in its CMakeLists.txt,
        transitively."""
        reachable = {}
        for module in self.modules():
            name = f"libtrainkit/src/{module}/CMakeLists.txt"
            if name not in self.files:
                continue
            depends = re.search(r"\bDEPENDS\s+([a-z_\s]+?)(?=[A-Z)])", self.read(name))
            reachable[module] = {module}.union(*(reachable.get(d, {d}) for d in (depends.group(1).split() if depends else [])))
        return reachable


UMBRELLA = "libtrainkit/include/trainkit/trainkit.h"
# Networks: programs include only those that they use, because LibTorch's module headers take long to compile.
NOT_IN_UMBRELLA = {f"nn/{name}.h" for name in ("gpt2", "lora", "resnet18", "transformer")}
MAX_UMBRELLA = 30


def check_umbrella(tree):
    """trainkit/trainkit.h includes the headers that most programs need, at most MAX_UMBRELLA, in module order."""
    order = tree.modules()
    name = UMBRELLA
    included = [f"{module}/{header}" for module, header in INCLUDE.findall(tree.read(name))]
    prefix = "libtrainkit/include/trainkit/"
    public = [path[len(prefix):] for path in tree.matching(r"^libtrainkit/include/trainkit/\w+/.*\.h$")]
    for header in sorted(NOT_IN_UMBRELLA & set(included)):
        yield f"{name}: includes trainkit/{header}, a network"
    for header in sorted(set(included) - set(public)):
        yield f"{name}: includes trainkit/{header}, which does not exist"
    if len(included) > MAX_UMBRELLA:
        yield f"{name}: includes {len(included)} headers, more than {MAX_UMBRELLA}"
    if len(included) != len(set(included)):
        yield f"{name}: includes a header twice"
    ranks = [order.index(header.split("/")[0]) for header in included if header.split("/")[0] in order]
    if ranks != sorted(ranks):
        yield f"{name}: modules are not in the order of libtrainkit/CMakeLists.txt"


def check_surface(tree):
    """Every public class and function is needed by a program, an example, a page or another public name, except those
    in tests/lint/surface.txt."""
    yield from surface.check(tree)


def check_private_includes(tree):
    """No program or example includes an internal header, except those in tests/lint/private_includes.txt."""
    yield from private_includes.check(tree)


MAX_FUNCTION_LINES = 60
LONG_TABLES = {"known_scenes", "onnx_tensor_operations"}  # functions that return a table
NO_FUNCTION = re.compile(r"[ \t]*(namespace|class|struct|enum|union|extern|template <[^>]*> (class|struct))\b")


def functions(text):
    """Yields (first line, lines, head) of the functions in column 0 or 2 of formatted code."""
    lines = re.sub(r"//[^\n]*", "", text).split("\n")
    for indent in ("", "  "):
        start = None
        for number, line in enumerate(lines):
            if not line.startswith(indent) or line[len(indent):len(indent) + 1] in ("", " "):
                continue
            if line.startswith(indent + "}"):
                head = "\n".join(lines[start:number]).partition("{\n")[0] if start is not None else ""
                if re.search(r"\)[^()=;]*$", head) and not NO_FUNCTION.match(head):
                    yield start + 1, number - start + 1, head
                start = None
            else:
                start = number


def check_function_lines(tree):
    """No function of the library, of a trainer or of an example is longer than MAX_FUNCTION_LINES."""
    for name in tree.matching(r"^(libtrainkit|apps|examples)/.*\.(h|cpp|cu|cuh)$"):
        for line, length, head in functions(tree.read(name)):
            if length > MAX_FUNCTION_LINES and not any(f" {table}(" in head for table in LONG_TABLES):
                yield f"{name}:{line}: a function has {length} lines, more than {MAX_FUNCTION_LINES}"


def check_layers(tree):
    """Every folder of the library includes only those that the table of libtrainkit/README.md names."""
    yield from folders.check_layers(tree)


def check_cycles(tree):
    """No folders of the library include each other, except those in tests/lint/cycles.txt."""
    yield from folders.check_cycles(tree)


def check_internals(tree):
    """libtrainkit/README.md names the sources that include headers which LibTorch does not document."""
    yield from folders.check_internals(tree)


def check_classes(tree):
    """No class has more methods or data members than the goal, or than tests/lint/classes.txt grants it."""
    yield from classes.check(tree)


def check_headers_listed(tree):
    """Every public header is listed in HEADERS of its module's CMakeLists.txt; otherwise it would not be installed."""
    for name in tree.matching(r"^libtrainkit/include/trainkit/\w+/.*\.h$"):
        module, header = name.split("/", 4)[3:]
        listing = f"libtrainkit/src/{module}/CMakeLists.txt"
        if listing not in tree.files or not re.search(rf"(?<![\w/]){re.escape(header)}\b", tree.read(listing)):
            yield f"{name}: is not named in {listing}"


def check_file_functions(tree):
    """None of LibTorch's own functions that read or write files is used, except by a peer."""
    for name in tree.matching(r"^(libtrainkit|apps|examples|bench)/.*\.(h|cpp|cu)$"):
        if name == "bench/train/torchscript_bench.cpp":
            continue
        text = tree.read(name)
        for match in BANNED_SOURCE.finditer(re.sub(r"//[^\n]*", "", text)):
            yield f"{name}: uses {match.group().strip(' (')}"


TORCH_FOLDER = "libtrainkit/src/core/libtorch/"
TORCH_CONDITION = re.compile(r"\bTORCH_(?:VERSION|ABI_VERSION)_\w+|^[ \t]*#[ \t]*(?:el)?if\b.*\bTORCH_VERSION\b", re.M)
TORCH_NAMESPACE = re.compile(r"^namespace (?:at|c10d?|torch)(?:::\w+)* \{([^}]*)\}", re.M)
FORWARD_DECLARATION = re.compile(r"\s*(?:(?:class|struct|enum(?: class)?) \w+[^;{(]*;|//[^\n]*\n)")


def check_torch_versions(tree):
    """Conditions on LibTorch's version, and declarations of what its headers do not declare, are in one folder."""
    for name in tree.matching(r"^(libtrainkit|apps|examples|bench|tests)/.*\.(h|cpp|cuh?)$"):
        if name.startswith(TORCH_FOLDER):
            continue
        text = tree.read(name)
        for match in TORCH_CONDITION.finditer(text):
            yield f"{name}:{line_of(text, match.start())}: a condition on LibTorch's version: move it to {TORCH_FOLDER}"
        for match in TORCH_NAMESPACE.finditer(text):
            if FORWARD_DECLARATION.sub("", match[1]).strip():
                yield f"{name}:{line_of(text, match.start())}: declares what LibTorch does not: move it to {TORCH_FOLDER}"


def check_short_tests(tree):
    """Each test of tests/short.txt exists."""
    if "tests/short.txt" not in tree.files:
        return
    names = re.findall(r"^[a-z]\S*", tree.read("tests/short.txt"), re.M)
    files = {pathlib.PurePath(name).name for name in tree.matching(r"^tests/.*_test\.cpp$")}
    for name in names:
        if name.split(".")[-1] + "_test.cpp" not in files:
            yield f"tests/short.txt: {name}: there is no such test"


def check_paths(tree):
    """Tracked text names no folder of a developer's machine."""
    for name in tree.files:
        data = (tree.root / name).read_bytes()
        if b"\0" in data[:8192]:
            continue
        text = data.decode("utf-8", "replace")
        for match in MACHINE_PATH.finditer(text):
            yield f"{name}:{line_of(text, match.start())}: names {match.group()}"


def check_conflicts(tree):
    """No tracked file has the lines that a merge leaves where both sides changed."""
    for name in tree.files:
        text = tree.read(name)
        for match in re.finditer(r"^(<{7}|>{7}) ", text, re.MULTILINE):
            yield f"{name}:{line_of(text, match.start())}: {match.group()}, left by a merge"


def anchors(text):
    """The anchors of a Markdown page, derived from its headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).strip().replace(" ", "-")
        found.add(slug)
    return found


def check_links(tree):
    """Relative links of the Markdown pages lead to files, and their anchors to headings."""
    for name in tree.matching(r"\.md$"):
        text = tree.read(name)
        prose = re.sub(r"```.*?```|`[^`\n]*`", lambda code: re.sub(r"[^\n]", " ", code.group()), text, flags=re.S)
        for match in re.finditer(r"\]\(([^)\s]+)\)", prose):
            link, _, anchor = match.group(1).partition("#")
            if re.match(r"\w+:", link):
                continue
            where = f"{name}:{line_of(text, match.start())}"
            target = (tree.root / name).parent / link if link else tree.root / name
            if not target.exists():
                yield f"{where}: {match.group(1)} leads nowhere"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
                yield f"{where}: {match.group(1)}: no such heading"


def code_blocks(text, language):
    """Returns (line, code) of the fenced blocks in a language; a block may be indented."""
    for match in re.finditer(rf"^( *)```{language}[^\n]*\n(.*?)^ *```", text, re.M | re.S):
        indent = match.group(1)
        yield line_of(text, match.start()), re.sub(rf"^{indent}", "", match.group(2), flags=re.M)


def check_readme(tree):
    """Pages show examples as they are, and the README's tables list every trainer and every command of trainkit."""
    for page, example in (("README.md", "examples/readme.cpp"), ("docs/own-trainer.md", "examples/own_trainer/main.cpp")):
        if example not in tree.files:
            continue
        blocks = [code for _, code in code_blocks(tree.read(page), "cpp")]
        if not blocks or blocks[0] != tree.read(example):
            yield f"{page}: its first program differs from {example}"
    if "apps/trainkit/main.cpp" not in tree.files:
        return
    text = tree.read("README.md")
    tools = re.findall(r'\{"([\w-]+)", "[^"]*", \w+_command\}', tree.read("apps/trainkit/main.cpp"))
    trainers = [re.search(r'\.name = "(trainkit-\w+)"', tree.read(name)) for name in tree.matching(r"^apps/\w+/app\.cpp$")]
    names = [f"trainkit {tool}" for tool in tools] + [found[1] for found in trainers if found]
    for name in names:
        if not re.search(rf"^\| [^|]*`{name}`", text, re.M):
            yield f"README.md: no table has a row of {name}"
    for name in re.findall(r"`(trainkit [a-z-]+)`", "\n".join(re.findall(r"^\| ([^|]*) \|", text, re.M))):
        if name not in names:
            yield f"README.md: lists {name}, which is no command"


def check_promises(tree):
    """Every test that docs/reliability.md names in quotation marks exists."""
    page = "docs/reliability.md"
    if page not in tree.files:
        return
    titles = set()
    for name in tree.matching(r"^tests/.*\.cpp$"):
        for first, more in re.findall(r'TEST_CASE\(\s*"([^"]*)"\s*(?:\n\s*"([^"]*)")?', tree.read(name)):
            titles |= {first, first + more}
    for number, line in enumerate(tree.read(page).splitlines(), 1):
        for title in re.findall(r'"([A-Z][^"]{15,})"', line):
            if title not in titles:
                yield f'{page}:{number}: there is no test "{title}"'


def check_errors(tree):
    """docs/errors.md has an entry for every error id of the sources, and no other."""
    if "docs/errors.toml" in tree.files:
        yield from errors.check(tree.root)


def check_figures(tree):
    """Figures that pages quote equal their sources: published benchmarks, the tables of reliability and memory."""
    yield from figures.check(tree.root)


FIELD_NAMES = "libtrainkit/src/logging/field_names.h"
FIELDS_PAGE = "docs/formats/run.md"


def check_fields(tree):
    """The tables of docs/formats/run.md have every name of logging/field_names.h below the heading of its file, and no
    other name."""
    if FIELD_NAMES not in tree.files:
        return
    named, described, names = {}, {}, {}  # the first two: {file: {name: line}}
    for number, line in enumerate(tree.read(FIELD_NAMES).splitlines(), 1):
        if heading := re.match(r"// ---- ([\w.]+):", line):
            names = named.setdefault(heading[1], {})
        elif name := re.match(r'inline constexpr char k\w+\[\] = "(\w+)";', line):
            names[name[1]] = number
    page = re.sub(r"```.*?```", lambda code: re.sub(r"[^\n]", "", code.group()), tree.read(FIELDS_PAGE), flags=re.S)
    for number, line in enumerate(page.splitlines(), 1):
        if heading := re.match(r"## (.*)", line):
            names = described.setdefault(heading[1], {})
        elif cell := re.match(r"\| ([^|]*) \|", line):
            names |= {name: number for name in re.findall(r"`(\w+)`", cell[1]) if name not in names}
    for file, names in named.items():
        for name, number in names.items():
            if name not in described.get(file, {}):
                yield f"{FIELD_NAMES}:{number}: no table of {FIELDS_PAGE} has `{name}` below the heading {file}"
        for name, number in described.get(file, {}).items():
            if not any(name in others for others in named.values()):
                yield f"{FIELDS_PAGE}:{number}: {FIELD_NAMES} has no name {name}"


# Phrases that are hard for readers of English as a second language, with the replacement. A space stands for any gap,
# including a line break between two lines of a comment.
HARD_PHRASES = [
    (r"beside", "next to, with, or compared with"),
    (r"(?:go|goes|went) on", "continue, or resume"),
    (r"(?:is|are|was|were) told(?! apart\b)", "reported"),
    (r"mend(?:s|ed|ing)?", "fix"),
    (r"so many", "N"),
    (r"of one's own", "your own"),
    (r"in peace", "uninterrupted"),
    (r"(?:rows|tokens|samples|bytes|records|pictures|frames|clips) an? "
     r"(?:step|second|minute|row|token|batch|rank|worker|epoch|device)", "per"),
    (r"(?:stands?|stood)(?! for\b| in for\b|-)", "is"),
    (r"the way of (?:the data|a change)", "data flow, or workflow"),
    (r"taken for granted", "assumed"),
    (r"to be had", "available"),
    (r"are alike in", "are the same in"),
    (r"is without end", "means unlimited"),
    (r"other many", "a different number of"),
    (r"says? otherwise", "override with"),
    (r"for its working", "smoke test"),
    (r"of the same minute", "measured together"),
    (r"that which", "the noun"),
]
GAP = r"(?:[ \t]+|[ \t]*\n[ \t]*(?:///?<?|#|\*)?[ \t]*)"
PLAIN_ENGLISH = [(re.compile(r"\b" + phrase.replace(" ", GAP) + r"\b", re.I), plain) for phrase, plain in HARD_PHRASES]
ANY_PHRASE = re.compile(r"\b(?:" + "|".join(phrase.replace(" ", GAP) for phrase, _ in HARD_PHRASES) + r")\b", re.I)

# Files without this check.
PLAIN_ENGLISH_LATER = (
    "apps/transformer/demo_text.cpp",  # a text to learn
)


def prose(name, text):
    """Returns the text of a page with blanks instead of program output and inline code."""
    if not name.endswith(".md"):
        return text
    spared = r"^( *)```(?!cpp|sh|yaml|python)[^\n]*\n.*?^ *```|`[^`\n]+`"
    return re.sub(spared, lambda match: re.sub(r"[^\n]", "_", match.group()), text, flags=re.M | re.S)


LEAST_WIDTH = 600  # pixels


def check_pictures(tree):
    """The PNG pictures of the pages are wide enough for a screen."""
    for name in tree.matching(r"^docs/.*\.png$"):
        head = (tree.root / name).read_bytes()[:24]
        width = int.from_bytes(head[16:20], "big")
        if head[:8] != b"\x89PNG\r\n\x1a\n" or width < LEAST_WIDTH:
            yield f"{name}: {width} pixels wide, less than {LEAST_WIDTH}"


def check_plain_english(tree):
    """Pages, headers, sources and ./dev have none of HARD_PHRASES."""
    for name in tree.matching(r"\.md$|^(libtrainkit|apps|examples|tests|bench)/.*\.(h|cpp|cu)$|^dev$"):
        if name.startswith(PLAIN_ENGLISH_LATER):
            continue
        text = prose(name, tree.read(name))
        if not ANY_PHRASE.search(text):
            continue
        for phrase, plain in PLAIN_ENGLISH:
            for match in phrase.finditer(text):
                found = re.sub(r"[\s/#*<]+", " ", match.group())
                yield f"{name}:{line_of(text, match.start())}: '{found}': write {plain}"


def check_symbols(tree, build):
    """No built library calls LibTorch's file functions, directly or indirectly."""
    for library in sorted(build.glob("libtrainkit/src/*/libtrainkit_*.a")):
        symbols = subprocess.run(["nm", "-C", "--undefined-only", library], capture_output=True, text=True, check=True).stdout
        for symbol in sorted({line.strip()[2:] for line in symbols.splitlines()}):
            if BANNED_SYMBOL.match(symbol):
                yield f"{library.name}: calls {symbol}"


QUICK = [check_layers, check_cycles, check_internals, check_classes, check_umbrella, check_surface, check_private_includes, check_function_lines,
         check_headers_listed, check_file_functions, check_torch_versions, check_short_tests, check_paths, check_conflicts, check_links, check_readme,
         check_promises, check_errors, check_figures, check_fields, check_pictures, check_plain_english]
WITH_BUILD = [check_symbols]
TABLES = {"classes": classes.largest, "cycles": folders.print_cycles, "surface": surface.count,
          "private_includes": private_includes.count}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).parents[2])
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--print", action="store_true", help="print what the checks classes, cycles and surface find")
    parser.add_argument("checks", nargs="*")
    arguments = parser.parse_args()
    tree = Tree(arguments.root)
    found = 0
    for check in QUICK + (WITH_BUILD if arguments.build else []):
        if arguments.checks and check.__name__[6:] not in arguments.checks:
            continue
        if arguments.print and check.__name__[6:] in TABLES:
            print("\n".join(TABLES[check.__name__[6:]](tree)))
        problems = list(check(tree, arguments.build.resolve()) if check in WITH_BUILD else check(tree))
        print(f"{check.__name__[6:]}: {len(problems) or 'no'} problem{'s' if len(problems) > 1 else ''}")
        for problem in problems:
            print(f"  {problem}")
        found += len(problems)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
