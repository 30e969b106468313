"""Finds the public classes and functions that nobody needs.

A name of the public headers is needed if a program (apps/), an example, a page or the README writes it, or if the
declaration of another needed name does: a type stays public as long as a public function needs it. Other names belong
into libtrainkit/src. What only tests use is not needed: they see internal headers too.

Names are compared as words, without their class: `size` is needed if anybody writes `size`.
"""

import re
from typing import NamedTuple

import classes

LIST = "tests/lint/surface.txt"
HEADERS = r"^libtrainkit/include/trainkit/.*\.h$"
# Where users see how the library is used: bundled programs, examples and pages, but no list of changes.
USES = r"^(apps/.*\.(h|cpp)|examples/.*|docs/.*\.md|README\.md)$"

SCOPE = re.compile(r"(?:inline )?namespace (?P<namespace>[\w:]*)$"
                   r"|(?:^|[\s>])(?P<kind>class|struct|union|enum(?: class)?) (?:\[\[[^\]]*\]\] ?)?(?P<type>\w+)"
                   r"(?: final)?(?P<bases> ?:(?!:)[^;{}]*)?$")
TEMPLATE = re.compile(r"template ?<.*?> (?=class|struct)")
ACCESS = re.compile(r"(public|protected|private)\s*:(?!:)")
NO_FUNCTION = re.compile(r"(using|typedef|friend|template friend|static_assert)\b")
FUNCTION = re.compile(r"([A-Za-z_]\w*) ?\(")
DECORATION = re.compile(r"(alignas|decltype|explicit|noexcept|requires|(ABSL|TORCH|TRAINKIT)_\w+)$")


class Name(NamedTuple):
    name: str  # with the classes around it: Trainer::fit
    where: str  # file:line
    is_type: bool
    words: frozenset  # of its declaration: a function's types, a type's bases and data members

    @property
    def word(self):
        return self.name.rpartition("::")[2]


def words_of(text):
    return frozenset(re.findall(r"[A-Za-z_]\w*", text))


def without_arguments(text):
    """Returns a declaration without template arguments and without what is in brackets."""
    while text != (inner := re.sub(r"\([^()]*\)", "\0", text)):
        text = inner
    kept, depth = "", 0
    for char in text.replace("->", "  "):
        depth += char == "<"
        kept += char if depth == 0 else ""
        depth -= char == ">"
    return kept.replace("\0", "()")


def function_name(declaration):
    """Returns the name of the function that a declaration declares; None for operators and for anything else."""
    text = without_arguments(" ".join(declaration.split()))
    if NO_FUNCTION.match(text) or "operator" in text or "~" in text:
        return None
    names = [name for name in FUNCTION.findall(re.split("[={]", text)[0]) if not DECORATION.match(name)]
    return names[0] if names else None


class Reader:
    """Reads the public names of one header."""

    def __init__(self, file, text):
        self.file = file
        self.code = classes.without_text(text)
        self.names = []
        self.read(0, len(self.code), [], True)

    def where(self, text, end):
        """The place of the declaration `text`, whose end is a position."""
        return f"{self.file}:{self.code.count(chr(10), 0, end - len(text.lstrip())) + 1}"

    def read(self, start, end, around, public):
        """Reads the declarations between two positions, in the classes `around`. Returns the words of public
        declarations other than functions and types: data members, constructors, aliases."""
        begin = position = start
        words = set()
        while position < end:
            char = self.code[position]
            if label := ACCESS.match(self.code, position) if around and not self.code[begin:position].strip() else None:
                public = label[1] == "public"
                begin = position = label.end()
                continue
            last = classes.closing(self.code, position) if char in "([{" else position
            head = self.code[begin:position]
            if char == "{" and (scope := SCOPE.search(TEMPLATE.sub("", " ".join(head.split())))):
                if scope["namespace"] is not None:
                    if scope["namespace"] not in ("", "detail"):
                        self.read(position + 1, last, around, True)
                elif public:
                    self.read_type(scope, head, position, last, around)
                begin = last + 1
            elif char == ";" or (char == "{" and function_name(head) and
                                 self.code[last + 1:last + 40].lstrip()[:1] not in (",", "{", ";")):
                if public:
                    words |= self.declare(head, position, around)
                begin = last + 1
            position = last + 1
        return words

    def read_type(self, scope, head, position, last, around):
        place = len(self.names)
        around = [*around, scope["type"]]
        words = set(words_of(scope["bases"] or ""))
        if not scope["kind"].startswith("enum"):
            words |= self.read(position + 1, last, around, scope["kind"] != "class")
        self.names.insert(place, Name("::".join(around), self.where(head, position), True, frozenset(words)))

    def declare(self, text, end, around):
        name = function_name(text)
        if name is None or (around and name == around[-1]):
            return words_of(text)
        if not re.search(r"\b(override|final)\b", text):
            self.names.append(Name("::".join([*around, name]), self.where(text, end), False, words_of(text)))
        return set()


def public_names(tree):
    return [name for header in tree.matching(HEADERS) for name in Reader(header, tree.read(header)).names]


def unused(tree):
    """Returns the public names that nobody needs, in the order of the headers."""
    names = public_names(tree)
    written = set()
    for file in tree.matching(USES):
        written |= words_of(tree.read(file))
    types = {}
    for name in names:
        if name.is_type:
            types.setdefault(name.word.removesuffix("Impl"), []).append(name)  # TORCH_MODULE(Linear)
    needed = {name for name in names if name.word in written or (name.is_type and name.word.removesuffix("Impl") in written)}
    new = list(needed)
    while new:
        for word in new.pop().words:
            found = [name for name in types.get(word.removesuffix("Impl"), []) if name not in needed]
            needed.update(found)
            new += found
    return [name for name in names if name not in needed]


def count(tree):
    names = public_names(tree)
    types = sum(name.is_type for name in names)
    headers = len(tree.matching(HEADERS))
    return [f"{headers} public headers, {types} types, {len(names) - types} functions; {len(unused(tree))} are not needed"]


def check(tree):
    """Yields the public names that nobody needs and that are not in the list, and the lines of the list that are."""
    found = {n.name: n for n in unused(tree)}
    for number, (name,) in classes.entries(tree, LIST):
        if found.pop(name, None) is None:
            yield f"{LIST}:{number}: {name} is used now, or no longer public: remove the line"
    for n in found.values():
        kind = "type" if n.is_type else "function"
        yield (f"{n.where}: no program, example, page or other public name needs the public {kind} {n.name}: make it "
               f"internal, or show its use")
