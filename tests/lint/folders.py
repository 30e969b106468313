"""Checks which folders of the library include each other.

The table "Folders" of libtrainkit/README.md lists the folders in order; a folder includes only those that its row names,
and these are above it. The cycles that the order does not allow are in cycles.txt, which may only shrink. Its table
"LibTorch's internals" names the sources that include headers which LibTorch does not document.
"""

import collections
import re
from typing import NamedTuple

README = "libtrainkit/README.md"
HEADERS = "tests/lint/headers.txt"
CYCLES = "tests/lint/cycles.txt"
COLUMNS = ("folder", "what lives there", "where data enters and leaves", "may include")
SOURCE = re.compile(r"libtrainkit/(?:src|include/trainkit)/(?P<folder>\w+(?:/\w+)*)/(?P<stem>\w+)\.(?:h|cpp|cuh?)")
INTERNALS = (r"(?<=#include <)c10/core/impl/[\w/]+", r"(?<=#include <)torch/library\.h", r"(?<=#include <)ATen/core/dispatch/\w+",
             r"(?<=#include <)ATen/(?:native|cuda)/[\w/]+", r"(?<=#include <)ATen/record_function\.h", r"(?<=#include <)c10/cuda/\w+",
             r"(?<=#include <)torch/csrc/(?!api/|autograd/custom_function\.h)[\w/]+")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\s+"(?P<path>[\w/.-]+)"', re.M)


class Row(NamedTuple):
    where: str  # file:line
    includes: list  # folders that it may include


class Include(NamedTuple):
    where: str  # file:line
    source: str
    path: str  # as written
    target: str  # the file; None if there is none


def table(tree):
    """Returns the rows of the README's table by folder, in its order."""
    rows, heads = {}, None
    for number, line in enumerate(tree.read(README).splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == COLUMNS[0]:
            heads = cells
        elif heads and not line.startswith("|"):
            break
        elif heads and cells[0].startswith("`"):
            names = re.findall(r"`([\w/]+)`", cells[heads.index("may include")])
            rows[cells[0].strip("`")] = Row(f"{README}:{number}", names)
    return rows


def module_of(folder):
    return folder.partition("/")[0]


def contains(outer, inner):
    """Whether a folder is another one or above it."""
    return inner == outer or inner.startswith(outer + "/")


def homes_of_headers(tree):
    """Maps "module/stem" of the public headers in headers.txt to (line number, folder)."""
    homes = {}
    for number, line in enumerate(tree.read(HEADERS).splitlines(), 1):
        folder, _, stems = line.partition("#")[0].partition(":")
        homes.update({stem: (number, folder) for stem in stems.split()})
    return homes


class Library:
    """The sources of the library, their folders and what they include."""

    def __init__(self, tree):
        self.sources = {name: SOURCE.fullmatch(name) for name in tree.files if SOURCE.fullmatch(name)}
        self.files = set(tree.files)
        self.includes = [include for name in self.sources for include in self.includes_of(name, tree.read(name))]
        self.homes = homes_of_headers(tree)
        # Public headers are in the folder of their module. They belong to the source of the same name.
        self.sources_in_folders = {f"{module_of(match['folder'])}/{match['stem']}": match["folder"]
                      for name, match in self.sources.items() if "/include/" not in name and "/" in match["folder"]}

    def includes_of(self, name, text):
        here = name.rpartition("/")[0]
        for match in INCLUDE.finditer(text):
            path = match["path"]
            places = [f"libtrainkit/include/{path}", f"libtrainkit/src/{path}", f"{here}/{path}"]
            target = next((place for place in places if place in self.files), None)
            yield Include(f"{name}:{text.count(chr(10), 0, match.start()) + 1}", name, path, target)

    def key(self, name):
        match = self.sources[name]
        return f"{module_of(match['folder'])}/{match['stem']}"

    def folder(self, name):
        """The folder of a file: where it is or, for a public header, that of its source."""
        match, key = self.sources[name], self.key(name)
        if "/" in match["folder"]:
            return match["folder"]
        return self.sources_in_folders.get(key) or self.homes.get(key, (0, match["folder"]))[1]

    def row(self, name, rows):
        """The row of a file, or None."""
        return self.folder(name) if self.folder(name) in rows else None

    def arrows(self):
        """Maps pairs of folders to the includes from the first to the second."""
        found = collections.defaultdict(list)
        for include in self.includes:
            if include.target in self.sources:
                pair = self.folder(include.source), self.folder(include.target)
                if pair[0] != pair[1]:
                    found[pair].append(include)
        return found


def check_layers(tree):
    """Every folder of the library includes only those above it that the README's table names."""
    rows, library, declared = table(tree), Library(tree), tree.dependencies()
    order = list(rows)
    if [row for row in rows if "/" not in row] != tree.modules():
        yield f"{README}: its modules are not those of libtrainkit/CMakeLists.txt, in that order"
    on_cycles = {arrow for _, cycle in listed_cycles(tree) for arrow in arrows_of(cycle)}
    for folder, row in rows.items():
        for other in row.includes:
            if other not in rows:
                yield f"{row.where}: {folder} may include {other}, which is no folder of the table"
            elif order.index(other) >= order.index(folder) and (folder, other) not in on_cycles:
                yield f"{row.where}: {folder} may include {other}, which is not above it"
    used = collections.defaultdict(set)
    unknown = {match["folder"]: name for name, match in library.sources.items() if library.row(name, rows) is None}
    for folder, name in unknown.items():
        yield f"{name}: the table of {README} has no folder {folder}"
    for include in library.includes:
        if include.target not in library.sources:
            if include.target is None:
                yield f"{include.where}: there is no file {include.path}"
            continue
        user, other = library.row(include.source, rows), library.row(include.target, rows)
        if user is None or other is None or user == other:
            continue
        # The name of another module covers the folders below it.
        allowed = [entry for entry in rows[user].includes
                   if entry == other or (module_of(user) != module_of(other) and contains(entry, other))]
        used[user].update(allowed)
        if not allowed:
            yield f"{include.where}: {user} may not include {other} ({README})"
        elif module_of(other) not in declared.get(module_of(user), {module_of(other)}):
            yield f"{include.where}: {user} includes {other}, which its CMakeLists.txt does not name under DEPENDS"
    filled = {library.row(name, rows) for name in library.sources}
    for folder, row in rows.items():
        if "/" in folder and folder not in filled:
            yield f"{row.where}: there is no file in {folder}"
        for other in row.includes:
            if other not in used[folder]:
                yield f"{row.where}: {folder} does not include {other}: remove it from the row"


def arrows_of(cycle):
    """Returns the pairs of a cycle: a > b includes b from a, and a from b."""
    return list(zip(cycle, cycle[1:] + cycle[:1]))


def listed_cycles(tree):
    """Yields (line number, cycle) of cycles.txt."""
    for number, line in enumerate(tree.read(CYCLES).splitlines(), 1):
        folders = line.partition("#")[0].split(" > ")
        if folders != [""]:
            yield number, tuple(folder.strip() for folder in folders)


def cycles(arrows):
    """Returns all cycles that visit no folder twice. Each begins with its first folder by name."""
    following = {folder: [] for arrow in arrows for folder in arrow}
    for user, other in sorted(arrows):
        following[user].append(other)

    def reachable(folder):
        found, waiting = set(), [folder]
        while waiting:
            new = set(following[waiting.pop()]) - found
            found |= new
            waiting += new
        return found

    reach = {folder: reachable(folder) for folder in following}
    found = []

    def walk(path):
        for other in following[path[-1]]:
            if other == path[0]:
                found.append(tuple(path))
            elif other > path[0] and other not in path and path[0] in reach[other]:
                walk(path + [other])

    for folder in sorted(reach):
        walk([folder])
    return found


def check_cycles(tree):
    """No folder of the library includes one that includes it, except those in cycles.txt; headers.txt fits the files."""
    library = Library(tree)
    keys = {library.key(name) for name in library.sources}
    with_folders = {module_of(key) for key in library.sources_in_folders}
    for stem, (number, _) in library.homes.items():
        if stem not in keys or stem in library.sources_in_folders:
            yield f"{HEADERS}:{number}: no public header {stem} without a source: remove it"
    for stem in sorted(keys - set(library.homes) - set(library.sources_in_folders)):
        if module_of(stem) in with_folders:
            yield f"{HEADERS}: does not name the folder of {stem}"
    arrows = library.arrows()
    found = cycles(arrows)
    listed = {cycle: number for number, cycle in listed_cycles(tree)}
    for cycle, number in listed.items():
        if cycle not in found:
            yield f"{CYCLES}:{number}: the cycle {' > '.join(cycle)} is gone: remove the line"
    for cycle in found:
        if cycle not in listed:
            rarest = min((arrows[arrow] for arrow in arrows_of(cycle)), key=len)[0]
            yield f"{rarest.where}: includes {rarest.path} and closes the cycle {' > '.join(cycle)}"


def print_cycles(tree):
    """Returns the cycles, and for each pair of folders on one of them its includes."""
    arrows = Library(tree).arrows()
    found = cycles(arrows)
    lines = [" > ".join(cycle) for cycle in found]
    for arrow in sorted({arrow for cycle in found for arrow in arrows_of(cycle)}):
        lines += [f"{arrow[0]} includes {arrow[1]}:"] + [f"  {include.where} {include.path}" for include in arrows[arrow]]
    return lines


def check_internals(tree):
    """The README names each source that includes a header which LibTorch does not document."""
    names = re.compile("|".join(f"(?:{pattern})" for pattern in INTERNALS))
    text = tree.read(README).partition("## LibTorch's internals")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(\w+(?:/\w+)+)`", text))
    found = {}
    for name in Library(tree).sources:
        header = names.search(tree.read(name))
        if header and name.startswith("libtrainkit/src/"):
            found[name.removeprefix("libtrainkit/src/").rpartition(".")[0]] = (name, header[0])
    for stem, (name, header) in found.items():
        if stem not in listed:
            yield f"{name}: includes {header} of LibTorch, but {README} does not name it under LibTorch's internals"
    for stem in sorted(listed - set(found)):
        if any(stem == key.rpartition(".")[0].removeprefix("libtrainkit/src/") for key in tree.files):
            yield f"{README}: {stem} includes no internal header of LibTorch: remove it"
