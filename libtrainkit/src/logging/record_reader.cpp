#include "logging/record_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/strict_json.h"
#include "logging/field_names.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
/// First part of the end of a file that read_last_records() reads.
constexpr int64_t kEndBytes = int64_t{16} << 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<double> to_number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

/// Parses any line.
std::optional<LogRecord> parse_any(std::string_view line) {
  if (detail::holds_nul(line)) return std::nullopt;  // a power cut can leave NUL bytes
  const auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto step =
      json.is_object() && json.contains(fields::kStep) ? detail::json_integer(json[fields::kStep]) : std::nullopt;
  if (!step) return std::nullopt;
  LogRecord record{.step = *step, .split = ""};
  for (const auto& [name, value] : json.items()) {
    const std::optional<double> number = to_number(value);
    if (name == fields::kStep) continue;
    if (name == fields::kEpoch && number) {
      record.epoch = *number;
    } else if (name == fields::kSplit && value.is_string()) {
      record.split = value.get<std::string>();
    } else if (number) {
      record.values.emplace_back(name, *number);
    } else if (name == fields::kLr && value.is_array()) {
      for (const auto& lr : value) record.lr.push_back(to_number(lr).value_or(0));
    } else if (name == fields::kGpuMemoryBytes && value.is_array()) {
      for (const auto& bytes : value) record.gpu_memory_bytes.push_back(detail::json_integer(bytes).value_or(0));
    } else if (name == fields::kGpuUtilisation && value.is_array()) {
      for (const auto& share : value) record.gpu_utilisation.push_back(to_number(share).value_or(-1));
    }
  }
  return record;
}

/// Parses a line as to_json() writes it, ten times faster than nlohmann's parser. Leaves every other line to that one.
class PlainLine {
 public:
  explicit PlainLine(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

  std::optional<LogRecord> parse() {
    LogRecord record{.split = ""};
    record.values.reserve(24);
    bool has_step = false;
    if (!take('{')) return std::nullopt;
    do {
      std::string_view name;
      if (!text(name) || !is_new(name) || !take(':')) return std::nullopt;
      if (name == fields::kStep) {
        Number number;
        if (!parse(number) || !number.is_integer) return std::nullopt;
        record.step = number.integer;
        has_step = true;
      } else if (!field(name, record)) {
        return std::nullopt;
      }
    } while (take(','));
    return has_step && take('}') && at_ == end_ ? std::optional(std::move(record)) : std::nullopt;
  }

 private:
  struct Number {
    double value = 0;
    int64_t integer = 0;
    bool is_integer = false;
  };

  bool field(std::string_view name, LogRecord& record) {
    if (name == fields::kLr) return list([&](const Number& number) { record.lr.push_back(number.value); });
    if (name == fields::kGpuUtilisation)
      return list([&](const Number& number) { record.gpu_utilisation.push_back(number.value); });
    if (name == fields::kGpuMemoryBytes)
      return list([&](const Number& number) { record.gpu_memory_bytes.push_back(number.integer); });
    std::string_view word;
    if (name == fields::kSplit) return text(word) && (record.split = word, true);
    Number number;
    const bool is_text = at_ != end_ && *at_ == '"';
    if (is_text ? !text(word) : !parse(number)) return false;
    if (is_text) {
      const auto value = to_number(nlohmann::json(word));
      if (!value) return name != fields::kEpoch;  // a text of other programs
      number.value = *value;
    }
    if (name == fields::kEpoch) return record.epoch = number.value, true;
    record.values.emplace_back(name, number.value);
    return true;
  }

  bool take(char c) { return at_ != end_ && *at_ == c && ++at_; }

  /// Takes a text without escapes and characters beyond ASCII.
  bool text(std::string_view& out) {
    if (!take('"')) return false;
    const char* const begin = at_;
    while (at_ != end_ && *at_ >= 0x20 && *at_ < 0x7f && *at_ != '"' && *at_ != '\\') ++at_;
    out = {begin, static_cast<size_t>(at_ - begin)};
    return take('"');
  }

  template <class Add>
  bool list(Add add) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      Number number;
      if (!parse(number)) return false;
      add(number);
    } while (take(','));
    return take(']');
  }

  bool digits() {
    const char* const begin = at_;
    while (at_ != end_ && is_digit(*at_)) ++at_;
    return at_ != begin;
  }

  /// Takes a number of JSON's grammar.
  bool parse(Number& number) {
    const char* const begin = at_;
    take('-');
    if (!take('0') && !digits()) return false;
    number.is_integer = true;
    if (take('.')) {
      number.is_integer = false;
      if (!digits()) return false;
    }
    if (take('e') || take('E')) {
      number.is_integer = false;
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    const auto read =
        number.is_integer ? std::from_chars(begin, at_, number.integer) : std::from_chars(begin, at_, number.value);
    if (number.is_integer) number.value = static_cast<double>(number.integer);  // "-0" is the integer 0
    return read.ec == std::errc() && read.ptr == at_;
  }

  /// Whether no earlier name of the line is the same.
  bool is_new(std::string_view name) {
    const uint64_t bit = uint64_t{1} << ((name.size() * 7 + (name.empty() ? 0 : name.front() * 3 + name.back())) % 64);
    const bool may_repeat = (seen_ & bit) != 0;
    seen_ |= bit;
    if (may_repeat && std::find(names_.begin(), names_.end(), name) != names_.end()) return false;
    names_.push_back(name);
    return true;
  }

  const char* at_;
  const char* end_;
  uint64_t seen_ = 0;
  std::vector<std::string_view> names_;
};

/// Returns the offset of the first line that begins at `offset` or later.
absl::StatusOr<int64_t> line_from(const ReadableFile& file, int64_t offset) {
  if (offset <= 0) return 0;
  std::string bytes;
  for (int64_t at = offset - 1; at < file.size_bytes(); at += kChunkBytes) {
    bytes.resize(static_cast<size_t>(std::min(kChunkBytes, file.size_bytes() - at)));
    TRAINKIT_RETURN_IF_ERROR(file.read_at(at, bytes.data(), bytes.size()));
    if (const size_t end = bytes.find('\n'); end != bytes.npos) return at + static_cast<int64_t>(end) + 1;
  }
  return file.size_bytes();
}

}  // namespace

std::optional<LogRecord> parse_record(std::string_view line) {
  std::optional<LogRecord> record = PlainLine(line).parse();
  return record ? std::move(record) : parse_any(line);
}

absl::StatusOr<int64_t> read_records(const ReadableFile& file, int64_t begin,
                                     c10::function_ref<bool(LogRecord&)> each) {
  std::string bytes;  // from `begin` on
  int64_t read = begin;
  while (read < file.size_bytes()) {
    const size_t kept = bytes.size();
    const int64_t some = std::min(kChunkBytes, file.size_bytes() - read);
    bytes.resize(kept + static_cast<size_t>(some));
    TRAINKIT_RETURN_IF_ERROR(file.read_at(read, bytes.data() + kept, static_cast<size_t>(some)));
    read += some;
    size_t line = 0;
    for (size_t end = bytes.find('\n', kept); end != bytes.npos; end = bytes.find('\n', line)) {
      std::optional<LogRecord> record = parse_record(std::string_view(bytes).substr(line, end - line));
      if (!record || !each(*record)) return begin + static_cast<int64_t>(line);
      line = end + 1;
    }
    bytes.erase(0, line);
    begin += static_cast<int64_t>(line);
  }
  return begin;
}

absl::StatusOr<int64_t> read_last_records(const ReadableFile& file, c10::function_ref<bool(const LogRecord&)> is_early,
                                          c10::function_ref<bool(LogRecord&)> each) {
  for (int64_t bytes = kEndBytes;; bytes *= 2) {
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t begin, line_from(file, file.size_bytes() - bytes));
    bool is_first = begin > 0, is_late = begin > 0;
    auto end = read_records(file, begin, [&](LogRecord& record) {
      if (std::exchange(is_first, false)) is_late = !is_early(record);
      return !is_late && each(record);
    });
    if (!end.ok() || !is_late) return end;
  }
}

absl::StatusOr<std::optional<LogRecord>> last_record(const std::string& path, std::string_view split) {
  TRAINKIT_ASSIGN_OR_RETURN(const ReadableFile file, Fs::posix().open_file(path));
  std::optional<LogRecord> last;
  for (int64_t bytes = kEndBytes;; bytes *= 2) {
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t begin, line_from(file, file.size_bytes() - bytes));
    const auto read = read_records(file, begin, [&](LogRecord& record) {
      if (record.split == split) last = std::move(record);
      return true;
    });
    if (!read.ok()) return read.status();
    if (last || begin == 0) return last;
  }
}

}  // namespace trainkit::detail
