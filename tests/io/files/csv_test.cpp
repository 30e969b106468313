#include "trainkit/io/csv.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

absl::StatusOr<CsvFile> parse(const std::string& text, const CsvOptions& options = {}) {
  static const TempDir dir;
  std::ofstream(dir / "table.csv", std::ios::binary) << text;
  return CsvFile::open(dir / "table.csv", options);
}

/// The error as users see it, from the file name.
std::string error_of_text(const std::string& text, const CsvOptions& options = {}) {
  const auto file = parse(text, options);
  REQUIRE_FALSE(file.ok());
  CHECK(exit_code(file.status()) == ExitCode::kData);
  const std::string line = error_line(file.status());
  return line.substr(line.find("table.csv"));
}

}  // namespace

TEST_CASE("Fields follow RFC 4180, and each knows its line", "[io][csv]") {
  const CsvFile file = parse(
                           "\xef\xbb\xbfid,text\r\n"
                           "1,\"two\nlines, and \"\"quotes\"\"\"\r\n"
                           "\r\n"
                           "2, blanks stay \n"
                           "3,")
                           .value();
  CHECK(file.columns() == std::vector<std::string>{"id", "text"});
  REQUIRE(file.rows() == 3);
  CHECK(file.at(0, 1) == "two\nlines, and \"quotes\"");
  CHECK(file.at(1, 1) == " blanks stay ");
  CHECK(file.at(2, 1).empty());
  CHECK(file.line(0) == 2);
  CHECK(file.line(1) == 5);
  CHECK(file.line(2) == 6);
  CHECK(file.integer(2, 0).value() == 3);
  CHECK(file.column("text").value() == 1);
  CHECK(parse("a;b\n1;2\n", {.delimiter = ';'}).value().at(0, 1) == "2");
}

TEST_CASE("An invalid csv file is reported with its line and cause", "[io][csv]") {
  CHECK(error_of_text("") == "table.csv: empty file (expected lines of text)");
  CHECK(error_of_text("\xef\xbb\xbf") == "table.csv: empty file (expected lines of text)");
  CHECK(error_of_text("\n\n") == "table.csv: no header (expected a line with the columns' names)");
  CHECK(error_of_text("a,b\n") == "table.csv: no rows after the header (got '0 rows', expected at least 1 row)");
  CHECK(error_of_text("a,b,a\n1,2,3\n").starts_with("table.csv:1: duplicate column name (got 'a'"));
  CHECK(error_of_text("a,b\n1,2\n1,2,3\n").starts_with("table.csv:3: the number of fields differs"));
  CHECK(error_of_text("a,b\n1,2\n1\n").starts_with("table.csv:3: the number of fields differs"));
  CHECK(error_of_text("a,b\n\"x\ny\",2\n1\n").starts_with("table.csv:4: the number of fields differs"));
  CHECK(error_of_text("a,b\n1,\"open\nand\nmore").starts_with("table.csv:2: a quote that is never closed"));
  CHECK(error_of_text("a,b\n1,ba\"re\n").starts_with("table.csv:2: a quote inside a field"));
  CHECK(error_of_text("a,b\n1,\"x\"y\n").starts_with("table.csv:2: a quote inside a field"));
  CHECK(error_of_text(std::string("a,b\n1,\0\n", 8)).starts_with("table.csv:2: a NUL byte"));
  CHECK(error_of_text("a,b\r1,2\r").starts_with("table.csv:1: a carriage return"));
  CHECK(error_of_text("\xff\xfe\x61").starts_with("table.csv: not in a known encoding (got 'UTF-16"));
  CHECK(error_of_text("\x1f\x8b\x08").starts_with("table.csv: compressed (got 'gzip"));
  CHECK(error_of_text("a,b\n1,it\x92s\n").starts_with("table.csv:2: not UTF-8 (got '\\x92"));
  CHECK(error_of_text("a;b\n1;2\n").starts_with("table.csv:1: unexpected delimiter (got ';"));
  CHECK(error_of_text("a\tb\n1\t2\n").starts_with("table.csv:1: unexpected delimiter"));
  CHECK(error_of_text("a,b\n1,\"" + std::string(100, '\n'), {.max_row_bytes = 50}).starts_with("table.csv:2: row too"));
  CHECK(error_of_text(std::string(1000, 'x'), {.max_row_bytes = 50}).starts_with("table.csv:1: row too long"));
}

TEST_CASE("Files that cannot be read as text are data errors", "[io][csv]") {
  const TempDir dir;
  CHECK(exit_code(CsvFile::open(dir / "none.csv").status()) == ExitCode::kData);
  CHECK(exit_code(CsvFile::open(dir.path().string()).status()) == ExitCode::kData);
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(exit_code(CsvFile::open(dir / "pipe").status()) == ExitCode::kData);
}

TEST_CASE("An invalid number and a missing column are reported with the actual contents", "[io][csv]") {
  const CsvFile file = parse("Emotion,id\nneutral,1x\nsad,99999999999999999999\n").value();
  CHECK(error_line(file.integer(0, 1).status()).find("table.csv:2: id: not a whole number (got '1x") !=
        std::string::npos);
  CHECK(error_line(file.integer(1, 1).status()).find("table.csv:3: id: out of range") != std::string::npos);
  const auto missing = file.column("emotion");
  CHECK(exit_code(missing.status()) == ExitCode::kData);
  CHECK(error_of(missing.status())->hint == "did you mean 'Emotion'?");
}

TEST_CASE("Every prefix of a csv file is read as whole rows or is an error", "[io][csv]") {
  const std::string text = "id,text\r\n1,\"a \"\"b\"\"\nc\"\r\n22,d\r\n";
  const CsvFile whole = parse(text).value();
  for (size_t size = 0; size < text.size(); ++size) {
    const auto file = parse(text.substr(0, size));
    if (!file.ok()) continue;
    // A cut inside the last field of a row cannot be detected; rows before it never change.
    INFO(size);
    REQUIRE(file->rows() <= whole.rows());
    for (int64_t row = 0; row + 1 < file->rows(); ++row) REQUIRE(file->at(row, 1) == whole.at(row, 1));
  }
}

TEST_CASE("A field that is written is read back unchanged", "[io][csv]") {
  std::string text = "a,b\n";
  const std::vector<std::string> fields = {"plain", "a,b", "a \"quote\"", "two\nlines", " blanks ", "\"",
                                           "a\rb",  "\r",  "x\r\ny\rz",   "a\"\r\"b",   ""};
  for (const std::string& field : fields) text += csv_field(field) + ",x\n";
  const CsvFile file = parse(text).value();
  REQUIRE(file.rows() == static_cast<int64_t>(fields.size()));
  for (size_t i = 0; i < fields.size(); ++i) CHECK(file.at(static_cast<int64_t>(i), 0) == fields[i]);
  CHECK(csv_field("plain") == "plain");
}

TEST_CASE("A carriage return inside quotes is part of the field, one outside is an error", "[io][csv]") {
  const CsvFile file = parse("a,b\r\n\"1\r2\",\"3\n4\r5\"\r\n").value();
  CHECK(file.at(0, 0) == "1\r2");
  CHECK(file.at(0, 1) == "3\n4\r5");
  CHECK(error_of_text("a,b\n\"1\",2\r3\n").starts_with("table.csv:2: a carriage return"));
  CHECK(error_of_text("a,b\n\"1\n2\",3\r4\n").starts_with("table.csv:3: a carriage return"));
  CHECK(error_of_text("a,b\n\"1\"\"\",2\r\r\n").starts_with("table.csv:2: a carriage return"));
}

TEST_CASE("A single quoted column name may contain a delimiter", "[io][csv]") {
  CHECK(parse("\"last, first\"\na\n").value().columns() == std::vector<std::string>{"last, first"});
  CHECK(parse("\n\"last; first\"\n\"\"\n").value().at(0, 0).empty());
}
