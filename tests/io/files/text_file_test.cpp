#include "trainkit/io/text_file.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <vector>

#include "gzip.h"
#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

absl::StatusOr<TextFile> open_text_of(const std::string& text, const TextOptions& options = {}) {
  static const TempDir dir;
  std::ofstream(dir / "t.txt", std::ios::binary) << text;
  return TextFile::open(dir / "t.txt", options);
}

/// The error as users see it, from the file name.
std::string error_of_lines(const std::string& text, const TextOptions& options = {}) {
  const auto file = open_text_of(text, options);
  REQUIRE_FALSE(file.ok());
  CHECK(exit_code(file.status()) == ExitCode::kData);
  const std::string line = error_line(file.status());
  return line.substr(line.find("t.txt"));
}

std::vector<std::string> lines_of(const TextFile& file) {
  std::vector<std::string> lines;
  REQUIRE(file.for_each_line([&](int64_t line, std::string_view text) {
                REQUIRE(line == std::ssize(lines) + 1);
                lines.push_back(file.to_utf8(text));
                return absl::OkStatus();
              })
              .ok());
  return lines;
}

}  // namespace

TEST_CASE("A text gives its lines without their ends and without a byte order mark", "[io][text_file]") {
  CHECK(lines_of(open_text_of("\xef\xbb\xbf"
                              "a\r\n\nb\tc")
                     .value()) == std::vector<std::string>{"a", "", "b\tc"});
  const TextFile file = open_text_of("a\r\nb\n").value();
  TextLines lines = file.lines();
  CHECK(lines.next().value() == "a\r\n");
  CHECK(lines.next().value() == "b\n");
  CHECK(lines.number() == 2);
  CHECK_FALSE(lines.next().value().has_value());
  CHECK(error_line(file.bad(2, "column", "wrong", "x")).find("t.txt:2: column: wrong (got 'x')") != std::string::npos);
}

TEST_CASE("A text is UTF-8, or on request Latin-1, but not both", "[io][text_file]") {
  CHECK(lines_of(open_text_of("Mis\xe9rables\n", {.latin1 = true}).value())[0] == "Mis\xc3\xa9rables");
  CHECK(lines_of(open_text_of("Mis\xc3\xa9rables\n", {.latin1 = true}).value())[0] == "Mis\xc3\xa9rables");
  CHECK(error_of_lines("Mis\xe9rables\n").starts_with("t.txt:1: not UTF-8 (got '\\xe9'"));
  CHECK(error_of_lines("a\nh\xe9\nh\xc3\xa9\n", {.latin1 = true}).starts_with("t.txt:3: encoding differs from line 2"));
  CHECK(error_of_lines("it\x92s\n", {.latin1 = true}).starts_with("t.txt:1: neither UTF-8 nor Latin-1"));
  CHECK(error_of_lines("\xff\xfe"
                       "a")
            .starts_with("t.txt: not a text that can be read (got 'UTF-16'"));
}

TEST_CASE("A text that may be truncated, binary or without line ends is refused with its line", "[io][text_file]") {
  CHECK(error_of_lines("") == "t.txt: empty file (expected lines of text)");
  CHECK(error_of_lines("a\nb", {.may_end_open = false}).starts_with("t.txt:2: the last line has no line end"));
  CHECK(error_of_lines(std::string("a\n\0", 3)).starts_with("t.txt:2: a NUL byte"));
  CHECK(error_of_lines(std::string("a\n\0", 3), {.control_characters = true}).starts_with("t.txt:2: a NUL byte"));
  CHECK(error_of_lines("a\x01\n").starts_with("t.txt:1: control character (got '\\x01'"));
  CHECK(error_of_lines("a\rb\n").starts_with("t.txt:1: a carriage return"));
  CHECK(lines_of(open_text_of("a\rb\x01\n", {.control_characters = true}).value())[0] == "a\rb\x01");
  CHECK(error_of_lines("abc\nabcd\n", {.max_line_bytes = 3}).starts_with("t.txt:2: line too long"));
  CHECK(lines_of(open_text_of("abc\nabc", {.max_line_bytes = 3}).value()).size() == 2);
}

TEST_CASE("A fault after many plain lines is reported with its line, packed or not", "[io][text_file]") {
  std::string plain;  // longer than the blocks that are checked at once
  int64_t lines = 0;
  for (; plain.size() < 300'000; ++lines) plain += "line " + std::to_string(lines) + "\twith words\n";
  const std::string next = std::to_string(lines + 1);
  const auto error = [&](const std::string& end, const TextOptions& options = {}) {
    const std::string both = error_of_lines(plain + end, options);
    CHECK(error_of_lines(gzip(plain + end), options) == both);
    return both;
  };
  CHECK(error("a\x01\n").starts_with("t.txt:" + next + ": control character (got '\\x01'"));
  CHECK(error(std::string("a\0\n", 3)).starts_with("t.txt:" + next + ": a NUL byte"));
  CHECK(error("a\x7f\n").starts_with("t.txt:" + next + ": control character"));
  CHECK(error("a\rb\n").starts_with("t.txt:" + next + ": a carriage return"));
  CHECK(error("h\xe9\n").starts_with("t.txt:" + next + ": not UTF-8"));
  CHECK(error("b", {.may_end_open = false}).starts_with("t.txt:" + next + ": the last line has no line end"));
  CHECK(error(std::string(200'000, 'x') + "\n", {.max_line_bytes = 100'000})
            .starts_with("t.txt:" + next + ": line too long"));
  CHECK(error("caf\xc3\xa9\n" + plain + "h\xe9\n", {.latin1 = true})
            .starts_with("t.txt:" + std::to_string(2 * lines + 2) + ": encoding differs from line " + next));
  CHECK(error_of_lines(plain + "\x80", {.latin1 = true}).starts_with("t.txt:" + next + ": neither UTF-8 nor Latin-1"));
  for (const size_t size : {0, 1, 62, 63, 64, 65, 127, 128, 65'535, 65'536, 65'537}) {
    const std::string text = std::string(size, 'x') + "\nb\x01\n";
    CHECK(error_of_lines(text).starts_with("t.txt:2: control character"));
    CHECK(lines_of(open_text_of(std::string(size, 'x') + "\nb\n").value()).size() == 2);
  }
  CHECK(error_of_lines(std::string(70, 'x') + "\n" + std::string(71, 'x') + "\n", {.max_line_bytes = 70})
            .starts_with("t.txt:2: line too long"));
}
