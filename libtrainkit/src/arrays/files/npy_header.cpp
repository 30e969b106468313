#include "arrays/files/npy_header.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>

#include "core/files/array_bytes.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

absl::Status invalid(const std::string& problem) { return absl::InvalidArgumentError(problem); }

const std::map<std::string_view, at::ScalarType>& dtypes() {
  static const std::map<std::string_view, at::ScalarType> known = {
      {"|b1", at::kBool},         {"|u1", at::kByte},          {"|i1", at::kChar},  {"<u2", at::kUInt16},
      {"<i2", at::kShort},        {"<u4", at::kUInt32},        {"<i4", at::kInt},   {"<u8", at::kUInt64},
      {"<i8", at::kLong},         {"<f2", at::kHalf},          {"<f4", at::kFloat}, {"<f8", at::kDouble},
      {"<c8", at::kComplexFloat}, {"<c16", at::kComplexDouble}};
  return known;
}

// Parses a Python literal from left to right.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool take(std::string_view token) {
    skip_spaces();
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }

  std::optional<std::string_view> string() {
    skip_spaces();
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) return std::nullopt;
    const size_t end = text_.find(text_[0], 1);
    if (end == text_.npos) return std::nullopt;
    const std::string_view value = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return value;
  }

  std::optional<int64_t> number() {
    skip_spaces();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    text_.remove_prefix(end - text_.data());
    take("L");  // suffix of Python 2
    return value;
  }

  std::optional<std::vector<int64_t>> tuple() {
    if (!take("(")) return std::nullopt;
    std::vector<int64_t> values;
    while (!take(")")) {
      const auto value = number();
      if (!value) return std::nullopt;
      values.push_back(*value);
      if (!take(",") && !text_.starts_with(")")) return std::nullopt;
    }
    return values;
  }

 private:
  void skip_spaces() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n')) text_.remove_prefix(1);
  }
  std::string_view text_;
};

}  // namespace

absl::StatusOr<NpyHeader> parse_npy_header(std::string_view bytes) {
  if (bytes.size() < 10 || bytes.substr(0, 6) != "\x93NUMPY")
    return invalid("not a NumPy file: it does not begin with \\x93NUMPY");
  const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<unsigned char>(bytes[at])); };
  const size_t major = byte(6);
  if (major < 1 || major > 3) return invalid("format version " + std::to_string(major) + " is not known");
  const size_t begin = major == 1 ? 10 : 12;
  if (bytes.size() < begin) return invalid("the file ends within the header");
  const size_t length = major == 1 ? byte(8) | byte(9) << 8 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  if (length > bytes.size() - begin) return invalid("the file ends within the header");

  Reader reader(bytes.substr(begin, length));
  std::optional<std::string_view> descr;
  std::optional<std::vector<int64_t>> shape;
  std::optional<bool> fortran_order;
  if (!reader.take("{")) return invalid("the header is not a dictionary");
  while (!reader.take("}")) {
    const auto key = reader.string();
    if (!key || !reader.take(":")) return invalid("the header is not a dictionary of NumPy's");
    if (*key == "descr") {
      descr = reader.string();
      if (!descr) return invalid("only arrays of one plain type are supported, not records");
    } else if (*key == "shape") {
      shape = reader.tuple();
      if (!shape) return invalid("the header's shape is not a tuple of sizes");
    } else if (*key == "fortran_order") {
      if (reader.take("False")) {
        fortran_order = false;
      } else if (reader.take("True")) {
        fortran_order = true;
      } else {
        return invalid("the header's fortran_order is neither True nor False");
      }
    } else {
      return invalid("the header has an entry \"" + escape_text(*key) + "\" that NumPy does not write");
    }
    reader.take(",");
  }
  if (!descr || !shape || !fortran_order) return invalid("the header lacks descr, shape or fortran_order");
  const auto dtype = dtypes().find(*descr);
  if (dtype == dtypes().end()) {
    return invalid("elements of type \"" + escape_text(*descr) +
                   "\" are not supported (expected little-endian numbers or bool)");
  }
  return NpyHeader{dtype->second, std::move(*shape), *fortran_order, static_cast<int64_t>(begin + length)};
}

absl::StatusOr<int64_t> npy_array_bytes(const NpyHeader& header, int64_t available) {
  const int64_t bytes = array_bytes(header.shape, static_cast<int64_t>(c10::elementSize(header.dtype)));
  const bool fits = bytes >= 0;
  if (fits && bytes <= available) return bytes;
  if (!fits && std::find(header.shape.begin(), header.shape.end(), 0) != header.shape.end())
    return invalid("the sizes of its empty array do not fit 64 bits");
  return invalid("the file is shorter than its array (got '" + std::to_string(available) + " bytes', expected " +
                 (fits ? std::to_string(bytes) + " bytes" : "a size that fits 64 bits") + ")");
}

std::vector<int64_t> npy_order(const NpyHeader& header) {
  std::vector<int64_t> order(header.shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (header.fortran_order) std::reverse(order.begin(), order.end());
  return order;
}

std::string_view npy_dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : dtypes()) {
    if (known == dtype) return name;
  }
  return {};
}

}  // namespace trainkit::detail
