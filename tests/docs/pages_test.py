#!/usr/bin/env python3
"""pages.py detects planted faults."""

import io
import pathlib
import subprocess
import tempfile
import unittest
from contextlib import redirect_stdout

import pages

PAGE = """# Page

```cpp
int main() { puts("loss 0.5"); return 4; }
```

prints, and exits with 4:

```
OUTPUT
```

```cpp
SECOND
```
"""


class PagesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def page(self, output="loss 0.5", second="int main() {}"):
        path = self.folder / "page.md"
        path.write_text(PAGE.replace("OUTPUT", output).replace("SECOND", second))
        return str(path)

    def program(self, script):
        path = self.folder / "program.sh"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        return str(path)

    def extract(self, page):
        with redirect_stdout(io.StringIO()) as printed:
            pages.extract(self.folder / "out", page)
        return printed.getvalue().splitlines()

    def test_every_block_becomes_a_program_with_the_lines_of_its_page(self):
        listed = self.extract(self.page())
        self.assertEqual([line.split("|")[1] for line in listed], ["1", "2"])
        self.assertEqual([line.split("|")[2] for line in listed], ["page_1", "page_2"])
        self.assertIn("#line 4 ", (self.folder / "out/programs.cpp").read_text())

    def test_the_programs_run_from_one_source(self):
        page = self.page(second='#include <cstdio>\nint main(int argc, char** argv) {\n  puts(argv[argc - 1]);\n}')
        self.extract(page)
        program = str(self.folder / "programs")
        subprocess.run(["c++", "-std=c++17", "-o", program, self.folder / "out/programs.cpp"], check=True)
        self.assertEqual(pages.run(page, 1, program, "page_1"), [])
        self.assertEqual(subprocess.run([program, "page_2", "last"], stdout=subprocess.PIPE).stdout, b"last\n")
        self.assertEqual(subprocess.run([program, "page_3"]).returncode, 99)

    def test_a_block_that_is_no_program_is_named(self):
        self.assertEqual(pages.check(self.page()), [])
        page = self.page(second="loader->next();")
        self.assertEqual(len(self.extract(page)), 1)
        problems = pages.check(page)
        self.assertEqual(len(problems), 1)
        self.assertIn("page.md:14", problems[0])

    def test_a_public_name_needs_an_include_of_the_same_block(self):
        program = "int main() {\n  auto store = CheckpointStore::open(\"runs\").value();\n  store.save(1, snapshot({}));\n}"
        problems = pages.check(self.page(second=program))
        self.assertEqual(len(problems), 2, problems)
        self.assertIn('page.md:14: uses CheckpointStore without #include "trainkit/train/checkpoint.h"', problems[0])
        self.assertIn("uses snapshot", problems[1])
        for header in ("train/checkpoint.h", "trainkit.h"):
            self.assertEqual(pages.check(self.page(second=f'#include "trainkit/{header}"\n{program}')), [])

    def test_what_the_page_shows_must_be_printed(self):
        program = self.program("echo first; echo 390 steps, loss 0.5; exit 4")
        for shown in ("390 steps, loss 0.5", "390 steps, loss 0.501", "first\n390 steps, loss 0.4999"):
            self.assertEqual(pages.run(self.page(output=shown), 1, program), [])
        for shown in ("  390 steps, loss 0.5", "390 steps, loss 0.5\nmore", "390 steps, loss 0.25", "391 steps, loss 0.5",
                      "390 steps, loss 5"):
            self.assertIn("does not print", pages.run(self.page(output=shown), 1, program)[0])

    def test_numbers_of_an_example_may_differ(self):
        page = pathlib.Path(self.page(output="390 steps in 2.5 s"))
        page.write_text(page.read_text().replace("prints, and", "prints, for example, and"))
        self.assertEqual(pages.run(str(page), 1, self.program("echo 390 steps in 14.0 s; exit 4")), [])
        self.assertIn("does not print", pages.run(str(page), 1, self.program("echo 390 rows in 14.0 s; exit 4"))[0])

    def test_the_exit_code_is_that_of_the_page(self):
        self.assertIn("exits with 0, not 4", pages.run(self.page(), 1, self.program("echo loss 0.5"))[0])
        self.assertEqual(pages.run(self.page(), 2, self.program("exit 0")), [])
        self.assertIn("exits with 1, not 0", pages.run(self.page(), 2, self.program("exit 1"))[0])


if __name__ == "__main__":
    unittest.main()
