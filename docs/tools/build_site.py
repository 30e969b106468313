#!/usr/bin/env python3
"""The documentation site: the pages of the repository, the public headers and the programs' flags, as static HTML.

    docs/tools/build_site.py [--programs build/bin] [--out build/site]

Copies every tracked page to build/site-pages at its own path, so that links between pages stay as they are. Links to
sources lead to a page with the source's text; links to public headers lead to the reference. MkDocs then builds the pages
in strict mode: a broken link or anchor fails. Without --programs the reference of the flags is left out.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

import api
import figures
import flags

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ("apps", "bench", "docs", "examples", "libtrainkit", "packaging", "tests", "third_party")
HEADERS = "libtrainkit/include/trainkit/"
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".cu": "cuda", ".py": "python", ".txt": "text", ".json": "json", ".cmake": "cmake",
             ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sh": "sh"}


def tracked():
    """The names of the tracked files; outside a git checkout, of all files of the source folders."""
    listing = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
                             capture_output=True, text=True)
    if listing.returncode == 0:
        return sorted(name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file())
    paths = [*ROOT.glob("*"), *(path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*"))]
    return sorted(str(path.relative_to(ROOT)) for path in paths if path.is_file())


class Pages:
    """The pages of the site, by path: those of the repository, and those that their links need."""

    def __init__(self, names):
        self.files = set(names)
        self.folders = {str(parent) for name in names for parent in pathlib.PurePosixPath(name).parents}
        self.pages, self.images = {}, [name for name in names if re.search(r"^docs/.*\.(svg|png)$", name)]
        for name in names:
            if name.endswith(".md"):
                self.pages[name] = self.linked(name, (ROOT / name).read_text(encoding="utf-8"))

    def linked(self, name, text):
        """`text` with links to sources and folders turned into links to their pages."""
        def turned(found):
            target, _, anchor = found[2].partition("#")
            if not target or re.match(r"\w+:", target):
                return found[0]
            folder = pathlib.PurePosixPath(name).parent
            path = normal(folder / target)
            if path in self.files and (path.endswith(".md") or path in self.images):
                return found[0]
            page = self.page_of(path)
            return f"{found[1]}({relative(page, folder)}{'#' + anchor if anchor else ''})" if page else found[0]
        pieces = re.split(r"(^ *```.*?^ *```|`[^`\n]+`)", text, flags=re.M | re.S)
        return "".join(piece if at % 2 and not piece.startswith("`[") else re.sub(r"(\])\(([^)\s]+)\)", turned, piece)
                       for at, piece in enumerate(pieces))

    def page_of(self, path):
        if path.startswith(HEADERS) and path.endswith(".h") and path in self.files:
            return "api/" + path[len(HEADERS):-2] + ".md"
        if path in self.files:
            page = path + ".md"
            if page not in self.pages:
                self.pages[page] = source_page(path)
            return page
        if path not in self.folders:
            return None  # MkDocs reports it
        page = path + "/README.md" if path + "/README.md" in self.files else path + "/index.md"
        if page not in self.files and page not in self.pages:
            self.pages[page] = ""  # its links may lead back to it
            self.pages[page] = self.folder_page(path)
        return page

    def folder_page(self, path):
        """The files of a folder; its pages by their titles."""
        text = f"# {path}\n\n"
        for name in sorted(name for name in self.files if name.startswith(path + "/")):
            if name.endswith(".md"):
                text += f"- [{title_of(name)}]({name[len(path) + 1:]})\n"
            elif str(pathlib.PurePosixPath(name).parent) == path and pathlib.PurePosixPath(name).suffix in LANGUAGES:
                text += f"- [{name[len(path) + 1:]}]({relative(self.page_of(name), path)})\n"
        return text

    def add_reference(self):
        """Adds the pages of the public headers; returns their navigation."""
        navigation, modules = ["api/index.md"], {}
        index = "# API\n\nOne page per public header, in the order of the data flow.\n"
        for name in sorted(name for name in self.files if re.match(HEADERS + r"\w+/\w+\.h$", name)):
            header = name[len(HEADERS):]
            text, _ = api.page(header, (ROOT / name).read_text(encoding="utf-8"))
            self.pages[f"api/{header[:-2]}.md"] = text
            modules.setdefault(header.split("/")[0], []).append(header)
        order = re.search(r"foreach\(module ([\w\s]+)\)", (ROOT / "libtrainkit/CMakeLists.txt").read_text()).group(1).split()
        for module in order:
            navigation.append({module: [f"api/{header[:-2]}.md" for header in modules[module]]})
            index += f"\n## {module}\n\n| header | |\n|---|---|\n"
            for header in modules[module]:
                summary = self.pages[f"api/{header[:-2]}.md"].split("\n\n")[1].replace("\n", " ")
                index += f"| [{header}]({header[:-2]}.md) | {summary} |\n"
        umbrella = (ROOT / HEADERS / "trainkit.h").read_text(encoding="utf-8")
        self.pages["api/index.md"] = index + f"\n## trainkit.h\n\n```cpp\n{umbrella}```\n"
        return navigation

    def add_benchmarks(self):
        """Adds the page of the latest published value of each benchmark, by processor."""
        published, rows = (json.loads((ROOT / "bench" / name).read_text(encoding="utf-8")) for name in ("published.json", "ratios.json"))
        known = {row["name"]: row for row in rows}
        text = ("# Benchmarks: latest values\n\nThe latest published value of each row, by processor. [The runs](../docs/benchmarks.md) have machines, "
                "versions, commands, earlier values, and why targets are missed.\n")
        for processor in sorted(published):
            text += f"\n## {processor}\n\n| what | median | lowest – highest | target | commit |\n|---|---|---|---|---|\n"
            for name, value in sorted(published[processor].items()):
                row = known.get(name, {})
                unit = row.get("unit", "×" if "peer" in row or not row else "")
                target = f"≥ {row['at_least']}" if "at_least" in row else f"≤ {row['at_most']}" if "at_most" in row else ""
                text += (f"| {name} | {figures.shown(value['median'])} {unit} | {figures.shown(value['lowest'])} – "
                         f"{figures.shown(value['highest'])} | {target} | {value['commit']} |\n")
        self.pages["benchmarks/index.md"] = text

    def add_flags(self, programs):
        if not programs:
            self.pages["flags/index.md"] = "# Flags\n\nThis site was built without the programs: see `PROGRAM --help`.\n"
            return ["flags/index.md"]
        made = flags.pages(programs)
        self.pages.update({f"flags/{name}": text for name, text in made.items()})
        return ["flags/index.md", *(f"flags/{name}" for name in sorted(made) if name != "index.md")]


def normal(path):
    parts = []
    for part in pathlib.PurePosixPath(path).parts:
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def relative(page, folder):
    parts, base = page.split("/"), [part for part in str(folder).split("/") if part not in ("", ".")]
    while parts and base and parts[0] == base[0]:
        parts, base = parts[1:], base[1:]
    return "/".join([".."] * len(base) + parts)


def title_of(name):
    return re.search(r"^# (.*)$", (ROOT / name).read_text(encoding="utf-8"), re.M)[1]


def source_page(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    return f"# {path}\n\n````{LANGUAGES.get(pathlib.PurePosixPath(path).suffix, 'text')}\n{text}````\n"


def flow(navigation):
    """Navigation as one line of YAML."""
    if isinstance(navigation, dict):
        return "{" + ", ".join(f"{key}: {flow(value)}" for key, value in navigation.items()) + "}"
    return "[" + ", ".join(map(flow, navigation)) + "]" if isinstance(navigation, list) else navigation


def configuration(pages, programs, source, out):
    text = (ROOT / "docs/tools/mkdocs.yml").read_text(encoding="utf-8").replace("DOCS_DIR", str(source)).replace("SITE_DIR", str(out))
    pages.add_benchmarks()
    lists = {"API": pages.add_reference(), "FLAGS": pages.add_flags(programs)}
    for name, folder in (("FORMATS", "docs/formats/"), ("DESIGN", "docs/design/")):
        lists[name] = [page for page in sorted(pages.pages) if page.startswith(folder) and page not in text]
    lists["PROJECT"] = [name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md") if name in pages.pages]
    lists["PROJECT"] += [name for name in sorted(pages.files) if re.match(r"docs/(?!formats/|design/).*\.md$", name) and name not in text]
    for name, navigation in lists.items():
        text = text.replace("{" + name + "}", flow(navigation))
    return text


def build(programs, out):
    """Builds the site in `out`; returns its problems."""
    source = out.parent / (out.name + "-pages")
    shutil.rmtree(source, ignore_errors=True)
    pages = Pages(tracked())
    text = configuration(pages, programs, source / "pages", out)
    for name, page in pages.pages.items():
        path = source / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    for name in pages.images:
        shutil.copyfile(ROOT / name, source / "pages" / name)
    (source / "pages/assets").mkdir()
    shutil.copyfile(ROOT / "docs/tools/worker_shim.js", source / "pages/assets/iframe-worker.js")
    shutil.copyfile(ROOT / "docs/tools/site.css", source / "pages/assets/site.css")
    (source / "mkdocs.yml").write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", source / "mkdocs.yml"],
                          capture_output=True, text=True)
    return [line for line in done.stderr.splitlines() if not line.startswith("INFO")] if done.returncode != 0 else []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/site")
    arguments = parser.parse_args()
    problems = build(arguments.programs and arguments.programs.resolve(), arguments.out.resolve())
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
