"""Finds the internal headers of the library (libtrainkit/src) that programs and examples include. A user's program
cannot include these: what the bundled programs need belongs into libtrainkit/include. private_includes.txt lists the
includes that are left; it may only shrink. The tool, apps/trainkit, measures the library itself and may keep its own.
"""

import collections
import re

LIST = "tests/lint/private_includes.txt"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include "([^"]+)"', re.M)


def includes(tree):
    """Yields (file, header) for each include of an internal header."""
    for name in tree.matching(r"^(apps|examples)/.*\.(h|cpp|cu)$"):
        for header in INCLUDE.findall(tree.read(name)):
            if f"libtrainkit/src/{header}" in tree.files:
                yield name, header


def listed(tree):
    """Yields (line number, file, header) of the list."""
    for number, line in enumerate(tree.read(LIST).splitlines(), 1):
        name, colon, header = line.partition("#")[0].partition(":")
        if colon:
            yield number, name.strip(), header.strip()


def check(tree):
    found = set(includes(tree))
    known = {(name, header): number for number, name, header in listed(tree)}
    for name, header in sorted(found - known.keys()):
        yield f"{name}: includes {header}, which is not installed: users cannot include it"
    for (name, header), number in known.items():
        if (name, header) not in found:
            yield f"{LIST}:{number}: {name} includes {header} no longer: remove the line"


def count(tree):
    """Returns lines with the number of private includes of each program."""
    programs = collections.Counter("/".join(name.split("/")[:2]) for name, _ in includes(tree))
    return [f"{number:4} {program}" for program, number in sorted(programs.items())] + [f"{sum(programs.values()):4} in all"]
