#!/usr/bin/env python3
"""Each check of check.py detects a planted fault, and reports nothing for a tree without faults."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import check
import classes

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs/tools"))
import errors

CLEAN = {
    "libtrainkit/CMakeLists.txt": "foreach(module core data optim)\n",
    "libtrainkit/src/core/CMakeLists.txt": "trainkit_module(core HEADERS a.h SOURCES a.cpp)\n",
    "libtrainkit/src/data/CMakeLists.txt": "trainkit_module(data HEADERS b.h\n  DEPENDS core\n  PUBLIC torch)\n",
    "libtrainkit/src/optim/CMakeLists.txt": "trainkit_module(optim HEADERS c.h DEPENDS core)\n",
    "libtrainkit/include/trainkit/core/a.h": "#pragma once\n",
    "libtrainkit/include/trainkit/data/b.h": '#pragma once\n#include "trainkit/core/a.h"\n',
    "libtrainkit/include/trainkit/optim/c.h": "#pragma once\n",
    "libtrainkit/include/trainkit/trainkit.h": "".join(
        f'#include "trainkit/{name}"\n' for name in ("core/a.h", "data/b.h", "optim/c.h")),
    "libtrainkit/README.md": "| folder | what lives there | where data enters and leaves | may include |\n|---|---|---|---|\n"
                             "| `core` | a | | |\n| `data` | b | | `core` |\n| `optim` | c | | |\n\n| folder |\n",
    "tests/lint/headers.txt": "",
    "tests/lint/cycles.txt": "# none\n",
    "tests/lint/classes.txt": "# none\n",
    "tests/lint/private_includes.txt": "# none\n",
    "tests/lint/surface.txt": "# none\n",
    "examples/readme.cpp": "int main() {}\n",
    "README.md": "# Name\n[page](docs/page.md#a-heading)\n```cpp\nint main() {}\n```\n",
    "docs/page.md": "# A heading\n",
}


class CheckTest(unittest.TestCase):
    def problems(self, function, changes):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**CLEAN, **changes}.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text if isinstance(text, bytes) else text.encode())
            return list(function(check.Tree(folder)))

    def finds(self, function, changes, words):
        self.assertEqual(self.problems(function, {}), [])
        problems = self.problems(function, changes)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(words, problems[0])

    def test_a_promise_without_its_test(self):
        tests = {"tests/a_test.cpp": 'TEST_CASE("A run that is killed resumes", "[a]") {}\n'}
        page = {"docs/reliability.md": 'It resumes: "A run that is killed resumes".\n'}
        self.assertEqual(self.problems(check.check_promises, {**tests, **page}), [])
        self.finds(check.check_promises, page, "reliability.md:1: there is no test")

    TABLE = CLEAN["libtrainkit/README.md"]

    def test_a_folder_that_includes_one_that_its_row_does_not_name(self):
        header = {"libtrainkit/src/data/c.h": ""}
        for name, include in (("core/a.cpp", "trainkit/data/b.h"), ("optim/c.cpp", "trainkit/core/a.h"), ("core/a.h", "data/c.h")):
            self.assertEqual(self.problems(check.check_layers, header), [])
            problems = self.problems(check.check_layers, {**header, f"libtrainkit/src/{name}": f'\n#include "{include}"\n'})
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(f"{name}:2: {name.split('/')[0]} may not include", problems[0])

    def test_a_module_that_includes_one_it_does_not_declare(self):
        changes = {"libtrainkit/README.md": self.TABLE.replace("c | | |", "c | | `data` |"),
                   "libtrainkit/src/optim/c.cpp": '\n#include "trainkit/data/b.h"\n'}
        self.finds(check.check_layers, changes, "c.cpp:2: optim includes data, which its CMakeLists.txt")

    def test_an_include_that_leads_to_no_file(self):
        self.finds(check.check_layers, {"libtrainkit/src/data/b.cpp": '#include "gone.h"\n'}, "b.cpp:1: there is no file gone.h")

    def test_a_table_that_does_not_fit_the_folders(self):
        for table, words in ((self.TABLE.replace("| `optim` | c | | |\n", ""), "are not those of libtrainkit/CMakeLists.txt"),
                             (self.TABLE.replace("a | | |", "a | | `data` |"), "README.md:3: core may include data, which is not above"),
                             (self.TABLE.replace("a | | |", "a | | `io` |"), "README.md:3: core may include io, which is no folder"),
                             (self.TABLE.replace("c | | |", "c | | `core` |"), "README.md:5: optim does not include core"),
                             (self.TABLE.replace("| `optim`", "| `data/x` | d | | |\n| `optim`"), "there is no file in data/x")):
            self.assertIn(words, "\n".join(self.problems(check.check_layers, {"libtrainkit/README.md": table})))
        self.finds(check.check_layers, {"libtrainkit/src/data/new/n.cpp": ""}, "has no folder data/new")

    def test_a_folder_below_a_module(self):
        table = self.TABLE.replace("| `optim`", "| `data/step` | d | | `core` |\n| `data/run` | e | | `data/step` |\n| `optim`")
        files = {"libtrainkit/README.md": table, "libtrainkit/src/data/step/s.cpp": '#include "trainkit/core/a.h"\n#include "own.h"\n',
                 "libtrainkit/src/data/step/own.h": "", "libtrainkit/src/data/run/r.cpp": '#include "data/step/own.h"\n#include "r.h"\n',
                 "libtrainkit/src/data/run/r.h": "", "libtrainkit/include/trainkit/data/s.h": "",
                 "libtrainkit/src/optim/o.cpp": ""}
        self.assertEqual(self.problems(check.check_layers, files), [])
        for name, include, words in (("data/step/s.cpp", "data/run/r.h", "s.cpp:3: data/step may not include data/run"),
                                     ("data/step/s.cpp", "trainkit/data/b.h", "s.cpp:3: data/step may not include data ("),
                                     ("optim/o.cpp", "trainkit/data/s.h", "o.cpp:1: optim may not include data/step")):
            name = f"libtrainkit/src/{name}"
            problems = self.problems(check.check_layers, {**files, name: files[name] + f'#include "{include}"\n'})
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(words, problems[0])

    CYCLE = {
        "tests/lint/headers.txt": "core/base: core/a\n",  # include/trainkit/core/a.h
        "libtrainkit/src/core/base/b.cpp": '#include "core/files/f.h"\n',
        "libtrainkit/src/core/files/f.h": '\n#include "core/late/l.h"\n',
        "libtrainkit/src/core/late/l.h": '#include "trainkit/core/a.h"\n',
        "tests/lint/cycles.txt": "core/base > core/files > core/late\n",
    }

    def test_a_cycle_that_is_not_listed(self):
        self.assertEqual(self.problems(check.check_cycles, self.CYCLE), [])
        problems = self.problems(check.check_cycles, {**self.CYCLE, "tests/lint/cycles.txt": ""})
        self.assertEqual(len(problems), 1, problems)
        self.assertIn("b.cpp:1: includes core/files/f.h and closes the cycle core/base > core/files > core/late", problems[0])
        problems = self.problems(check.check_cycles, {**self.CYCLE, "libtrainkit/src/core/files/f.cpp": '#include "trainkit/core/a.h"\n'})
        self.assertEqual(len(problems), 1, problems)
        self.assertIn("closes the cycle core/base > core/files", problems[0])

    def test_a_listed_cycle_that_is_gone(self):
        problems = self.problems(check.check_cycles, {**self.CYCLE, "libtrainkit/src/core/late/l.h": ""})
        self.assertEqual(problems, ["tests/lint/cycles.txt:1: the cycle core/base > core/files > core/late is gone: remove the line"])

    def test_public_headers_without_a_source(self):
        missing = {**self.CYCLE, "tests/lint/headers.txt": ""}
        self.assertEqual(self.problems(check.check_cycles, missing)[0], "tests/lint/headers.txt: does not name the folder of core/a")
        for name in ("libtrainkit/src/core/base/a.cpp", "libtrainkit/src/core/late/a.cpp"):
            self.assertIn("tests/lint/headers.txt:1: no public header core/a without a source: remove it",
                          self.problems(check.check_cycles, {**self.CYCLE, name: ""}))

    def test_an_internal_header_of_libtorch_that_is_not_named(self):
        source = {"libtrainkit/src/data/d.cpp": "#include <torch/csrc/autograd/function.h>\n"}
        table = "## LibTorch's internals\n| `torch/csrc/autograd/*` | nodes | `data/d` |\n\n## Next\n"
        named = {"libtrainkit/README.md": self.TABLE + table}
        self.finds(check.check_internals, source, "data/d.cpp: includes torch/csrc/autograd/function of LibTorch")
        self.assertEqual(self.problems(check.check_internals, {**source, **named}), [])
        self.assertIn("data/d includes no internal header", self.problems(
            check.check_internals, {"libtrainkit/src/data/d.cpp": "#include <ATen/core/Tensor.h>\n", **named})[0])

    def test_a_condition_on_the_version_of_libtorch_outside_its_folder(self):
        for text in ("#if TORCH_VERSION_MINOR < 13\n", "constexpr bool kNew = TORCH_VERSION_MINOR > 12;\n", "#elif defined(TORCH_VERSION)\n"):
            self.finds(check.check_torch_versions, {"apps/a/a.cpp": "\n" + text}, "apps/a/a.cpp:2: a condition on LibTorch's version")
            self.assertEqual(self.problems(check.check_torch_versions, {"libtrainkit/src/core/libtorch/a.h": text}), [])
        self.assertEqual(self.problems(check.check_torch_versions, {"apps/a/a.cpp": "const char* version = TORCH_VERSION;\n"}), [])

    def test_a_short_test_that_is_not_there(self):
        tests = {"tests/core/a_test.cpp": "", "tests/data/b_test.cpp": "", "tests/optim/c_test.cpp": ""}
        short = "# a comment\nunit.core.a\nunit.data.b\n\nunit.optim.c\n"
        self.assertEqual(self.problems(check.check_short_tests, {**tests, "tests/short.txt": short}), [])
        self.finds(check.check_short_tests, {**tests, "tests/short.txt": short + "cuda_sim.core.d\n"}, "cuda_sim.core.d: there is no")

    def test_a_declaration_of_what_libtorch_does_not_declare(self):
        declared = "namespace at::native {\n\nvoid mkldnn_matmul(const Tensor& a);\n\n}  // namespace at::native\n"
        self.finds(check.check_torch_versions, {"libtrainkit/src/data/b.cpp": declared}, "b.cpp:1: declares what LibTorch does not")
        forward = "namespace torch::nn {\nclass Module;\n}\nnamespace at { class Tensor; }\nnamespace at_once { void f(); }\n"
        self.assertEqual(self.problems(check.check_torch_versions, {"libtrainkit/src/data/b.cpp": forward,
                                                                    "libtrainkit/src/core/libtorch/a.h": declared}), [])

    def test_classes_that_are_larger_than_the_list_grants(self):
        def header(methods, members):
            return {"libtrainkit/src/data/b.h": "class Large {\n" + "  void f();\n" * methods + "  int x_;\n" * members + "};\n"}
        self.assertEqual(self.problems(check.check_classes, header(25, 15)), [])
        self.finds(check.check_classes, header(26, 0), "b.h:1: Large has 26 methods and 0 data members")
        self.finds(check.check_classes, header(1, 16), "Large has 1 methods and 16 data members")
        self.assertEqual(self.problems(check.check_classes, header(0, 16)), [])
        listed = {"tests/lint/classes.txt": "# classes\nLarge 30 20  # reason\n"}
        self.assertEqual(self.problems(check.check_classes, {**header(30, 20), **listed}), [])
        for sizes, words in (((31, 20), "Large grew from 30 methods and 20 data members to 31 and 20"), ((30, 21), "grew"), ((31, 1), "grew"),
                             ((29, 20), "classes.txt:2: Large is smaller now: write 'Large 29 20'"),
                             ((25, 15), "classes.txt:2: Large has at most 25 methods and 15 data members now: remove the line")):
            problems = self.problems(check.check_classes, {**header(*sizes), **listed})
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(words, problems[0])

    def test_methods_and_data_members_are_counted_as_they_are_declared(self):
        code = """
#define CLASS class Macro { int x; };
namespace { enum class Kind : int { kA, kB }; }
template <class T, int N = (1 << 3)>
class alignas(sizeof(T) * 2) [[nodiscard]] A final : public B<T>, C {
 public:
  A() = default;
  A(const A&) = delete;
  explicit A(int x) : x_(x), names_{"}", "{"}, b_{x} {}  // class D { void f(); };
  ~A() override { stop(); }
  A& operator=(A&&) noexcept;
  bool operator()(int a, int b = 3) const { return a < b; }
  template <class F>
  static std::function<void(int)> wrap(F&& f) requires std::is_enum_v<F>;
  std::optional<std::pair<int, int>> find() const ABSL_LOCKS_EXCLUDED(mutex_);
  virtual void run() = 0;
  friend class Other;
  friend bool operator==(const A&, const A&) { return true; }
  using Clock = std::chrono::steady_clock;
  static_assert(sizeof(int) == 4);
  struct Options { int a = 0; std::vector<int> b = {1, 2}; };
  class Impl;
  enum { kOne, kTwo };

 private:
  static constexpr int kLimit = 3;
  std::function<void(int, int)> on_done_ = [](int, int) {};
  void (*callback_)(int) = nullptr;
  int x_ = 0, y_ = 1;
  std::atomic<int> b_{0};
  char text_[8] = {';', '(', '"'};
  std::map<int, int> names_ ABSL_GUARDED_BY(mutex_);
  const char* raw_ = R"x(void f(); })x";
  struct { int z; } unnamed_;
};
class A::Impl {
  int x_;
  void f() { struct Local { void g(); int y; }; }
};
"""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "libtrainkit/src/data/a.h"
            path.parent.mkdir(parents=True)
            path.write_text(code)
            found = {c.name: (c.methods, c.members, c.where.rpartition(":")[2]) for c in classes.classes(check.Tree(folder))}
        self.assertEqual(found, {"A": (7, 9, "5"), "A::Options": (0, 2, "21"), "A::Impl": (1, 1, "36"), "A::Impl::Local": (1, 1, "38")})

    def test_an_umbrella_that_includes_a_missing_header(self):
        umbrella = CLEAN[check.UMBRELLA] + '#include "trainkit/optim/gone.h"\n'
        self.finds(check.check_umbrella, {check.UMBRELLA: umbrella}, "does not exist")

    def test_an_umbrella_with_too_many_headers(self):
        with unittest.mock.patch.object(check, "MAX_UMBRELLA", 2):
            problems = self.problems(check.check_umbrella, {})
        self.assertEqual(len(problems), 1, problems)
        self.assertIn("more than 2", problems[0])

    def test_public_names_that_nobody_needs(self):
        header = {"libtrainkit/include/trainkit/data/b.h": """#pragma once
namespace at { class Tensor; }
namespace trainkit {
namespace detail { class Hidden; void hide(); }
enum class Mode { kFast };
struct Options { Mode mode = Mode::kFast; std::vector<int> sizes{1, 2}; };
template <class T>
struct Pair { T a; };
/// Reads rows.
class Reader : public Base<Pair<int>> {
 public:
  explicit Reader(const Options& options);
  ~Reader() override;
  Reader& operator=(Reader&&) noexcept;
  static absl::StatusOr<std::unique_ptr<Reader>> open(const std::function<void(int)>& progress);
  int64_t rows() const { return rows_ ? call(rows_) : 0; }
  void close() override;
 protected:
  virtual void more() = 0;
 private:
  void fill();
  int64_t rows_;
};
TORCH_MODULE(Net);
class NetImpl {};
template <class T, class = std::enable_if_t<(sizeof(T) > 1)>>
T first(const std::vector<T>& list) { return list[0]; }
}  // namespace trainkit
"""}
        everything = {"docs/use.md": "`Reader::open` and `rows`, first(), Net\n"}
        self.assertEqual(self.problems(check.check_surface, {**header, **everything}), [])
        for page, unneeded in (("`open`, rows, first, Net", []),  # Reader, and what its constructor and bases name
                               ("Reader, open, rows, Net", ["26: function first"]),
                               ("Reader, open, first, Net", ["16: function Reader::rows"]),
                               ("Reader, open, rows, first", ["25: type NetImpl"]),
                               ("rows, first, Net", ["5: type Mode", "6: type Options", "7: type Pair", "10: type Reader",
                                                     "15: function Reader::open"])):
            problems = self.problems(check.check_surface, {**header, "docs/use.md": page})
            found = [re.sub(r".*b.h:(\d+): .* needs the public (\w+ [\w:]+): .*", r"\1: \2", problem) for problem in problems]
            self.assertEqual(found, unneeded, page)
        for user in ("apps/a/main.cpp", "examples/a.cpp", "README.md"):
            self.assertEqual(len(self.problems(check.check_surface, {**header, user: "Reader open rows first Net\n"})), 0, user)
        for other in ("tests/a_test.cpp", "bench/a.cpp", "CHANGELOG.md", "libtrainkit/src/data/b.cpp"):
            self.assertEqual(len(self.problems(check.check_surface, {**header, other: "Reader open rows first Net\n"})), 8, other)

    def test_the_list_of_public_names_that_nobody_needs(self):
        header = {"libtrainkit/include/trainkit/data/b.h": "namespace trainkit {\nvoid old();\n}\n"}
        self.finds(check.check_surface, header, "b.h:2: no program, example, page or other public name needs the public function old")
        listed = {"tests/lint/surface.txt": "# names\nold  # until the next issue\n"}
        self.assertEqual(self.problems(check.check_surface, {**header, **listed}), [])
        for gone in ({**header, **listed, "docs/use.md": "old"}, listed):
            self.assertEqual(self.problems(check.check_surface, gone),
                             ["tests/lint/surface.txt:2: old is used now, or no longer public: remove the line"])

    def test_a_program_that_includes_an_internal_header(self):
        planted = {"libtrainkit/src/data/copy.h": "#pragma once\n", "apps/a/main.cpp": '#include "data/copy.h"\n#include "a/own.h"\n'}
        self.finds(check.check_private_includes, planted, "apps/a/main.cpp: includes data/copy.h")
        listed = {"tests/lint/private_includes.txt": "# left\napps/a/main.cpp: data/copy.h  # until it is public\n"}
        self.assertEqual(self.problems(check.check_private_includes, {**planted, **listed}), [])
        self.assertEqual(self.problems(check.check_private_includes, listed),
                         ["tests/lint/private_includes.txt:2: apps/a/main.cpp includes data/copy.h no longer: remove the line"])

    def test_a_function_that_is_too_long(self):
        body = "  run();\n"
        for lines, problems in ((58, 0), (60, 1)):
            source = f"int f(int a,\n      int b) {{\n{body * (lines - 1)}}}\n\nclass C {{\n  void g() const {{\n{('  ' + body) * (lines - 1)}  }}\n}};\n"
            found = self.problems(check.check_function_lines, {"libtrainkit/src/data/b.cpp": source})
            self.assertEqual(len(found), 2 * problems, found)

    def test_an_umbrella_in_another_order(self):
        lines = CLEAN["libtrainkit/include/trainkit/trainkit.h"].splitlines(keepends=True)
        self.finds(check.check_umbrella, {"libtrainkit/include/trainkit/trainkit.h": "".join(reversed(lines))}, "order")

    def test_a_header_that_would_not_be_installed(self):
        self.finds(check.check_headers_listed, {"libtrainkit/include/trainkit/data/new.h": ""}, "is not named")

    def test_a_file_function_of_libtorch(self):
        self.finds(check.check_file_functions, {"apps/x/main.cpp": 'torch::load(x, "f");  // torch::save(x)\n'}, "torch::load")

    def test_lines_left_by_a_merge(self):
        self.finds(check.check_conflicts, {"dev": "a\n" + "<" * 7 + " HEAD\nb\n"}, "dev:2")

    def test_a_library_that_calls_a_file_function_by_another_way(self):
        with tempfile.TemporaryDirectory() as folder:
            module = pathlib.Path(folder) / "libtrainkit/src/io"
            module.mkdir(parents=True)
            for name, call in (("ours", "trainkit::load"), ("theirs", "torch::pickle_load")):
                space, function = call.split("::")
                source = f"namespace {space} {{ void {function}(int); }} void f() {{ {call}(1); }}\n"
                subprocess.run(["c++", "-x", "c++", "-c", "-", "-o", module / f"{name}.o"], input=source, text=True, check=True)
                subprocess.run(["ar", "qc", module / f"libtrainkit_{name}.a", module / f"{name}.o"], check=True)
            problems = list(check.check_symbols(check.Tree(folder), pathlib.Path(folder)))
            self.assertEqual(problems, ["libtrainkit_theirs.a: calls torch::pickle_load(int)"])

    def test_a_folder_of_somebodys_machine(self):
        self.finds(check.check_paths, {"docs/page.md": "# A heading\nsee " + "/home/" + "alice/data\n"}, "docs/page.md:2")

    def test_a_link_that_leads_nowhere(self):
        self.finds(check.check_links, {"docs/page.md": "# A heading\n[x](missing.md)\n"}, "leads nowhere")

    def test_a_link_to_a_heading_that_is_gone(self):
        self.finds(check.check_links, {"docs/page.md": "# Another\n"}, "no such heading")

    def test_a_program_in_the_readme_that_is_not_the_example(self):
        self.finds(check.check_readme, {"examples/readme.cpp": "int main() { return 1; }\n"}, "differs")

    def test_a_program_that_the_readme_does_not_list(self):
        sources = {"apps/trainkit/main.cpp": '{"plan", "predicts", plan_command},\n', "apps/x/app.cpp": '.name = "trainkit-x"\n',
                   "README.md": CLEAN["README.md"] + "| [`trainkit-x`](docs/page.md) | x |\n| [`trainkit plan`](docs/page.md) | y |\n"}
        self.assertEqual(self.problems(check.check_readme, sources), [])
        for old, words in (("trainkit-x`", "no table has a row of trainkit-x"), ("trainkit plan`", "no table has a row of trainkit plan")):
            problems = self.problems(check.check_readme, {**sources, "README.md": sources["README.md"].replace(old, "other`")})
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(words, problems[0])
        self.assertIn("lists trainkit gone", self.problems(check.check_readme, {**sources, "README.md": sources["README.md"] + "| `trainkit gone` | z |\n"})[0])

    def test_benchmarks_of_two_commits(self):
        sources = {
            "bench/published.json": '{"AMD": {"a": {"median": 3.14159, "lowest": 2.7, "highest": 19.8, "commit": "abc"}}}',
            "docs/benchmarks.md": "# B\n\n- Machine: AMD; Debian\n- Versions: commit abc\n\n## Ratios and targets\n\n| what | median |\n|---|---|\n| a | 3.14 × | x |\n",
            "docs/benchmarks.svg": "<text>commit abc; bars</text>",
            "docs/reliability.md": "## Measured\n\n", "docs/guide/memory.md": "### Predicted and counted\n\n"}
        self.assertEqual(self.problems(check.check_figures, sources), [])
        for name, words in (("docs/benchmarks.svg", "is not of commit abc"), ("bench/published.json", "'a' is of commit old")):
            problems = self.problems(check.check_figures, {**sources, name: sources[name].replace("abc", "old")})
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(words, problems[0])

    def test_a_picture_that_is_too_narrow(self):
        def picture(width):
            return b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + width.to_bytes(4, "big") + bytes(12)
        self.assertEqual(self.problems(check.check_pictures, {"docs/a.png": picture(600)}), [])
        self.finds(check.check_pictures, {"docs/a.png": picture(229)}, "docs/a.png: 229 pixels wide")

    ERRORS = {
        "libtrainkit/src/core/a.cpp": 'return to_status({.exit_code = ExitCode::kData,\n  .id = "data.row",\n  .problem = "ends early"});\n',
        "docs/errors.toml": '[data.row]\ncause = "C."\nexample = "error[data.row] a.csv: ends early"\nremedy = "R."\n',
    }

    def errors(self, changes):
        """The problems of a tree whose page was written before `changes`."""
        with unittest.mock.patch("errors.WITHOUT_TEXT", set()):
            clean = {**CLEAN, **self.ERRORS, "docs/errors.md": ""}
            with tempfile.TemporaryDirectory() as folder:
                for name, text in clean.items():
                    path = pathlib.Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
                found, _ = errors.ids_of(errors.sources(pathlib.Path(folder)))
                clean["docs/errors.md"] = errors.page(errors.entries_of(pathlib.Path(folder)), found)
            return self.problems(check.check_errors, {**clean, **changes})

    def test_an_error_without_its_entry(self):
        self.assertEqual(self.errors({}), [])
        code = self.ERRORS["libtrainkit/src/core/a.cpp"]
        for planted, words in (('x("data.gone");', "a.cpp: the id data.gone has no entry"),
                               ('e.id = "data." + kind;', "makes an id of two parts"),
                               ('{.id = "other.id"}', "the id other.id has no entry"),
                               ('{.exit_code = ExitCode::kUsage, .id = "data.row"}', "docs/errors.md: is not what")):
            problems = self.errors({"libtrainkit/src/core/a.cpp": code + planted})
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(words, problems[0])

    def test_an_entry_without_its_error(self):
        table = self.ERRORS["docs/errors.toml"]
        for changed, words in ((table + table.replace("data.row", "data.gone"), "[data.gone] is no id"),
                               (table.replace("ends early", "ends late now"), "no string of the sources"),
                               (table.replace("ends early", "ends early: 2 are missing"), "text '2 are missing'"),
                               (table + "exit = [5]\n", "exit is [5], but the sources set [4]"),
                               (table.replace("remedy", "cure"), "needs cause, example and remedy"),
                               (table.replace("C.", "D."), "docs/errors.md: is not what")):
            problems = self.errors({"docs/errors.toml": changed})
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(words, problems[0])

    def test_a_figure_that_differs_from_its_source(self):
        sources = {
            "bench/published.json": '{"AMD EPYC": {"a: b": {"median": 3.14159, "lowest": 2.7, "highest": 19.84}}}',
            "docs/reliability.md": "## Measured\n\n| what | n | d | at |\n|---|---|---|---|\n"
                                   "| `a` | 100; 100; 100 each | 0 | c |\n| `b` | 1,600 | 2 | c |\n".replace("1,600", "1600"),
            "docs/guide/memory.md": "### Predicted and counted\n\n| a | 1, 2 | +0.02 % | x |\n| b | 1, 2 | -0.99 % | x |\n\n## Next\n",
        }
        page = ("# A heading\nIs <!-- figure AMD: a: b -->3.14 ×<!-- end --> <!-- range AMD: a: b -->2.70 – 19.8<!-- end -->\n"
                "and <!-- figure interruptions -->2,100<!-- end --> <!-- figure differences -->2<!-- end --> "
                "<!-- figure memory -->0.99 %<!-- end -->\n")
        self.assertEqual(self.problems(check.check_figures, {**sources, "docs/page.md": page}), [])
        for old, new, words in (("3.14", "3.15", "which is 3.14 ×"), ("19.8<", "20<", "which is 2.70 – 19.8"), ("2,100", "2,000", "2,100"),
                                ("-->2<", "-->0<", "'differences', which is 2"), ("0.99 %", "0.02 %", "which is 0.99 %"), ("Is <", "<", "begins a line"),
                                ("AMD: a: b -->3", "Intel: a: b -->3", "there is no figure")):
            problems = self.problems(check.check_figures, {**sources, "docs/page.md": page.replace(old, new)})
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(words, problems[0])

    def test_fields_of_a_run_that_the_page_or_the_header_lacks(self):
        header = ("// ---- metrics.jsonl: records.\n\n" 'inline constexpr char kStep[] = "step";\n' 'inline constexpr char kSplit[] = "split";\n'
                  "// ---- run.json: sessions.\n" 'inline constexpr char kHost[] = "host";\n' 'inline constexpr char kName[] = "name";\n')
        page = ("## Files\n| `x` | a file |\n## metrics.jsonl\n```json\n| `y` | code |\n```\n| `step`, `split` | `train` |\n"
                "## run.json\n| `host`: `name` | the machine |\n| `step` | as above |\n")
        sources = {check.FIELD_NAMES: header, check.FIELDS_PAGE: page}
        self.assertEqual(self.problems(check.check_fields, sources), [])
        for name, old, new, words in (
                (check.FIELDS_PAGE, ", `split`", "", "field_names.h:4: no table of docs/formats/run.md has `split` below the heading metrics.jsonl"),
                (check.FIELDS_PAGE, ": `name`", "", "has `name` below the heading run.json"),
                (check.FIELDS_PAGE, "| `host`", "| `pid`, `host`", "run.md:9: libtrainkit/src/logging/field_names.h has no name pid"),
                (check.FIELD_NAMES, 'inline constexpr char kSplit[] = "split";\n', "", "run.md:7: libtrainkit/src/logging/field_names.h has no name split")):
            problems = self.problems(check.check_fields, {**sources, name: sources[name].replace(old, new)})
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(words, problems[0])

    def test_a_phrase_that_is_hard_to_understand(self):
        self.finds(check.check_plain_english, {"docs/page.md": "# A heading\nReads so many rows.\n"},
                   "docs/page.md:2: 'so many': write N")
        self.finds(check.check_plain_english, {"docs/page.md": "# A heading\n```sh\nrun  # 3 rows a step\n```\n"}, "docs/page.md:3")
        for name in ("apps/x/main.cpp", "tests/x/x_test.cpp", "bench/x/x_bench.cpp"):
            self.finds(check.check_plain_english, {name: "/// The run goes\n/// on.\n"},
                       f"{name}:1: 'goes on': write continue")

    def test_code_output_and_similar_words_are_not_hard_to_understand(self):
        page = "# A heading\nN stands for rows; it understands, recommends and amends `beside`.\n```\nthe run goes on\n```\n"
        self.assertEqual(self.problems(check.check_plain_english, {"docs/page.md": page, "apps/transformer/demo_text.cpp": "// goes on\n"}), [])


if __name__ == "__main__":
    unittest.main()
