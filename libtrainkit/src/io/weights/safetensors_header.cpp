#include "io/weights/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "core/base/strict_json.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int kMaxHeaderDepth = 16;
constexpr size_t kMaxTensorRank = 64;
constexpr size_t kMaxTensorNameBytes = 65535;
// Limits far above any model. With them, parsing the longest header takes less than 256 MiB.
constexpr size_t kMaxListedTensors = 1 << 18;
constexpr size_t kMaxMetadata = 1 << 18;
constexpr size_t kMaxTextBytes = 16 << 20;
constexpr uint64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

// Note [Parsing hostile safetensors headers]
//
// A header of up to 100 MB comes from untrusted files. HeaderReader uses nlohmann's SAX interface, so no JSON tree,
// which would need many times the header's size, is built. Before parsing, has_short_texts() bounds every string,
// because the parser keeps a copy of the current one. Counts of tensors, dimensions and metadata are checked as they
// grow, not afterwards. check_entry() then checks each tensor alone, and check_layout() checks that all tensors
// together cover the data exactly. No tensor is allocated before that.

/// A tensor as stated in the header, unchecked.
struct RawEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

/// Builds raw entries from the parser's events; see Note [Parsing hostile safetensors headers]. Depth 1 is the root
/// object, depth 2 a tensor or the metadata, depth 3 a list. Values of unknown keys are skipped.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  std::deque<RawEntry> entries;  // a deque: names_ has views of their names, which must not move
  SafetensorsMetadata metadata;
  absl::Status status;

  bool start_object(size_t) override { return open('{'); }
  bool start_array(size_t) override { return open('['); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (skip_depth_ > 0) return true;
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      if (in_metadata_) return std::exchange(has_metadata_, true) ? refuse(name, "is a duplicate") : true;
      if (entries.size() == kMaxListedTensors)
        return refuse_number("header", "lists too many tensors", kMaxListedTensors);
      entries.push_back({.name = std::move(name), .dtype = {}, .shape = {}, .offsets = {}});
      const std::string& added = entries.back().name;
      return names_.insert(added).second ? true : refuse(added, "is a duplicate");
    }
    if (in_metadata_) {
      if (metadata.contains(name)) return refuse("__metadata__." + name, "is a duplicate");
      if (metadata.size() == kMaxMetadata) return refuse_number("__metadata__", "has too many entries", kMaxMetadata);
    } else if (!seen_in_entry(name)) {
      return refuse(entries.back().name, "has its '" + name + "' twice");
    }
    key_ = std::move(name);
    return true;
  }

  bool string(std::string& text) override {
    if (skip_depth_ > 0) return true;
    if (depth_ == 2 && in_metadata_) {
      metadata.emplace(std::move(key_), std::move(text));
      return true;
    }
    if (depth_ == 2 && key_ == "dtype") {
      entries.back().dtype = std::move(text);
      return true;
    }
    return value("a string");
  }

  bool number_unsigned(uint64_t number) override {
    if (skip_depth_ > 0) return true;
    if (list_) {
      // one more than allowed is kept; check_entry refuses it with the whole entry
      if (list_->size() > kMaxTensorRank)
        return refuse_number(entries.back().name, key_ + " is too long", kMaxTensorRank);
      list_->push_back(number);
      return true;
    }
    return value("a number");
  }
  // Called only for numbers with a minus sign, including "-0", which the reference also refuses.
  bool number_integer(int64_t) override { return value("a negative number"); }
  bool number_float(double, const std::string& text) override { return value("the number " + text); }
  bool boolean(bool) override { return value("a boolean"); }
  bool binary(nlohmann::json::binary_t&) override { return value("bytes"); }
  bool null() override {
    // The reference accepts null metadata as no metadata.
    return depth_ == 1 && in_metadata_ && skip_depth_ == 0 ? true : value("null");
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    Error problem = safetensors_error(path_, "header", "is not valid JSON: " + json_problem(error));
    problem.where += fmt::format(
        "@0x{:x}",
        8 + position - std::min<size_t>(position, 1));  // position counts the bytes read, including the bad one
    status = to_status(problem);
    return false;
  }

 private:
  bool refuse(const std::string& field, const std::string& problem, std::string got = {}, std::string expected = {}) {
    Error error = safetensors_error(path_, field, problem);
    error.got = std::move(got);
    error.expected = std::move(expected);
    status = to_status(error);
    return false;
  }

  bool refuse_number(const std::string& field, const std::string& problem, size_t most) {
    return refuse(field, problem, fmt::format("more than {}", most), fmt::format("at most {}", most));
  }

  /// Refuses a value of the wrong kind. Below unknown keys all values are skipped.
  bool value(const std::string& kind) {
    if (skip_depth_ > 0) return true;
    if (depth_ == 0) return refuse("header", "is not an object", kind);
    if (depth_ == 1) return refuse(in_metadata_ ? "__metadata__" : entries.back().name, "is not an object", kind);
    if (in_metadata_) return refuse("__metadata__." + key_, "is not a string", kind);
    if (list_)
      return refuse(entries.back().name, key_ + " has an element that is not an integer from 0 to 2^64 - 1", kind);
    if (known_key()) return refuse(entries.back().name, key_ + " is of the wrong type", kind);
    return true;
  }

  bool known_key() const { return key_ == "dtype" || key_ == "shape" || key_ == "data_offsets"; }

  bool seen_in_entry(const std::string& name) const {
    const RawEntry& entry = entries.back();
    return !(name == "dtype" && entry.dtype) && !(name == "shape" && entry.shape) &&
           !(name == "data_offsets" && entry.offsets);
  }

  bool open(char bracket) {
    if (depth_ == kMaxHeaderDepth)
      return refuse("header", fmt::format("is nested deeper than {} levels", kMaxHeaderDepth));
    if (skip_depth_ == 0) {
      const char* kind = bracket == '{' ? "an object" : "a list";
      if (depth_ < 2) {
        if (bracket == '[') return value(kind);
      } else if (depth_ == 2 && !in_metadata_ && bracket == '[' && (key_ == "shape" || key_ == "data_offsets")) {
        auto& list = key_ == "shape" ? entries.back().shape : entries.back().offsets;
        list_ = &list.emplace();
      } else {
        if (!value(kind)) return false;
        skip_depth_ = depth_;  // skip until this bracket closes
      }
    }
    ++depth_;
    return true;
  }

  bool close() {
    --depth_;
    if (skip_depth_ == depth_) skip_depth_ = 0;
    list_ = nullptr;
    return true;
  }

  const std::string& path_;
  std::unordered_set<std::string_view> names_;
  std::string key_;
  std::vector<uint64_t>* list_ = nullptr;
  int depth_ = 0;
  int skip_depth_ = 0;
  bool in_metadata_ = false;
  bool has_metadata_ = false;
};

/// Whether every string of the JSON is short enough. The parser keeps a copy of the current one.
bool has_short_texts(std::string_view json) {
  size_t begin = json.npos;  // start of the current string
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '\\') {
      ++i;
    } else if (json[i] == '"') {
      begin = begin == json.npos ? i : json.npos;
    } else if (begin != json.npos && i - begin > kMaxTextBytes) {
      return false;
    }
  }
  return true;
}

/// Returns the size of a tensor in bytes. nullopt if it exceeds 64 bits or is not a whole number of bytes.
std::optional<uint64_t> tensor_bytes(const std::vector<uint64_t>& shape, int bits) {
  uint64_t count = 1;
  for (const uint64_t dimension : shape) {
    if (__builtin_mul_overflow(count, dimension, &count)) return std::nullopt;
  }
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(bits), &count) || count % 8 != 0) return std::nullopt;
  return count / 8;
}

/// Checks one entry without the others.
absl::StatusOr<SafetensorsEntry> check_entry(RawEntry&& raw, const std::string& path) {
  const auto refuse = [&](const std::string& problem, std::string got = {}, std::string expected = {}) {
    Error error = safetensors_error(path, raw.name, problem);
    error.got = std::move(got);
    error.expected = std::move(expected);
    return to_status(error);
  };
  const bool has_control =
      std::any_of(raw.name.begin(), raw.name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (has_control) return refuse("name holds control characters");
  if (raw.name.size() > kMaxTensorNameBytes)
    return refuse("name is too long", describe_bytes(static_cast<int64_t>(raw.name.size())));
  if (!raw.dtype) return refuse("has no dtype");
  if (!raw.shape) return refuse("has no shape");
  if (!raw.offsets) return refuse("has no data_offsets");
  const SafetensorsDtype* dtype = find_dtype(*raw.dtype);
  if (!dtype) return refuse("dtype is unknown", *raw.dtype);
  if (raw.shape->size() > kMaxTensorRank) {
    return refuse("has too many dimensions", fmt::format("{}", raw.shape->size()),
                  fmt::format("at most {}", kMaxTensorRank));
  }
  if (raw.offsets->size() != 2)
    return refuse("data_offsets are not two numbers", fmt::format("{}", raw.offsets->size()), "2");
  const uint64_t begin = (*raw.offsets)[0], end = (*raw.offsets)[1];
  const std::string offsets = fmt::format("[{}, {}]", begin, end);
  if (end < begin) return refuse("data_offsets are reversed", offsets);
  const auto too_large = [](uint64_t dimension) { return dimension > kMaxInt64; };
  const auto bytes = tensor_bytes(*raw.shape, dtype->bits);
  if (!bytes || std::any_of(raw.shape->begin(), raw.shape->end(), too_large)) {
    return refuse("shape and dtype make no whole number of bytes below 2^64",
                  fmt::format("shape [{}], {}", fmt::join(*raw.shape, ", "), *raw.dtype));
  }
  if (end - begin != *bytes) {
    return refuse("data_offsets do not fit shape and dtype", offsets, fmt::format("{} bytes", *bytes));
  }
  if (end > kMaxInt64) return refuse("data_offsets are past the end of the file", offsets);
  return SafetensorsEntry{.name = std::move(raw.name),
                          .dtype = std::move(*raw.dtype),
                          .shape = {raw.shape->begin(), raw.shape->end()},
                          .begin = static_cast<int64_t>(begin),
                          .end = static_cast<int64_t>(end)};
}

/// Checks that the sorted entries cover the data without a gap or an overlap.
absl::Status check_layout(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes, const std::string& path) {
  int64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    Error error = safetensors_error(path, entry.name, {});
    error.got = fmt::format("[{}, {}]", entry.begin, entry.end);
    if (entry.begin != covered) {
      error.problem = entry.begin < covered ? "offsets overlap the tensor before" : "offsets leave a hole";
      error.expected = fmt::format("a start at {}", covered);
      return to_status(error);
    }
    if (static_cast<uint64_t>(entry.end) > data_bytes) {
      error.problem = "data_offsets are past the end of the file, which is cut short";
      error.expected = fmt::format("an end at most {}", data_bytes);
      return to_status(error);
    }
    covered = entry.end;
  }
  if (static_cast<uint64_t>(covered) == data_bytes) return absl::OkStatus();
  Error error = safetensors_error(path, {}, "has bytes after the last tensor");
  error.got = fmt::format("{} bytes", data_bytes - static_cast<uint64_t>(covered));
  error.expected = "none";
  return to_status(error);
}

}  // namespace

const std::vector<SafetensorsDtype>& safetensors_dtypes() {
  using c10::ScalarType;
  static const std::vector<SafetensorsDtype> dtypes = {
      {"BOOL", 8, ScalarType::Bool},
      {"F4", 4, {}},
      {"F6_E2M3", 6, {}},
      {"F6_E3M2", 6, {}},
      {"U8", 8, ScalarType::Byte},
      {"I8", 8, ScalarType::Char},
      {"F8_E5M2", 8, ScalarType::Float8_e5m2},
      {"F8_E4M3", 8, ScalarType::Float8_e4m3fn},
      {"F8_E8M0", 8, ScalarType::Float8_e8m0fnu},
      {"F8_E4M3FNUZ", 8, ScalarType::Float8_e4m3fnuz},
      {"F8_E5M2FNUZ", 8, ScalarType::Float8_e5m2fnuz},
      {"I16", 16, ScalarType::Short},
      {"U16", 16, ScalarType::UInt16},
      {"F16", 16, ScalarType::Half},
      {"BF16", 16, ScalarType::BFloat16},
      {"I32", 32, ScalarType::Int},
      {"U32", 32, ScalarType::UInt32},
      {"F32", 32, ScalarType::Float},
      {"C64", 64, ScalarType::ComplexFloat},
      {"F64", 64, ScalarType::Double},
      {"I64", 64, ScalarType::Long},
      {"U64", 64, ScalarType::UInt64},
  };
  return dtypes;
}

const SafetensorsDtype* find_dtype(std::string_view name) {
  for (const auto& dtype : safetensors_dtypes()) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

const SafetensorsDtype* find_dtype(c10::ScalarType type) {
  for (const auto& dtype : safetensors_dtypes()) {
    if (dtype.scalar_type == type) return &dtype;
  }
  return nullptr;
}

absl::StatusOr<SafetensorsHeader> parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                                           const std::string& path) {
  if (!text.starts_with('{')) {
    Error error = safetensors_error(path, "header", "does not start with '{'");
    error.got = text.substr(0, 1);
    return to_status(error);
  }
  if (text.find('\0') != std::string_view::npos) {  // nlohmann's parser would treat it as the end
    return to_status(safetensors_error(path, "header", "is not valid JSON: it holds a NUL byte"));
  }
  if (!has_short_texts(text)) return to_status(safetensors_error(path, "header", "holds a text of over 16 MiB"));
  HeaderReader reader(path);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) return reader.status;
  SafetensorsHeader header{.entries = {}, .metadata = std::move(reader.metadata)};
  header.entries.reserve(reader.entries.size());
  for (RawEntry& raw : reader.entries) {
    TRAINKIT_ASSIGN_OR_RETURN(auto entry, check_entry(std::move(raw), path));
    header.entries.push_back(std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  TRAINKIT_RETURN_IF_ERROR(check_layout(header.entries, data_bytes, path));
  return header;
}

Error safetensors_error(const std::string& path, std::string field, std::string problem) {
  return {.exit_code = ExitCode::kWeights,
          .id = "weights.safetensors",
          .where = path,
          .field = std::move(field),
          .problem = std::move(problem)};
}

}  // namespace trainkit::detail
