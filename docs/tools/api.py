"""Pages of the public headers: one Markdown page per header, with every public declaration and its comment.

The headers are written to be read from top to bottom; a page keeps that order. A struct or an enum is shown as code with
its comments; each public member of a class has an entry of its own.
"""

import re
import textwrap

NOT_NAMES = {"requires", "decltype", "noexcept", "explicit", "alignas", "sizeof", "void", "bool", "int", "double", "operator"}
TYPE = re.compile(r"^(?:(enum class|enum|class|struct|union)) (?:\[\[\w+\]\] )?(\w+)")


def code_alone(text):
    """`text` with strings and comments blanked, for counting brackets."""
    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*', lambda found: re.sub(r"[^\n]", " ", found.group()), text)


class Declaration:
    def __init__(self, comment, code, access):
        self.comment, self.code, self.access = comment, code, access
        self.head = self._head()
        found = TYPE.match(self.head)
        self.kind, self.name = (found[1], found[2]) if found else self._kind_and_name()

    def _head(self):
        """The code on one line, without templates, attributes and words that do not name anything."""
        text = " ".join(code_alone(self.code).split())
        text = re.sub(r"^template <.*?> (?=\w)", "", re.sub(r"(?<=<)[^<>]*<[^<>]*>[^<>]*(?=>)", "", text))
        text = re.sub(r"^requires .*?>(?:::value)? (?=[a-zA-Z])", "", text)
        return text

    def _kind_and_name(self):
        if macro := re.match(r"#define (\w+)", self.code):
            return "macro", macro[1]
        if module := re.match(r"TORCH_MODULE\((\w+)\)", self.head):
            return "module", module[1]
        if alias := re.match(r"using (\w+) =", self.head):
            return "using", alias[1]
        text = self.head
        while text != (text := re.sub(r"<[^<>]*>", "", text)):
            pass
        before = re.split(r"(?<![=!<>])=(?!=)|\{", text)[0] if not re.match(r"[^(]*\boperator", text) else text
        if operator := re.search(r"\boperator ?([^\s(]+|\(\)|\w+)\s*\(", before):
            return "function", "operator" + operator[1]
        for found in re.finditer(r"(~?\w+) ?\(", before):
            if found[1] not in NOT_NAMES:
                return "function", found[1]
        field = re.search(r"(\w+)(?:\[[^\]]*\])?\s*(?:;|$)", before)
        return "field", field[1] if field else ""

    @property
    def is_definition(self):
        return self.kind in ("class", "struct", "union", "enum", "enum class") and "{" in code_alone(self.code)

    @property
    def is_forward(self):
        return self.kind in ("class", "struct", "union") and not self.is_definition

    def body(self):
        plain = code_alone(self.code)
        return self.code[plain.index("{") + 1:plain.rindex("}")]

    def signature(self):
        """The code without the body of a function."""
        if self.kind != "function":
            return textwrap.dedent(self.code).strip()
        plain, depth = code_alone(self.code), 0
        for at, letter in enumerate(plain):
            depth += (letter == "(") - (letter == ")")
            ends = depth == 0 and (letter == "{" or (letter == ":" and plain[at - 1] in " \n" and plain[at + 1] != ":"))
            if ends and ")" in plain[:at]:
                return textwrap.dedent(self.code[:at]).rstrip() + ";"
        return textwrap.dedent(self.code).strip()


def declarations(lines, access="public"):
    """The declarations of the lines of a namespace or of a class, in order."""
    found, comment, code = [], [], []
    for line in lines:
        stripped = line.strip()
        if not code and re.fullmatch(r"(public|protected|private):", stripped):
            access, comment = stripped[:-1], []
        elif not code and stripped.startswith("///") and not stripped.startswith("///<"):
            comment.append(stripped[3:])
        elif not code and (not stripped or stripped.startswith("//") or stripped == "}"):
            comment = []
        elif not code and stripped.startswith("#") and not stripped.startswith("#define"):
            continue
        else:
            code.append(line)
            plain = code_alone("\n".join(code))
            macro = plain.lstrip().startswith("#define")
            closed = plain.count("{") == plain.count("}") and plain.count("(") == plain.count(")")
            if (macro and not stripped.endswith("\\")) or (not macro and closed and re.search(r"[;}]\s*$", plain)):
                text = "\n".join(code)
                trailing = re.findall(r"///< ?(.*)", text) if not comment else []
                found.append(Declaration(comment or [" " + part for part in trailing], text, access))
                comment, code = [], []
    return found


def prose(comment):
    """The Markdown of a comment: paragraphs and lists; indented lines become code."""
    out, code = [], []

    def flush():
        while code and not code[-1].strip():
            code.pop()
        if code:
            language = "cpp" if any(re.search(r"[;{}]\s*(//.*)?$", line) for line in code) else "text"
            out.extend(["", f"```{language}", *textwrap.dedent("\n".join(code)).splitlines(), "```", ""])
            code.clear()

    tagged = False  # below "@return", an indent of three is the same sentence
    for line in comment:
        tagged = line.startswith(" @") or (tagged and bool(re.match(r" {1,3}\S", line)) and not code)
        if tagged:
            line = " " + line.strip()
        listed = re.match(r" {1,3}([-*]|\d\.) ", line) or (out and re.match(r" {3}\S", line) and out[-1].lstrip().startswith(("- ", "1. ")))
        if (line.startswith("   ") and not listed) or (code and not line.strip()):
            code.append(line)
            continue
        flush()
        line = line[1:] if line.startswith(" ") else line
        if re.match(r"[-*] |\d\. ", line) and out and out[-1].strip() and not re.match(r"\s*([-*]|\d\.) ", out[-1]):
            out.append("")
        out.append(escaped(line))
    flush()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def escaped(line):
    parts = re.split(r"(`[^`]*`)", re.sub(r"^@return ", "Returns: ", re.sub(r"^@param (\w+)", r"`\1`:", line)))
    return "".join(part if part.startswith("`") else re.sub(r"([<>\[\]_*|\\])", r"\\\1", part) for part in parts)


def slug(*names):
    return re.sub(r"[^a-z0-9_]+", "-", "-".join(names).lower().replace("~", "end-of-")).strip("-")


def code_block(text):
    return f"```cpp\n{text}\n```\n"


def struct_text(item):
    """A struct as code: its public members with their comments, without bodies of functions."""
    plain = code_alone(item.code)
    lines = [textwrap.dedent(item.code[:plain.index("{") + 1])]
    for member in declarations(item.body().splitlines(), "private" if item.kind == "class" else "public"):
        if member.access != "public":
            continue
        lines += [f"  ///{line}" for line in member.comment if "///<" not in member.code]
        lines += textwrap.indent(struct_text(member) if member.is_definition and member.kind in ("struct", "class") else
                                 member.signature(), "  ").splitlines()
    return "\n".join([*lines, "};"])


def entry(item, owner, level, seen):
    """The Markdown of one declaration, and of the members of a class."""
    full = "::".join([*owner, item.name])
    heading = "" if full in seen else f"{'#' * level} {escaped(full)} {{ #{slug(*owner, item.name)} }}\n\n"
    seen.add(full)
    text = heading + (prose(item.comment) + "\n\n" if item.comment else "")
    if not item.is_definition:
        return text + code_block(item.signature()) + "\n"
    if item.kind != "class":
        return text + code_block(struct_text(item) if item.kind in ("struct", "union") else textwrap.dedent(item.code).strip()) + "\n"
    plain = code_alone(item.code)
    text += code_block(textwrap.dedent(item.code[:plain.index("{")]).strip() + ";") + "\n"
    for member in declarations(item.body().splitlines(), "private"):
        routine = not member.comment and re.match(r"~|operator=$", member.name)  # destructors, assignments
        if member.access == "public" and not member.is_forward and not routine and "= delete" not in member.code:
            text += entry(member, [*owner, item.name], level + 1, seen)
    return text


def public_lines(text):
    """The lines of namespace trainkit without its namespace detail, and of macros."""
    lines, inside, skipped, nested, out = text.splitlines(), False, 0, False, []
    for line in lines:
        if skipped or re.match(r"namespace (trainkit::)?detail\b", line):
            skipped += line.count("{") - line.count("}")  # the depth of braces
        elif re.match(r"namespace trainkit::\w+ \{", line) or line.startswith("namespace trainkit {"):
            inside = True
        elif re.match(r"namespace \w+ \{$", line):  # in namespace trainkit
            nested = True
        elif nested and re.match(r"}  // namespace", line):
            nested = False
        elif re.match(r"}  // namespace", line):
            inside = False
        else:
            out.append(line if inside else line if line.startswith(("///", "#define", "  ")) else "")
    return out


def page(header, text):
    """The page of a header, and its public names: (markdown, names)."""
    lines = text.splitlines()
    start = lines.index("#pragma once") + 1
    summary = []
    while lines[start].startswith("///"):
        summary.append(lines[start][3:])
        start += 1
    include = code_block(f'#include "trainkit/{header}"')
    out, seen = f"# {header}\n\n{prose(summary)}\n\n{include}\n", set()
    items = [item for item in declarations(public_lines("\n".join(lines[start:])))
             if item.name and not item.is_forward and not (item.kind == "field" and item.name.endswith("_"))]
    for item in items:
        if item.kind == "function" and not item.comment and any(item.name == other.name and other.comment for other in items):
            continue  # the definition of a template below its documented declaration
        if item.kind == "function" and "::" in item.head.split("(")[0].split(" ")[-1]:
            continue  # the definition of a member
        out += entry(item, [], 2, seen)
    return out, sorted(seen)
