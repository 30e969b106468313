#!/usr/bin/env python3
"""The tools of the site: the reference of headers, of flags, and the check of links."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs/tools"))
import api
import build_site
import check_site
import flags

HEADER = """#pragma once
/// Counts rows.

#include <string>

namespace trainkit {

class Later;

/// How to count.
struct CounterOptions {
  /// First number, "0" or '1'.
  int first = 0;
  bool good() const { return first >= 0; }
};

/// Counts rows, a_b < c.
///
///   Counter counter({.first = 1});
class Counter {
 public:
  explicit Counter(CounterOptions options = {}) : options_(options) { start(); }
  ~Counter();
  /// @return The next number, which
  ///   is positive:
  ///     0    never
  int next();
  /// Same, in steps.
  template <class T>
  int next(T step) {
    return next() + step;
  }

 private:
  void start();
  CounterOptions options_;
};

/// Number of counters.
inline constexpr int kCounters = 3;
/// Names a counter.
std::string name_of(const Counter& counter, std::vector<int> of = {});

namespace detail {
inline int hidden() {
  return 1;
}
int hidden_too();
}  // namespace detail

namespace detail {
class Hidden;
}

/// Comes last.
int seen();

}  // namespace trainkit
"""

HELP = """Usage: program [--flag value ...]

Trains.

Run:
  --epochs N                  Number of epochs, 0 or more.
                              [default: 3 (cpu); also --epoch, --max_epochs]
  --[no-]drop_last            Drop the last batch. [default: true]
  --a_flag_with_a_long_name VALUE
                              Some text.

Presets:
  small                       For a laptop: --epochs 1
"""


class ReferenceTest(unittest.TestCase):
    def test_a_page_has_every_public_declaration_and_nothing_private(self):
        page, names = api.page("data/counter.h", HEADER)
        self.assertEqual(names, ["Counter", "Counter::Counter", "Counter::next", "CounterOptions", "kCounters", "name_of", "seen"])
        for hidden in ("start", "options_;", "hidden", "Hidden", "Later", "return"):
            self.assertNotIn(hidden, page)

    def test_comments_become_markdown(self):
        page, _ = api.page("data/counter.h", HEADER)
        self.assertTrue(page.startswith("# data/counter.h\n\nCounts rows.\n\n```cpp\n#include \"trainkit/data/counter.h\"\n```\n"))
        self.assertIn("Counts rows, a\\_b \\< c.\n\n```cpp\nCounter counter({.first = 1});\n```", page)
        self.assertIn("### Counter::next { #counter-next }\n\nReturns: The next number, which\nis positive:\n\n```text\n0    never\n```\n\n```cpp\nint next();\n```", page)
        self.assertIn("explicit Counter(CounterOptions options = {});", page)
        self.assertIn('  /// First number, "0" or \'1\'.\n  int first = 0;\n  bool good() const;\n};', page)


class FlagsTest(unittest.TestCase):
    def test_a_help_text_becomes_a_table(self):
        found, usage, description, lists = flags.parse(HELP)
        self.assertEqual(lists, {"Presets": ["  small                       For a laptop: --epochs 1"], "Examples": []})
        self.assertEqual((usage, description), ("program [--flag value ...]", "Trains."))
        self.assertEqual([(flag.name, flag.value, flag.negated, flag.group) for flag in found],
                         [("epochs", "N", False, "Run"), ("drop_last", "", True, "Run"), ("a_flag_with_a_long_name", "VALUE", False, "Run")])
        self.assertEqual([(flag.text, flag.default, flag.aliases) for flag in found],
                         [("Number of epochs, 0 or more.", "3 (cpu)", "--epoch, --max_epochs"), ("Drop the last batch.", "true", ""),
                          ("Some text.", "", "")])


class LinksTest(unittest.TestCase):
    def problems(self, **pages):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in pages.items():
                (pathlib.Path(folder) / f"{name}.html").write_text(text)
            return list(check_site.follow(pathlib.Path(folder).resolve()))

    def test_links_that_lead_nowhere_are_found(self):
        self.assertEqual(self.problems(a='<a href="b.html#x">', b='<h1 id="x">'), [])
        self.assertEqual(self.problems(a='<a href="c.html">'), ["a.html: c.html leads nowhere"])
        self.assertEqual(self.problems(a='<a href="b.html#y">', b='<h1 id="x">'), ["a.html: b.html#y: no such anchor"])
        self.assertEqual(self.problems(a='<script src="https://other.example/x.js">'), ["a.html: loads https://other.example/x.js"])

    def test_a_link_to_a_source_leads_to_its_page(self):
        self.assertEqual(build_site.relative("api/core/error.md", "docs/guide"), "../../api/core/error.md")
        self.assertEqual(build_site.normal("docs/guide/../../examples/x.cpp"), "examples/x.cpp")
        pages = build_site.Pages(["README.md", "examples/readme.cpp", "libtrainkit/include/trainkit/core/error.h"])
        self.assertIn("[e](examples/readme.cpp.md)", pages.linked("README.md", "[e](examples/readme.cpp) `[x](y)`"))
        self.assertIn("[e](../api/core/error.md#x)", pages.linked("docs/a.md", "[e](../libtrainkit/include/trainkit/core/error.h#x)"))


if __name__ == "__main__":
    unittest.main()
