// A table; fields written by csv_field are read unchanged, and every field is valid text.
#include "trainkit/io/csv.h"

#include "core/base/utf8.h"
#include "target.h"

namespace trainkit::fuzz::csv {

std::vector<std::string> seeds() {
  return {"a,b\n1,2\n3,4\n", "Sr No.,Utterance,Emotion\r\n1,\"He said \"\"no\"\", twice\nand left\",neutral\r\n2,,joy",
          "\xef\xbb\xbfname\n\"\"\n\n \"\n"};
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory, copy;
  const auto table = CsvFile::open(memory.write(as_text(data, size)), {.max_row_bytes = 4096});
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
  const auto again = CsvFile::open(copy.write(text));
  require(again.ok(), "a value that was read can be written: " + again.status().ToString());
  require(again->columns() == table->columns() && again->rows() == table->rows(), "columns and rows are read back");
  for (int64_t row = 0; row < table->rows(); ++row) {
    for (int64_t column = 0; column < columns; ++column)
      require(again->at(row, column) == table->at(row, column), "a field is read back");
  }
  return 0;
}

const Registered target("csv", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::csv
