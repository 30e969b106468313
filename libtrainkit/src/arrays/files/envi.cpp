#include "arrays/files/envi.h"

#include <ATen/Functions.h>
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "core/files/array_bytes.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {
namespace {

constexpr int64_t kMostHeaderBytes = 4 << 20, kMostSide = int64_t{1} << 31;

absl::Status bad(const std::string& where, const std::string& field, const std::string& problem,
                 const std::string& got = "", const std::string& expected = "") {
  return data_error("data.envi", {.file = where, .field = field}, problem, got, expected);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::string lower(std::string_view text) { return absl::AsciiStrToLower(std::string(text)); }

struct Field {
  std::string value;
  int64_t line = 0;
};
using Fields = std::map<std::string, Field>;

/// Parses lines of `name = value`. A value in braces may span several lines.
absl::StatusOr<Fields> parse_header(const std::string& path, std::string_view text) {
  const std::string_view first = trimmed(text.substr(0, text.find('\n')));
  if (first != "ENVI") return bad(path + ":1", "", "not an ENVI header", std::string(first.substr(0, 40)), "ENVI");
  Fields fields;
  int64_t line = 0;
  while (!text.empty()) {
    ++line;
    const size_t end = std::min(text.find('\n'), text.size() - 1);
    std::string_view row = text.substr(0, end + 1);
    const size_t equals = row.find('=');
    const std::string where = fmt::format("{}:{}", path, line);
    if (equals == row.npos || trimmed(row).starts_with(';')) {  // a comment or an empty line
      text.remove_prefix(row.size());
      continue;
    }
    const std::string name = lower(trimmed(row.substr(0, equals)));
    std::string_view value = trimmed(row.substr(equals + 1));
    if (value.starts_with('{')) {
      const size_t close = text.find('}');
      if (close == text.npos) return bad(where, name.substr(0, 40), "the brace is not closed");
      row = text.substr(0, std::min(text.find('\n', close), text.size() - 1) + 1);
      value = text.substr(equals + 1, close - equals);
    }
    if (!fields.emplace(name, Field{std::string(value), line}).second) {
      return bad(where, name.substr(0, 40), "is a duplicate");
    }
    line += std::count(row.begin(), row.end(), '\n') - 1;
    text.remove_prefix(row.size());
  }
  return fields;
}

struct EnviHeader {
  int64_t samples = 0, lines = 0, bands = 0, offset = 0;
  at::ScalarType dtype = at::kByte;
  std::string interleave;
  bool swap = false;
};

class HeaderReader {
 public:
  HeaderReader(const std::string& path, const Fields& fields) : path_(path), fields_(fields) {}

  absl::Status number(const std::string& name, int64_t least, int64_t most, std::optional<int64_t> otherwise,
                      int64_t& value) const {
    const auto found = fields_.find(name);
    if (found == fields_.end()) {
      if (!otherwise) return bad(path_, name, "is missing");
      value = *otherwise;
      return absl::OkStatus();
    }
    const std::string& text = found->second.value;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most)
      return absl::OkStatus();
    return fault(name, "not a number in range", fmt::format("{} to {}", least, most));
  }

  absl::Status fault(const std::string& name, const std::string& problem, const std::string& expected) const {
    const Field& field = fields_.at(name);
    return bad(fmt::format("{}:{}", path_, field.line), name, problem, field.value.substr(0, 40), expected);
  }

  absl::StatusOr<EnviHeader> read() const {
    EnviHeader header;
    int64_t type = 0, order = 0;
    TRAINKIT_RETURN_IF_ERROR(number("samples", 1, kMostSide, {}, header.samples));
    TRAINKIT_RETURN_IF_ERROR(number("lines", 1, kMostSide, {}, header.lines));
    TRAINKIT_RETURN_IF_ERROR(number("bands", 1, kMostSide, {}, header.bands));
    TRAINKIT_RETURN_IF_ERROR(number("header offset", 0, int64_t{1} << 62, 0, header.offset));
    TRAINKIT_RETURN_IF_ERROR(number("data type", 1, 15, {}, type));
    TRAINKIT_RETURN_IF_ERROR(number("byte order", 0, 1, 0, order));
    static const std::map<int64_t, at::ScalarType> kTypes = {{1, at::kByte},    {2, at::kShort},  {3, at::kInt},
                                                             {4, at::kFloat},   {5, at::kDouble}, {12, at::kUInt16},
                                                             {13, at::kUInt32}, {14, at::kLong},  {15, at::kUInt64}};
    const auto dtype = kTypes.find(type);
    if (dtype == kTypes.end()) return fault("data type", "not supported", "1 to 5 or 12 to 15");
    header.dtype = dtype->second;
    header.swap = (order == 1) == (std::endian::native == std::endian::little);
    const auto interleave = fields_.find("interleave");
    if (interleave == fields_.end()) return bad(path_, "interleave", "is missing");
    header.interleave = lower(interleave->second.value);
    if (header.interleave != "bsq" && header.interleave != "bil" && header.interleave != "bip") {
      return fault("interleave", "not known", "bsq, bil or bip");
    }
    return header;
  }

 private:
  const std::string& path_;
  const Fields& fields_;
};

/// Finds the header and the data file, given either of them.
absl::StatusOr<std::pair<std::string, std::string>> find_pair(const std::string& path) {
  const Fs& fs = Fs::posix();
  const size_t dot = path.find_last_of("./");
  const bool has_extension = dot != path.npos && path[dot] == '.' && dot > 0 && path[dot - 1] != '/';
  const std::string stem = has_extension ? path.substr(0, dot) : path;
  if (!has_extension || lower(path.substr(dot)) != ".hdr") {
    for (const std::string& header : {stem + ".hdr", path + ".hdr", stem + ".HDR", path + ".HDR"}) {
      if (fs.exists(header)) return std::pair(header, path);
    }
    return bad(path, "", "no header next to it", "", stem + ".hdr");
  }
  std::vector<std::string> found;
  for (const char* extension : {"", ".dat", ".img", ".raw", ".bsq", ".bil", ".bip", ".bin", ".DAT", ".IMG", ".RAW",
                                ".BSQ", ".BIL", ".BIP", ".BIN"}) {
    if (fs.exists(stem + extension)) found.push_back(stem + extension);
  }
  if (found.size() == 1) return std::pair(path, found[0]);
  if (found.empty()) {
    return bad(path, "", "no data file next to it", "",
               "the same name with no extension, .dat, .img, .raw, .bsq, .bil, .bip or .bin");
  }
  return bad(path, "", "more than one possible data file", fmt::format("{}", fmt::join(found, ", ")),
             "one: name it instead of the header");
}

absl::StatusOr<detail::StoredArray> find_data(const std::string& path, const EnviHeader& header) {
  TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  const int64_t bytes = detail::array_bytes(std::array{header.lines, header.samples, header.bands},
                                            static_cast<int64_t>(c10::elementSize(header.dtype)));
  const bool fits = bytes >= 0;
  const int64_t available = static_cast<int64_t>(file->bytes().size()) - header.offset;
  if (!fits || bytes != available) {
    return bad(path, "", !fits || bytes > available ? "shorter than its header says" : "longer than its header says",
               fmt::format("{} bytes after an offset of {}", available, header.offset),
               fmt::format("{} lines x {} samples x {} bands of {} bytes", header.lines, header.samples, header.bands,
                           c10::elementSize(header.dtype)));
  }
  using Order = std::vector<int64_t>;
  return detail::StoredArray{.file = std::move(file),
                             .offset = header.offset,
                             .dtype = header.dtype,
                             .sizes = {header.lines, header.samples, header.bands},
                             .order = header.interleave == "bsq"   ? Order{2, 0, 1}
                                      : header.interleave == "bil" ? Order{0, 2, 1}
                                                                   : Order{0, 1, 2},
                             .is_swapped = header.swap};
}

absl::StatusOr<Fields> read_fields(const std::string& header_path) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto text, MappedFile::open(header_path));
  if (text->text().empty()) return bad(header_path, "", "the file is empty");
  if (text->text().size() > kMostHeaderBytes)
    return bad(header_path, "", "too long for a header", describe_bytes(static_cast<int64_t>(text->text().size())),
               "at most 4 MiB");
  const std::string copy(text->text());
  TRAINKIT_RETURN_IF_ERROR(text->check());
  return parse_header(header_path, copy);
}

}  // namespace

absl::StatusOr<std::vector<double>> detail::read_envi_wavelengths(const std::string& path) try {
  TRAINKIT_ASSIGN_OR_RETURN(const auto pair, find_pair(path));
  TRAINKIT_ASSIGN_OR_RETURN(const Fields fields, read_fields(pair.first));
  std::vector<double> values;
  const auto found = fields.find("wavelength");
  if (found == fields.end()) return values;
  const HeaderReader reader(pair.first, fields);
  TRAINKIT_ASSIGN_OR_RETURN(const EnviHeader header, reader.read());
  std::string list = found->second.value;
  std::erase_if(list, [](char c) { return c == '{' || c == '}'; });
  for (const absl::string_view word : absl::StrSplit(list, ',')) {
    double value = 0;
    if (!absl::SimpleAtod(word, &value) || !std::isfinite(value)) {
      return reader.fault("wavelength", "not a list of numbers", "{number, number, ...}");
    }
    values.push_back(value);
  }
  if (static_cast<int64_t>(values.size()) != header.bands) {
    return reader.fault("wavelength", fmt::format("{} numbers", values.size()),
                        fmt::format("one for each of {} bands", header.bands));
  }
  return values;
} catch (...) {
  return annotate(status_from_current_exception(), path);
}

absl::StatusOr<detail::StoredArray> detail::open_envi(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto pair, find_pair(path));
  const auto& [header_path, data_path] = pair;
  TRAINKIT_ASSIGN_OR_RETURN(const Fields fields, read_fields(header_path));
  TRAINKIT_ASSIGN_OR_RETURN(const EnviHeader header, HeaderReader(header_path, fields).read());
  return find_data(data_path, header);
}

absl::StatusOr<at::Tensor> read_envi(const std::string& path) try {
  TRAINKIT_ASSIGN_OR_RETURN(const detail::StoredArray array, detail::open_envi(path));
  return array.read();
} catch (...) {
  return annotate(status_from_current_exception(), path);
}

}  // namespace trainkit
