#!/usr/bin/env python3
"""The site builds without a warning, its links and anchors lead somewhere, and its pages load nothing from the network.

    tests/docs/check_site.py PROGRAMS FOLDER

Builds the site in FOLDER with the flags of the programs in PROGRAMS. Prints "skipped: ..." without MkDocs. Exit status: 0
without problems, else 1.
"""

import html.parser
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
from urllib.parse import unquote, urlsplit

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs/tools"), str(ROOT / "tests/lint")]


class Page(html.parser.HTMLParser):
    """The anchors of a page, its links, and what a browser loads with it."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.update(value for name in ("id", "name") if (value := values.get(name)))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("script", "img", "source", "iframe") and values.get("src"):
            self.loads.append(values["src"])
        if tag == "link" and values.get("href") and values.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(values["href"])


def follow(folder):
    """Problems of the links between the pages of a folder."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(folder)
        for address in page.loads:
            if urlsplit(address).netloc:
                yield f"{name}: loads {address}"
        for address in page.links + page.loads:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or name.name == "404.html":  # its links begin at the address of the site
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name}: {address} leads nowhere"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name}: {address}: no such anchor"


def fetches(folder):
    """Style sheets and scripts of the theme that fetch from other places."""
    for path in sorted(folder.rglob("*.css")):
        for address in re.findall(r"url\(\s*[\"']?(https?:)?//[^)]*", path.read_text(encoding="utf-8", errors="replace")):
            yield f"{path.relative_to(folder)}: loads {address}"


def search(folder):
    """The search finds a flag where the pages are opened as files, in a real browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("the search is not checked: no chromium")
        return
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000", "--dump-dom",
                           f"file://{folder}/index.html?q=prefetch_factor"], capture_output=True, text=True, timeout=300)
    found = re.search(r'md-search-result__meta">\s*(\d+) matching', done.stdout)
    if not found or int(found[1]) < 3:
        yield f"the search of index.html finds {found[1] if found else 'nothing'} for prefetch_factor"


def missing_flags(programs):
    """Commands and flags that --help, the completion script and README.md do not all have."""
    import flags
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in sorted(path for path in programs.glob("trainkit*") if re.fullmatch(r"trainkit(-(?!launcher|test)\w+)?", path.name)):
        name, commands = path.name, flags.commands_of(path)
        script = subprocess.run([str(path), "--completion", "bash"], capture_output=True, text=True, timeout=60).stdout
        blocks = dict(re.findall(r"^# Completes ([^.\n]+)\.[^\n]*\n(.*?)(?=^# Completes |\Z)", script, re.M | re.S))
        titles = {f"{name} {command}".strip() for command in commands} | {name}
        if blocks.keys() != titles:
            yield f"{name}: its errors name the commands {sorted(titles)}, its completion {sorted(blocks)}"
        for command in commands:
            title = f"{name} {command}".strip()
            listed = re.search(r'^      words="([^"]*)"$', blocks.get(title, ""), re.M)
            completed = set(listed[1].split()) if listed else set()
            helped = set()
            for flag in flags.parse(flags.help_of(path, command))[0]:
                helped |= {f"--{flag.name}"} | ({f"--no_{flag.name}"} if flag.negated else set())
            if completed != helped:
                yield f"{title}: only --help all or the completion has {sorted(completed ^ helped)}"
            row = f"`{name} {command}`" if name == "trainkit" else f"`{command}`"
            if command and row not in readme:
                yield f"README.md: does not list {title}"


def missing_symbols():
    """Public types and functions that have no entry in the reference of their header."""
    import api
    import surface
    for path in sorted((ROOT / "libtrainkit/include/trainkit").glob("*/*.h")):
        text = path.read_text(encoding="utf-8")
        page, _ = api.page(path.name, text)
        for name in surface.Reader(path.relative_to(ROOT), text).names:
            if not re.search(rf"\b{name.word}\b" if name.is_type else rf"\b{name.word}\(", page):
                yield f"{name.where}: {name.name} is not in the reference"


def main():
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        print("skipped: MkDocs is not installed; ./dev docs installs it")
        return 0
    import build_site
    programs, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    if not (programs / "trainkit").exists():
        print(f"the flags are not checked: no programs in {programs}")
        programs = None
    problems = build_site.build(programs, folder)
    problems += [*follow(folder), *fetches(folder), *search(folder), *missing_symbols(), *(missing_flags(programs) if programs else [])]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
