#include "trainkit/io/table.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "gzip.h"
#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

absl::StatusOr<Table> parse(const std::string& text, const TableOptions& options = {}) {
  static const TempDir dir;
  std::ofstream(dir / "table.csv", std::ios::binary) << text;
  return Table::open(dir / "table.csv", options);
}

/// The error as users see it, from the file name.
std::string error_of_text(const std::string& text, const TableOptions& options = {}) {
  const auto file = parse(text, options);
  REQUIRE_FALSE(file.ok());
  CHECK(exit_code(file.status()) == ExitCode::kData);
  const std::string line = error_line(file.status());
  return line.substr(line.find("table.csv"));
}

}  // namespace

TEST_CASE("Fields follow RFC 4180, and each knows its line", "[io][table]") {
  const Table file = parse(
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
  CHECK(parse("a;b\n1;2\n", {.separator = ";"}).value().at(0, 1) == "2");
}

TEST_CASE("An invalid csv file is reported with its line and cause", "[io][table]") {
  CHECK(error_of_text("") == "table.csv: empty file (expected lines of text)");
  CHECK(error_of_text("\xef\xbb\xbf") == "table.csv: empty file (expected lines of text)");
  CHECK(error_of_text("\n\n") == "table.csv: no header (expected a line with the columns' names)");
  CHECK(error_of_text("a,b\n") == "table.csv: no rows after the header (got '0 rows', expected at least 1 row)");
  CHECK(error_of_text("a,b,a\n1,2,3\n").starts_with("table.csv:1: duplicate column name (got 'a'"));
  CHECK(error_of_text("a,b\n1,2\n1,2,3\n").starts_with("table.csv:3: 3 fields (got '1,2,3', expected 2: a, b"));
  CHECK(error_of_text("a,b\n1,2\n1\n").starts_with("table.csv:3: 1 field (got '1'"));
  CHECK(error_of_text("a,b\n\"x\ny\",2\n1\n").starts_with("table.csv:4: 1 field (got"));
  CHECK(error_of_text("a,b\n1,\"open\nand\nmore").starts_with("table.csv:2: a quote that is never closed"));
  CHECK(error_of_text("a,b\n1,\"x\"y\n").starts_with("table.csv:2: text after a closing quote (got 'y'"));
  CHECK(error_of_text("a,b\n1,2\na,b\n3,4\n").starts_with("table.csv:3: the names of the first line again"));
  CHECK(error_of_text(std::string("a,b\n1,\0\n", 8)).starts_with("table.csv:2: a NUL byte"));
  CHECK(error_of_text("a,b\r1,2\r").starts_with("table.csv:1: a carriage return"));
  CHECK(error_of_text("\xff\xfe\x61").starts_with("table.csv: not a text that can be read (got 'UTF-16"));
  CHECK(error_of_text("PAR1").starts_with("table.csv: not a text that can be read (got 'a Parquet table"));
  CHECK(error_of_text("\x1f\x8b\x08").starts_with("table.csv@0x3: damaged gzip data: the file may be truncated"));
  CHECK(error_of_text("a,b\n1,it\x92s\n").starts_with("table.csv:2: not UTF-8 (got '\\x92"));
  CHECK(error_of_text("a;b\n1;2\n").starts_with("table.csv:1: unexpected separator (got ';"));
  CHECK(error_of_text("a\tb\n1\t2\n").starts_with("table.csv:1: unexpected separator"));
  CHECK(error_of_text("a,b\n1,\"" + std::string(100, '\n'), {.max_row_bytes = 50}).starts_with("table.csv:2: row too"));
  CHECK(error_of_text(std::string(1000, 'x'), {.max_row_bytes = 50}).starts_with("table.csv:1: line too long"));
}

TEST_CASE("Files that cannot be read as text are data errors", "[io][table]") {
  const TempDir dir;
  CHECK(exit_code(Table::open(dir / "none.csv").status()) == ExitCode::kData);
  CHECK(exit_code(Table::open(dir.path().string()).status()) == ExitCode::kData);
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(exit_code(Table::open(dir / "pipe").status()) == ExitCode::kData);
}

TEST_CASE("An invalid number and a missing column are reported with the actual contents", "[io][table]") {
  const Table file = parse("Emotion,id\nneutral,1x\nsad,99999999999999999999\n").value();
  CHECK(error_line(file.integer(0, 1).status()).find("table.csv:2: id: not a whole number (got '1x") !=
        std::string::npos);
  CHECK(error_line(file.integer(1, 1).status()).find("table.csv:3: id: out of range") != std::string::npos);
  const auto missing = file.column("emotion");
  CHECK(exit_code(missing.status()) == ExitCode::kData);
  CHECK(error_of(missing.status())->hint == "did you mean 'Emotion'?");
}

TEST_CASE("Every prefix of a csv file is read as whole rows or is an error", "[io][table]") {
  const std::string text = "id,text\r\n1,\"a \"\"b\"\"\nc\"\r\n22,d\r\n";
  const Table whole = parse(text).value();
  for (size_t size = 0; size < text.size(); ++size) {
    const auto file = parse(text.substr(0, size));
    if (!file.ok()) continue;
    // A cut inside the last field of a row cannot be detected; rows before it never change.
    INFO(size);
    REQUIRE(file->rows() <= whole.rows());
    for (int64_t row = 0; row + 1 < file->rows(); ++row) REQUIRE(file->at(row, 1) == whole.at(row, 1));
  }
}

TEST_CASE("A field that is written is read back unchanged", "[io][table]") {
  std::string text = "a,b\n";
  const std::vector<std::string> fields = {"plain", "a,b", "a \"quote\"", "two\nlines", " blanks ", "\"",
                                           "a\rb",  "\r",  "x\r\ny\rz",   "a\"\r\"b",   ""};
  for (const std::string& field : fields) text += csv_field(field) + ",x\n";
  const Table file = parse(text).value();
  REQUIRE(file.rows() == static_cast<int64_t>(fields.size()));
  for (size_t i = 0; i < fields.size(); ++i) CHECK(file.at(static_cast<int64_t>(i), 0) == fields[i]);
  CHECK(csv_field("plain") == "plain");
}

TEST_CASE("A carriage return inside quotes is part of the field, one outside is an error", "[io][table]") {
  const Table file = parse("a,b\r\n\"1\r2\",\"3\n4\r5\"\r\n").value();
  CHECK(file.at(0, 0) == "1\r2");
  CHECK(file.at(0, 1) == "3\n4\r5");
  CHECK(error_of_text("a,b\n\"1\",2\r3\n").starts_with("table.csv:2: a carriage return"));
  CHECK(error_of_text("a,b\n\"1\n2\",3\r4\n").starts_with("table.csv:3: a carriage return"));
  CHECK(error_of_text("a,b\n\"1\"\"\",2\r\r\n").starts_with("table.csv:2: a carriage return"));
}

TEST_CASE("A quote inside an unquoted field is a character", "[io][table]") {
  CHECK(parse("a,b\n1,ba\"re\n").value().at(0, 1) == "ba\"re");
  CHECK(parse("a,b\n5\" disk,\"x\"\n").value().at(0, 0) == "5\" disk");
}

TEST_CASE("A single quoted column name may contain a delimiter", "[io][table]") {
  CHECK(parse("\"last, first\"\na\n").value().columns() == std::vector<std::string>{"last, first"});
  CHECK(parse("\n\"last; first\"\n\"\"\n").value().at(0, 0).empty());
}

TEST_CASE("The name of a file says how its fields are separated, and the bytes whether it is packed", "[io][table]") {
  const TempDir dir;
  const auto format_of = [&](const std::string& name, const std::string& text, const TableOptions& options = {}) {
    std::ofstream(dir / name, std::ios::binary) << text;
    const auto table = TableReader::open(dir / name, options);
    INFO(table.status());
    REQUIRE(table.ok());
    REQUIRE((*table)->next().value());
    CHECK((*table)->text((*table)->column("b").value()) == "2");
    CHECK_FALSE((*table)->next().value());
    return (*table)->format();
  };
  CHECK(format_of("t.csv", "a,b\n1,2\n") == "values separated by commas");
  CHECK(format_of("t.TSV", "a\tb\n1\t2\n") == "values separated by tabs");
  CHECK(format_of("t.dat", "a::b\n1::2\n", {.separator = "::"}) == "values separated by '::'");
  CHECK(format_of("t.jsonl", "{\"a\": 1, \"b\": 2}\n") == "JSON lines");
  CHECK(format_of("t.tsv.gz", gzip("a\tb\n1\t2\n")) == "values separated by tabs, packed with gzip");
  CHECK(format_of("u.csv", gzip("a,b\n") + gzip("1,2\n")) == "values separated by commas, packed with gzip");
  CHECK(format_of("t.csv", "1,2\n", {.header = false, .names = {"a", "b"}}) == "values separated by commas");
}

TEST_CASE("A packed table is read in pieces, and gives the rows of the plain one", "[io][table]") {
  std::string text = "id,text\n";
  for (int i = 0; i < 40'000; ++i)
    text += std::to_string(i) + ",\"a \"\"b\"\"\n" + std::to_string(i * 7919 % 977) + "\"\n";
  const Table plain = parse(text).value(), packed = parse(gzip(text)).value();
  REQUIRE(packed.rows() == plain.rows());
  for (int64_t row = 0; row < plain.rows(); ++row) {
    REQUIRE(packed.at(row, 1) == plain.at(row, 1));
    REQUIRE(packed.line(row) == plain.line(row));
  }
  const std::string bytes = gzip(text);
  CHECK(error_of_text(bytes.substr(0, bytes.size() / 2)).find("damaged gzip data") != std::string::npos);
  std::string changed = bytes;
  changed[bytes.size() - 6] ^= 1;  // the checksum
  CHECK(error_of_text(changed).find("incorrect data check") != std::string::npos);
  CHECK(error_of_text(bytes + "tail").find("damaged gzip data") != std::string::npos);
  CHECK(parse(bytes + std::string(100, '\0')).value().rows() == plain.rows());
}

TEST_CASE("JSON lines have the columns of their first line, and null fields", "[io][table]") {
  const TempDir dir;
  const auto open = [&](const std::string& text, const TableOptions& options = {}) {
    std::ofstream(dir / "t.jsonl", std::ios::binary) << text;
    return TableReader::open(dir / "t.jsonl", options);
  };
  const auto error = [&](const std::string& text) {
    const auto table = open(text);
    if (!table.ok()) return error_line(table.status());
    while (true) {
      const auto more = (*table)->next();
      if (!more.ok()) return error_line(more.status());
      if (!*more) return std::string();
    }
  };
  const auto table =
      open("{\"id\": 7, \"name\": \"x\\u00e9\", \"tags\": [1, 2]}\n \n{\"id\": 2.5, \"name\": null}\n").value();
  CHECK(table->columns() == std::vector<std::string>{"id", "name", "tags"});
  CHECK(table->has_names());
  REQUIRE(table->next().value());
  CHECK(table->integer(0).value() == 7);
  CHECK(table->text(1) == "x\xc3\xa9");
  CHECK(table->text(2) == "[1,2]");
  REQUIRE(table->next().value());
  CHECK(table->line() == 3);
  CHECK(table->number(0).value() == 2.5);
  CHECK((table->is_null(1) && table->is_null(2) && !table->is_null(0)));
  REQUIRE(table->rewind().ok());
  REQUIRE(table->next().value());
  CHECK(table->line() == 1);
  CHECK(error("{\"a\": 1}\n[1]\n").find("t.jsonl:2: not a JSON object (got 'array'") != std::string::npos);
  CHECK(error("{\"a\": 1}\n{\"a\": 1, \"b\": 2}\n").find("t.jsonl:2: a field that the first line lacks (got 'b'") !=
        std::string::npos);
  CHECK(error("{\"a\": \"\\u0000\"}\n").find("t.jsonl:1: a: a NUL character") != std::string::npos);
  CHECK(error("{\"a\": 1\n").find("t.jsonl:1") != std::string::npos);
  CHECK(error("{}\n").find("an object without fields") != std::string::npos);
  const auto chosen = open("{\"b\": 1, \"a\": 2}\n{\"c\": 3}\n", {.names = {"a"}}).value();
  REQUIRE(chosen->next().value());
  CHECK(chosen->text(0) == "2");
  REQUIRE(chosen->next().value());
  CHECK(chosen->is_null(0));
}

TEST_CASE("A table without a header has numbered or given columns, and starts again on request", "[io][table]") {
  const TempDir dir;
  std::ofstream(dir / "t.csv") << "5,x\n6,y\n";
  const auto table = TableReader::open(dir / "t.csv", {.header = false}).value();
  CHECK(table->columns() == std::vector<std::string>{"1", "2"});
  CHECK_FALSE(table->has_names());
  for (int time = 0; time < 2; ++time) {
    REQUIRE(table->next().value());
    CHECK(table->integer(0).value() == 5);
    REQUIRE(table->next().value());
    CHECK(table->fields() == std::vector<std::string_view>{"6", "y"});
    CHECK(error_of(table->integer(1).status())->field == "2");
    CHECK_FALSE(table->next().value());
    REQUIRE(table->rewind().ok());
  }
  const auto narrow =
      TableReader::open(dir / "t.csv", {.header = false, .names = {"id"}, .separator_flag = "--csv_delimiter"}).value();
  CHECK(error_of(narrow->next().status())->expected == "1: id; see --csv_delimiter");
}
