"""Pages of the command-line flags, from the --help of the programs."""

import os
import re
import subprocess
import textwrap

FLAG = re.compile(r"^  --(?P<negated>\[no-\])?(?P<name>\w+)(?: (?P<value>\S.*?))?(?:\s{2,}(?P<text>\S.*))?$")
REMARKS = re.compile(r"\s*\[(?P<remarks>[^\[\]]*(?:default: |also --|required|not supported: )[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*)\]$")


class Flag:
    def __init__(self, group, found):
        self.group, self.name, self.negated = group, found["name"], bool(found["negated"])
        self.value, self.text = found["value"] or "", found["text"] or ""
        self.default, self.aliases = "", ""

    def finish(self):
        """Moves the remarks at the end of the help, "[default: 4; also --epoch]", to fields of their own."""
        self.text = self.text.strip()
        found = REMARKS.search(self.text)
        if not found:
            return self
        self.text = self.text[:found.start()]
        for part in found["remarks"].split("; "):
            name, _, value = part.partition(": ")
            if name == "default":
                self.default = value
            elif part.startswith("also "):
                self.aliases = part[5:]
            else:
                self.text += f" ({part})"
        return self


def commands_of(program):
    """The commands of a program, from its error for a word that is none; "" is a trainer without a command."""
    done = subprocess.run([str(program), "no-such-command"], capture_output=True, text=True, timeout=60)
    found = re.search(r"expected (a flag, or )?([\w, -]+)\)", done.stderr)
    commands = found[2].split(", ") if found else []
    return commands if found and not found[1] else ["", *commands]


def help_of(program, command):
    """The complete --help of a command: `--help all`, where a plain --help shows the most used flags only."""
    words = [str(program), *([command] if command else []), "--help", "all"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "COLUMNS": "400"}, timeout=60)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def parse(text):
    """The parts of a --help: (flags in order, usage, description, lines of the headings Presets and Examples)."""
    flags, group, description, lists = [], "", [], {"Presets": [], "Examples": []}
    usage, *lines = text.splitlines()
    for line in lines:
        heading = re.fullmatch(r"(\w.*):", line)
        found = FLAG.match(line)
        if heading:
            group = heading[1]
        elif found:
            flags.append(Flag(group, found))
        elif line.startswith(" " * 8) and flags and group == flags[-1].group:
            flags[-1].text += " " + line.strip()
        elif line.startswith("  ") and group in lists:
            lists[group].append(line)
        elif line and not group:
            description.append(line)
    return [flag.finish() for flag in flags], re.sub(r"^[Uu]sage: ", "", usage), " ".join(description), lists


def cell(text):
    return re.sub(r"([|<>*_\[\]])", r"\\\1", text.strip())


def page(program, commands, texts):
    """The page of one program, and the names of its flags with their anchors."""
    out, index = f"# Flags of {program}\n\n", {}
    for command in commands:
        flags, usage, description, lists = parse(texts[command])
        title = f"{program} {command}".strip()
        anchor = title.lower().replace(" ", "-")
        out += f"## {title} {{ #{anchor} }}\n\n{cell(description)}\n\n```\n{usage}\n```\n"
        group = None
        for flag in flags:
            if flag.group != group:
                group = flag.group
                out += f"\n**{group}**\n\n| flag | | default |\n|---|---|---|\n"
            name = f"--{'[no-]' if flag.negated else ''}{flag.name}"
            value = f" `{flag.value.replace('|', chr(0x2502))}`" if flag.value else ""
            also = f" Also {cell(flag.aliases)}." if flag.aliases else ""
            out += f"| <span id=\"{anchor}-{flag.name}\">`{name}`</span>{value} | {cell(flag.text)}{also} | {cell(flag.default)} |\n"
            index.setdefault(flag.name, []).append((title, f"{program}.md#{anchor}-{flag.name}"))
        for name, lines in lists.items():
            out += f"\n**{name}**\n\n```\n" + textwrap.dedent("\n".join(lines)) + "\n```\n" if lines else ""
        out += "\n"
    return out, index


def pages(folder):
    """Maps file names to the pages of all programs in `folder`, with an index of the flags."""
    made, index, programs = {}, {}, {}
    for path in sorted(path for path in folder.glob("trainkit*") if re.fullmatch(r"trainkit(-(?!launcher)\w+)?", path.name)):
        program, commands = path.name, commands_of(path)
        programs[program] = commands
        made[f"{program}.md"], flags = page(program, commands, {command: help_of(path, command) for command in commands})
        if not flags:
            raise SystemExit(f"{program}: no flags found in its --help")
        for name, places in flags.items():
            index.setdefault(name, []).extend(places)
    text = ("# Flags\n\nEvery flag of every program, from the programs' own `--help`. Use `-` or `_` in names. Precedence: flags > file "
            "\\> preset > defaults ([notation](../docs/guide/config.md#the-notation)).\n\n| program | |\n|---|---|\n")
    for program, commands in programs.items():
        links = ", ".join(f"[{command or 'train'}]({program}.md#{f'{program} {command}'.strip().replace(' ', '-')})" for command in commands)
        text += f"| [{program}]({program}.md) | {links} |\n"
    text += "\n## All flags\n\n| flag | programs |\n|---|---|\n"
    for name in sorted(index):
        text += f"| `--{name}` | {', '.join(f'[{title}]({link})' for title, link in index[name])} |\n"
    made["index.md"] = text
    return made
