#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "logging/append_file.h"
#include "logging/escape_name.h"
#include "logging/field_names.h"
#include "logging/record_reader.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/sinks.h"

namespace trainkit {
namespace {

namespace fields = detail::fields;

constexpr std::array<std::string_view, 7> kFixedFields = {
    fields::kStep,           fields::kEpoch,          fields::kSplit, fields::kLr,
    fields::kGpuMemoryBytes, fields::kGpuUtilisation, fields::kTime};

/// Returns the Unix time in seconds, rounded to milliseconds.
double unix_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1000;
}

void append_string(std::string& out, std::string_view text) { out += nlohmann::json(text).dump(); }

/// Appends a field name that needs no escapes, and the colon.
void append_key(std::string& out, std::string_view name) {
  out += '"';
  out += name;
  out += "\":";
}

template <class Number>
void append_number(std::string& out, Number value) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(value)) return void(out += "\"NaN\"");
    if (value == 0 && std::signbit(value)) return void(out += "-0.0");  // "-0" is read as the integer 0
    if (std::isinf(value)) return void(out += value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
  }
  char digits[32];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

template <class Number>
void append_array(std::string& out, std::string_view name, const std::vector<Number>& values) {
  if (values.empty()) return;
  out += ',';
  append_key(out, name);
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, values[i]);
  }
  out += ']';
}

}  // namespace

std::string to_json(const LogRecord& record) {
  std::string out = "{";
  append_key(out, fields::kStep);
  append_number(out, record.step);
  out += ',';
  append_key(out, fields::kEpoch);
  append_number(out, record.epoch);
  out += ',';
  append_key(out, fields::kSplit);
  append_string(out, detail::escape_name(record.split));
  std::vector<std::string> names;
  for (const auto& [name, value] : record.values) {
    const bool fixed = std::find(kFixedFields.begin(), kFixedFields.end(), name) != kFixedFields.end();
    std::string written = detail::escape_name(name) + (fixed ? "_" : "");
    if (std::find(names.begin(), names.end(), written) != names.end()) continue;  // duplicate name
    out += ',';
    append_string(out, written);
    names.push_back(std::move(written));
    out += ':';
    append_number(out, value);
  }
  append_array(out, fields::kLr, record.lr);
  append_array(out, fields::kGpuMemoryBytes, record.gpu_memory_bytes);
  append_array(out, fields::kGpuUtilisation, record.gpu_utilisation);
  out += '}';
  return out;
}

absl::StatusOr<std::vector<LogRecord>> read_jsonl(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const ReadableFile file, Fs::posix().open_file(path));
  std::vector<LogRecord> records;
  const auto read = detail::read_records(file, 0, [&](LogRecord& record) {
    records.push_back(std::move(record));
    return true;
  });
  if (!read.ok()) return read.status();
  return records;
}

class JsonlLogger::Impl {
 public:
  std::unique_ptr<detail::AppendFile> file;
};

JsonlLogger::JsonlLogger(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JsonlLogger::~JsonlLogger() = default;

absl::StatusOr<std::unique_ptr<JsonlLogger>> JsonlLogger::open(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(auto file, detail::AppendFile::open(path));
  auto impl = std::make_unique<Impl>();
  impl->file = std::move(file);
  return std::unique_ptr<JsonlLogger>(new JsonlLogger(std::move(impl)));
}

void JsonlLogger::log(const LogRecord& record) {
  std::string line = to_json(record);
  line.back() = ',';  // in place of the brace
  append_key(line, fields::kTime);
  char digits[32];
  line.append(digits, std::to_chars(digits, digits + sizeof digits, unix_time(), std::chars_format::fixed, 3).ptr);
  impl_->file->append(line + "}\n");
}

absl::Status JsonlLogger::flush() { return impl_->file->flush(); }

absl::Status JsonlLogger::rewind(int64_t step) {
  TRAINKIT_ASSIGN_OR_RETURN(const ReadableFile file, Fs::posix().open_file(impl_->file->path()));
  const auto stays = [step](const LogRecord& record) {
    return record.step < step || (record.step == step && record.split != "test");
  };
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t keep, detail::read_last_records(file, stays, stays));
  return impl_->file->truncate(keep);
}

}  // namespace trainkit
