#!/usr/bin/env python3
"""Opens the reports of real runs in Chromium, on a narrow and on a wide screen, light and dark.

    report_browser_test.py BIN [--screenshots DIR]

Each page must load without an error on the console, fit the width of the screen, and have no serious or critical
finding of axe-core. Charts must answer to the pointer and to the keyboard, and the page of `trainkit watch` must follow
the run. Prints "skipped: ..." if a part of this is not installed.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

WIDTHS = (400, 1600)


def chromium():
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def axe_source():
    for package in ("axe_playwright_python", "axe_selenium_python", "axe_core_python"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else []) or []:
            for path in pathlib.Path(folder).rglob("axe.min.js"):
                return path.read_text()
    return None


class Runs:
    """Small runs of each trainer, and one that fails."""

    def __init__(self, programs, folder):
        self.programs, self.folder = pathlib.Path(programs), pathlib.Path(folder)

    def call(self, program, *words, code=0):
        done = subprocess.run([self.programs / program, *map(str, words)], capture_output=True, text=True, cwd=self.folder)
        if done.returncode != code:
            raise SystemExit(f"{program} ended with {done.returncode}, expected {code}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def train(self, trainer, name, *flags, code=0):
        self.call(f"trainkit-{trainer}", "--output_dir", self.folder / "runs" / name, "--device", "cpu",
                  "--no-use_tensorboard", "--log_every", 2, *flags, code=code)
        return self.folder / "runs" / name / "report.html"

    def pages(self):
        for trainer in ("transformer", "hsi", "gpt2rec", "emotion"):
            self.call(f"trainkit-{trainer}", "--make_demo_data", self.folder / trainer)
        text = ("--input", self.folder / "transformer/demo.txt", "--hidden_dim", 16, "--n_layers", 1, "--n_heads", 2,
                "--block_size", 16, "--max_steps", 60, "--eval_every", 10, "--save_every", 20, "--sample_tokens", 60)
        yield "transformer", self.train("transformer", "transformer", *text)
        yield "failed", self.train("transformer", "failed", *text, "--lr", "1e6", "--weight_decay", 1, "--grad_clip", 0,
                                   "--warmup_steps", 0, code=9)
        yield "hsi", self.train("hsi", "hsi", "--cube", self.folder / "hsi/demo.mat", "--gt", self.folder / "hsi/demo_gt.mat",
                                "--model", "mlp", "--epochs", 2, "--train_ratio", 0.05)
        yield "gpt2rec", self.train("gpt2rec", "gpt2rec", "--data_dir", self.folder / "gpt2rec/ml-100k", "--model", "bpr_mf",
                                    "--embed_dim", 8, "--epochs", 2)
        yield "emotion", self.train("emotion", "emotion", "--data_dir", self.folder / "emotion", "--modality", "audio",
                                    "--audio_seconds", 1, "--batch_size", 16, "--epochs", 2)
        self.train("transformer", "other", *text, "--lr", "0.003")
        self.call("trainkit", "report", self.folder / "runs/transformer", self.folder / "runs/other", "--out",
                  self.folder / "compared.html")
        yield "compared", self.folder / "compared.html"
        twelve = [self.folder / "runs/transformer"] + [self.folder / f"copies/{i}" for i in range(11)]
        for copy in twelve[1:]:
            shutil.copytree(self.folder / "runs/other", copy)
        self.call("trainkit", "report", *twelve, "--out", self.folder / "twelve.html")
        yield "twelve", self.folder / "twelve.html"
        yield "repeats", self.train("hsi", "repeats", "--cube", self.folder / "hsi/demo.mat", "--gt", self.folder / "hsi/demo_gt.mat",
                                    "--model", "mlp", "--epochs", 2, "--train_ratio", 0.05, "--repeats", 2)


class Checks:
    def __init__(self, browser, axe, screenshots):
        self.browser, self.axe, self.screenshots, self.problems = browser, axe, screenshots, []

    def require(self, condition, text):
        if not condition:
            self.problems.append(text)
            print("FAILED", text)

    def open(self, url, width, scheme="light"):
        page = self.browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        messages = []
        page.on("console", lambda message: messages.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: messages.append(f"requests {request.url}")
                if not request.url.startswith((url, "data:")) else None)
        page.goto(url)
        return page, messages

    def check_page(self, name, url, width, scheme):
        where = f"{name} at {width} px, {scheme}"
        page, messages = self.open(url, width, scheme)
        self.require(not messages, f"{where}: {messages}")
        scroll = page.evaluate("document.documentElement.scrollWidth")
        self.require(scroll <= width, f"{where}: the page is {scroll} px wide")
        page.evaluate(self.axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        for each in found:
            if each["impact"] in ("serious", "critical"):
                nodes = [node["html"][:120] for node in each["nodes"][:3]]
                self.require(False, f"{where}: axe {each['id']}: {each['help']}: {json.dumps(nodes)}")
        if page.locator(".plot").count():
            self.check_chart(where, page)
        if width == WIDTHS[0]:
            self.check_print(where, page)
        if self.screenshots:
            page.mouse.move(0, 0)
            page.screenshot(path=self.screenshots / f"{name}-{width}-{scheme}.png", full_page=True)
        page.close()

    def check_print(self, where, page):
        """On A4 at 96 dpi nothing is cut off, and lines have the colours of the light theme."""
        page.set_viewport_size({"width": 718, "height": 1000})
        page.emulate_media(media="print")
        scroll = page.evaluate("document.documentElement.scrollWidth")
        self.require(scroll <= 718, f"{where}: printed, the page is {scroll} px wide")
        colors = page.evaluate("[...document.querySelectorAll('.line')].map(line => getComputedStyle(line).stroke)")
        light = "rgb(11, 107, 203)"  # --c0
        self.require(not colors or light in colors, f"{where}: printed with the lines {set(colors)}")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        self.require(ground == "rgb(255, 255, 255)", f"{where}: printed on {ground}")
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})

    def check_chart(self, where, page):
        plot, tip = page.locator(".plot").first, page.locator(".plot .tip").first
        plot.scroll_into_view_if_needed()
        self.require(not tip.is_visible(), f"{where}: the values are shown without a pointer")
        plot.hover()
        self.require(tip.is_visible() and ":" in tip.inner_text(), f"{where}: the pointer shows no values")
        box, shown = plot.bounding_box(), tip.bounding_box()
        self.require(shown["x"] >= 0 and shown["x"] + shown["width"] <= page.viewport_size["width"],
                     f"{where}: the values are outside of the screen ({box}, {shown})")
        page.mouse.move(0, 0)
        plot.focus()
        page.keyboard.press("Home")
        first = tip.inner_text()
        page.keyboard.press("ArrowRight")
        # The run that fails has a single record.
        self.require(tip.inner_text() != first or where.startswith("failed"), f"{where}: the arrow keys do not move")
        page.keyboard.press("Escape")
        self.require(not tip.is_visible(), f"{where}: Escape does not hide the values")

    def check_watch(self, programs, run):
        process = subprocess.Popen([programs / "trainkit", "watch", run], stdout=subprocess.PIPE, text=True)
        try:
            url = process.stdout.readline().strip()
            page, messages = self.open(url, 1000)
            page.locator("details summary").first.click()
            records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            train = [record for record in records if record["split"] == "train"][-1]
            train["step"] += 1000
            with open(run / "metrics.jsonl", "a") as file:
                file.write(json.dumps(train) + "\n")
            (run / "summary.json").unlink(missing_ok=True)
            page.wait_for_function("step => [...document.querySelectorAll('.tile b')].some(b => b.textContent === step)",
                                   arg=str(train["step"]), timeout=60_000)
            self.require(page.locator("details").first.evaluate("each => each.open"), "watch: an update closes the tables")
            plot = page.locator(".plot").first
            plot.hover()
            self.require(page.locator(".plot .tip").first.is_visible(), "watch: charts do not answer after an update")
            self.require(not messages, f"watch: {messages}")
            page.close()
        finally:
            process.terminate()
            self.require(process.wait(60) == 0, "watch: SIGTERM does not end it")


def use_tests_python():
    """Continues with the Python that has the packages of the tests (TRAINKIT_PYTHON)."""
    python = os.environ.pop("TRAINKIT_PYTHON", None)
    if python and not importlib.util.find_spec("playwright"):
        os.execv(python, [python, *sys.argv])


def main():
    use_tests_python()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--screenshots", type=pathlib.Path)
    arguments = parser.parse_args()
    if not chromium():
        return print("skipped: chromium is not installed (apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return print("skipped: this Python has no playwright (pip install -r tests/requirements-test.txt)")
    if not (axe := axe_source()):
        return print("skipped: this Python has no axe-core (pip install -r tests/requirements-test.txt)")
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trainkit-test-") as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        checks = Checks(browser, axe, arguments.screenshots)
        for name, path in Runs(arguments.programs, folder).pages():
            print(name, path.stat().st_size, "bytes", flush=True)
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    checks.check_page(name, path.as_uri(), width, scheme)
        checks.check_watch(arguments.programs, pathlib.Path(folder) / "runs/transformer")
        browser.close()
    return 1 if checks.problems else 0


if __name__ == "__main__":
    sys.exit(main())
