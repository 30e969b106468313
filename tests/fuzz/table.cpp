// A table; fields written by csv_field are read unchanged, and every field of any kind of table is valid text.
#include "trainkit/io/table.h"

#include "core/base/utf8.h"
#include "gzip.h"
#include "target.h"

namespace trainkit::fuzz::table {

std::vector<std::string> seeds() {
  return {"a,b\n1,2\n3,4\n",
          "Sr No.,Utterance,Emotion\r\n1,\"He said \"\"no\"\", twice\nand left\",neutral\r\n2,,joy",
          "\xef\xbb\xbfname\n\"\"\n\n \"\n",
          "1::Mis\xe9rables::4\n2::Heat::3\n",
          "{\"a\": 1, \"b\": \"x\"}\n\n{\"b\": null, \"a\": [1, {}]}\n",
          test::gzip("a,b\n1,2\n"),
          test::gzip("")};
}

/// Reads all rows of a table whose format is given by its name or the options.
void read_rows(const std::string& path, const TableOptions& options) {
  const auto table = TableReader::open(path, options);
  if (!table.ok()) return require_named(table.status(), {"data."});
  int64_t line = 0;
  while (true) {
    const auto more = (*table)->next();
    if (!more.ok()) return require_named(more.status(), {"data."});
    if (!*more) return;
    require((*table)->line() > line, "lines ascend");
    line = (*table)->line();
    for (size_t column = 0; column < (*table)->columns().size(); ++column) {
      const std::string_view field = (*table)->text(column);
      require(find_invalid_utf8(field) == field.size() && field.find('\0') == field.npos, "a field is text");
      if (const auto number = (*table)->number(column); !number.ok()) require_named(number.status(), {"data."});
    }
  }
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory, copy;
  read_rows(write_bytes("table.jsonl", as_text(data, size)), {.max_row_bytes = 4096});
  read_rows(memory.write(as_text(data, size)),
            {.separator = "::", .header = false, .latin1 = true, .control_characters = false, .max_row_bytes = 4096});
  const auto table = Table::open(memory.write(as_text(data, size)), {.max_row_bytes = 4096});
  if (!table.ok()) return require_named(table.status(), {"data."}), 0;
  const auto columns = static_cast<int64_t>(table->columns().size());
  // With one column an empty field would be an empty line, which is not a row.
  const auto written = [&](std::string_view field) {
    return columns == 1 && field.empty() ? std::string(2, '"') : csv_field(field);
  };
  std::string text = "\xef\xbb\xbf";  // so that one at the start of the first name is not removed as the file's
  const auto add = [&](int64_t column, std::string_view field) {
    if (column > 0) text += ',';
    text += written(field);
  };
  for (int64_t column = 0; column < columns; ++column) add(column, table->columns()[column]);
  int64_t line = 0;
  for (int64_t row = 0; row < table->rows(); ++row) {
    text += '\n';
    require(table->line(row) > line, "lines ascend");
    line = table->line(row);
    for (int64_t column = 0; column < columns; ++column) {
      const std::string_view field = table->at(row, column);
      require(find_invalid_utf8(field) == field.size() && field.find('\0') == field.npos, "a field is text");
      add(column, field);
      if (const auto number = table->integer(row, column); !number.ok()) require_named(number.status(), {"data.csv"});
    }
  }
  text += '\n';
  const auto again = Table::open(copy.write(text));
  require(again.ok(), "a value that was read can be written: " + again.status().ToString());
  require(again->columns() == table->columns() && again->rows() == table->rows(), "columns and rows are read back");
  for (int64_t row = 0; row < table->rows(); ++row) {
    for (int64_t column = 0; column < columns; ++column)
      require(again->at(row, column) == table->at(row, column), "a field is read back");
  }
  return 0;
}

const Registered target("table", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::table
