"""Counts the methods and data members of the library's classes.

A method is a function that a class declares, constructors and operators included, but no defaulted, deleted or friend
function. A data member is a variable of an object or a class, but no constant (static constexpr). Each class counts
alone: those nested in it, such as its Impl, are classes of their own. Structs without methods (options, results) have
no limit.
"""

import re
from typing import NamedTuple

GOAL_METHODS = 25
GOAL_MEMBERS = 15
LIST = "tests/lint/classes.txt"
SOURCES = r"^libtrainkit/(include/trainkit|src)/.*\.(h|cpp|cu|cuh)$"

# In this order: a comment in a string is none.
TEXT = re.compile(r'R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'(?<!\d\')'
                  r"|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*", re.S | re.M)
CLASS = re.compile(r"\b(?<!enum )(?P<kind>class|struct|union)\s+(?:\[\[[^\]]*\]\]\s*|alignas\((?:[^()]|\([^()]*\))*\)\s*)*"
                   r"(?P<name>[A-Za-z_][\w:]*(?:<[^{};()]*>)?)\s*(?:final\s*)?(?::[^:{};][^{};]*)?\{")
CLOSING = {"(": ")", "[": "]", "{": "}"}
# Attributes and the like, whose parentheses are not those of a function.
DECORATION = re.compile(r"\[\]|\b(?:alignas|decltype|explicit|noexcept|requires|ABSL_\w+|TRAINKIT_\w+)\s*\(\)")
NO_MEMBER = re.compile(r"(?:using|typedef|friend|static_assert|enum|template friend)\b")
NESTED = re.compile(r"(?:template\s+)?(?:class|struct|union)\b")


class Class(NamedTuple):
    name: str  # with the classes around it: Trainer::Impl
    where: str  # file:line
    methods: int
    members: int

    @property
    def is_large(self):
        return self.methods > 0 and (self.methods > GOAL_METHODS or self.members > GOAL_MEMBERS)


def without_text(code):
    """Returns code with blanks instead of comments, directives and the contents of strings; lines stay."""
    return TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), code)


def closing(code, start):
    """Returns the position of the bracket that closes the one at `start`."""
    depth = []
    for match in re.compile(r"[()\[\]{}]").finditer(code, start):
        if match.group() in CLOSING:
            depth.append(CLOSING[match.group()])
        elif depth.pop() != match.group():
            raise ValueError(f"unbalanced brackets at line {code.count(chr(10), 0, match.start()) + 1}")
        if not depth:
            return match.start()
    raise ValueError("a bracket is not closed")


def declarations(body):
    """Yields the declarations in a class's body, without what is in brackets: 'void run() const {}'."""
    body = re.sub(r"\b(?:public|protected|private)\s*:(?!:)", "", body)
    declaration, position = "", 0
    while position < len(body):
        char = body[position]
        if char == ";":
            yield declaration
            declaration = ""
        elif char in CLOSING:
            pointer = "*" if body[position + 1] == "*" else ""  # void (*callback)(int)
            position = closing(body, position)
            declaration += char + pointer + CLOSING[char]
            following = body[position + 1:].lstrip()[:1]
            # A function ends with its body. Members that a constructor initialises with braces are before the body.
            if char == "{" and following not in (",", "{", ";") and is_function(declaration):
                yield declaration
                declaration = ""
        else:
            declaration += char
        position += 1


def plain(declaration):
    """Returns a declaration without attributes, template arguments and blanks between words."""
    text = DECORATION.sub(" ", declaration.replace("->", " "))
    if "operator" not in text:
        before = None
        while before != text:
            before, text = text, re.sub(r"<[^<>]*>", "", text)
    return " ".join(text.split())


def is_function(declaration):
    text = plain(declaration)
    if re.search(r"\boperator\b", text):
        return True
    if NESTED.match(text) and "{" in text.partition("(")[0]:
        return False  # a nested class
    return re.search(r"\w ?\((?!\*)", re.split(r"[={]", text)[0]) is not None


def count(body):
    """Returns the methods and data members that a class's body declares."""
    methods = members = 0
    for declaration in declarations(body):
        text = plain(declaration)
        if not text or NO_MEMBER.match(text):
            continue
        if is_function(declaration):
            methods += re.search(r"=\s*(default|delete)$", text) is None
            continue
        if NESTED.match(text):
            text = text.partition("}")[2] if "}" in text else ""  # `struct {...} name`
        if text and not re.match(r"(?:static constexpr|constexpr static|static const|inline static constexpr)\b", text):
            members += 1 + text.count(",")
    return methods, members


def classes(tree):
    """Returns the classes of the library in the order of its files."""
    found = []
    for name in tree.matching(SOURCES):
        code = without_text(tree.read(name))
        around = []  # (end, name) of the classes that are open
        for match in CLASS.finditer(code):
            start = match.end() - 1
            around = [outer for outer in around if outer[0] > start]
            end = closing(code, start)
            own = re.sub(r"\s+", "", match["name"])
            around.append((end, own))
            methods, members = count(code[start + 1:end])
            found.append(Class("::".join(outer[1] for outer in around), f"{name}:{code.count(chr(10), 0, start) + 1}",
                               methods, members))
    return found


def largest(tree):
    """Returns a table of the ten classes with the most methods and data members."""
    ten = sorted((c for c in classes(tree) if c.methods), key=lambda c: -(c.methods + c.members))[:10]
    return [f"{c.name:24} {c.methods:3} methods {c.members:3} data members  {c.where}" for c in ten]


def entries(tree, name):
    """Yields (line number, words) of the lines of a list, without comments."""
    for number, line in enumerate(tree.read(name).splitlines(), 1):
        if words := line.partition("#")[0].split():
            yield number, words


def check(tree):
    """Yields the large classes that are not in the list, and the lines of the list that do not fit."""
    found = {c.name: c for c in classes(tree) if c.is_large}
    for number, (name, *sizes) in entries(tree, LIST):
        methods, members = map(int, sizes)
        where, now = f"{LIST}:{number}", found.pop(name, None)
        if now is None:
            yield f"{where}: {name} has at most {GOAL_METHODS} methods and {GOAL_MEMBERS} data members now: remove the line"
        elif now.methods > methods or now.members > members:
            yield (f"{now.where}: {name} grew from {methods} methods and {members} data members to {now.methods} and "
                   f"{now.members}: move some into a class of their own")
        elif (now.methods, now.members) != (methods, members):
            yield f"{where}: {name} is smaller now: write '{name} {now.methods} {now.members}'"
    for new in found.values():
        yield (f"{new.where}: {new.name} has {new.methods} methods and {new.members} data members, more than "
               f"{GOAL_METHODS} and {GOAL_MEMBERS}: move some into a class of their own")
