#include "trainkit/core/error.h"

#include <absl/strings/ascii.h>
#include <absl/strings/cord.h>
#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/mask_secrets.h"
#include "core/base/utf8.h"

namespace trainkit {
namespace {

constexpr char kPayload[] = "trainkit/error";
constexpr size_t kMaxLine = 400;
constexpr std::array kFields = {&Error::id,  &Error::where,    &Error::field, &Error::problem,
                                &Error::got, &Error::expected, &Error::hint};

absl::StatusCode default_code(ExitCode code) {
  switch (code) {
    case ExitCode::kOk:
    case ExitCode::kBug:
      return absl::StatusCode::kInternal;
    case ExitCode::kUsage:
    case ExitCode::kConfig:
      return absl::StatusCode::kInvalidArgument;
    case ExitCode::kData:
    case ExitCode::kWeights:
      return absl::StatusCode::kDataLoss;
    case ExitCode::kStorage:
      return absl::StatusCode::kAborted;
    case ExitCode::kOutOfMemory:
      return absl::StatusCode::kResourceExhausted;
    case ExitCode::kDistributed:
      return absl::StatusCode::kUnavailable;
    case ExitCode::kNumerics:
      return absl::StatusCode::kFailedPrecondition;
    case ExitCode::kStalledWorker:
      return absl::StatusCode::kDeadlineExceeded;
    case ExitCode::kDevice:
      return absl::StatusCode::kInternal;
  }
  return absl::StatusCode::kUnknown;
}

bool is_printable(uint32_t c) {
  const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
  const bool direction = c == 0x061c || (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
                         (c >= 0x2060 && c <= 0x2069) || c == 0xfeff;
  return !control && !direction;
}

bool looks_secret(std::string_view field) {
  const std::string lower = absl::AsciiStrToLower(std::string(field));
  for (std::string_view end : {"key", "token", "secret", "password"}) {
    if (lower.ends_with(end)) return true;
  }
  return false;
}

/// Replaces user:password@ in a URL by ***@.
std::string mask_user_info(std::string text) {
  for (size_t at = text.find("://"); at != std::string::npos; at = text.find("://", at + 3)) {
    const size_t end = text.find_first_of("/ \t", at + 3);
    const size_t mark = text.substr(0, end).rfind('@');
    if (mark != std::string::npos && mark > at) text.replace(at + 3, mark - at - 3, "***");
  }
  return text;
}

/// Formats the text of error_line().
std::string line_of(const Error& error) {
  const std::string got = looks_secret(error.field) ? "***" : escape_text(mask_user_info(error.got), 60);
  std::string line = "error[" + error.id + "]";
  const auto part = [&](const std::string& text, size_t most, const char* before) {
    if (!text.empty()) line += before + escape_text(mask_user_info(text), most);
  };
  part(error.where, 120, " ");
  part(error.field, 60, error.where.empty() ? " " : ": ");
  part(error.problem, kMaxLine, error.where.empty() && error.field.empty() ? " " : ": ");
  if (!error.got.empty() || !error.expected.empty()) {
    std::string tail = " (";
    if (!error.got.empty()) tail += "got '" + got + "'";
    if (!error.got.empty() && !error.expected.empty()) tail += ", ";
    if (!error.expected.empty()) tail += "expected " + escape_text(error.expected, 120);
    tail += ")";
    if (line.size() + tail.size() > kMaxLine - 10) line = escape_text(line, kMaxLine - 10 - tail.size());
    line += tail;
  }
  return line.size() > kMaxLine - 10 ? escape_text(line, kMaxLine - 10) : line;
}

/// Returns the error of any Status: the one that it carries, or one made from its code and message.
Error describe(const absl::Status& status) {
  if (auto error = error_of(status)) return *error;
  Error error{.exit_code = exit_code(status), .problem = std::string(status.message())};
  switch (error.exit_code) {
    case ExitCode::kOutOfMemory:
      error.id = "memory.exhausted";
      error.hint =
          "lower batch_size and raise grad_accum_steps (same global batch); for host memory, lower num_workers";
      break;
    case ExitCode::kDistributed:
      error.id = "dist.unavailable";
      break;
    case ExitCode::kStalledWorker:
      error.id = "data.timeout";
      break;
    case ExitCode::kData:
      error.id = "data.loss";
      break;
    case ExitCode::kOk:
    case ExitCode::kBug:
      break;
    default:
      error.id = "run.failed";
  }
  return error;
}

}  // namespace

// Note [Errors in a Status]
//
// A Status carries its Error as a payload: the exit code, then one line for each of kFields. Its message is the
// formatted line:
//
// - The payload keeps every byte of each field (CEscape), valid UTF-8 or not, so that callers can change the exit
//   code or print the error again without loss (error_of, reclassify).
// - Only printed text is escaped, masked and truncated. File names, flag values and tensor names come from the user or
//   from a file, and may contain terminal control sequences, text-direction marks or passwords.
// - (got ..., expected ...) is kept complete; a long problem is truncated to make space for it.

absl::Status to_status(const Error& error) { return to_status(error, default_code(error.exit_code)); }

absl::Status to_status(const Error& given, absl::StatusCode code) {
  Error error = given;
  // An OK Status carries no payload.
  if (error.exit_code == ExitCode::kOk) error.exit_code = ExitCode::kBug;
  if (code == absl::StatusCode::kOk) code = default_code(error.exit_code);
  absl::Status status(code, line_of(error));
  std::string payload = std::to_string(static_cast<int>(error.exit_code));
  for (const auto field : kFields) absl::StrAppend(&payload, "\n", absl::CEscape(error.*field));
  status.SetPayload(kPayload, absl::Cord(payload));
  return status;
}

std::optional<Error> error_of(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload) return std::nullopt;
  const std::vector<std::string> lines = absl::StrSplit(std::string(*payload), '\n');
  Error error;
  int code = 0;
  bool complete = lines.size() == 1 + kFields.size() && absl::SimpleAtoi(lines[0], &code);
  for (size_t i = 0; complete && i < kFields.size(); ++i)
    complete = absl::CUnescape(lines[i + 1], &(error.*kFields[i]));
  error.exit_code = static_cast<ExitCode>(code);
  return complete ? std::optional(std::move(error)) : std::nullopt;
}

absl::Status reclassify(const absl::Status& status, ExitCode exit_code, std::string_view id) {
  if (status.ok()) return status;
  Error error = error_of(status).value_or(Error{.problem = std::string(status.message())});
  error.exit_code = exit_code;
  error.id = id;
  return to_status(error, status.code());
}

ExitCode exit_code(const absl::Status& status) {
  if (const auto error = error_of(status)) return error->exit_code;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kOutOfMemory;
    case absl::StatusCode::kUnavailable:
      return ExitCode::kDistributed;
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kStalledWorker;
    case absl::StatusCode::kDataLoss:
      return ExitCode::kData;
    default:
      return ExitCode::kBug;
  }
}

std::string error_line(const absl::Status& status) { return line_of(describe(status)); }

std::string error_text(const absl::Status& status) {
  std::string text = "trainkit: " + error_line(status) + "\n";
  const Error error = describe(status);
  if (!error.hint.empty()) text += "  hint: " + escape_text(error.hint, 300) + "\n";
  return text;
}

std::string error_json(const absl::Status& status) {
  const Error error = describe(status);
  const auto plain = [](const std::string& text) { return escape_text(mask_user_info(text), 1000); };
  const nlohmann::ordered_json record = {{"exit_code", static_cast<int>(error.exit_code)},
                                         {"id", error.id},
                                         {"where", plain(error.where)},
                                         {"field", plain(error.field)},
                                         {"problem", plain(error.problem)},
                                         {"got", looks_secret(error.field) ? "***" : plain(error.got)},
                                         {"expected", plain(error.expected)},
                                         {"hint", plain(error.hint)}};
  return record.dump(2) + "\n";
}

std::string escape_text(std::string_view text, size_t max_bytes) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    uint32_t code_point = 0;
    const size_t length = decode_utf8(text.substr(i), code_point);
    std::string piece;
    if (length > 0 && is_printable(code_point)) {
      piece = text.substr(i, length);
    } else {
      char escaped[16];
      if (length <= 1) {
        std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(text[i]));
      } else {
        std::snprintf(escaped, sizeof escaped, "\\u{%x}", code_point);
      }
      piece = escaped;
    }
    if (out.size() + piece.size() > max_bytes) return out + "...";
    out += piece;
    i += std::max<size_t>(length, 1);
  }
  return out;
}

std::string detail::mask_secrets(std::string_view text) {
  const std::string plain = mask_user_info(std::string(text));
  const auto is_name = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; };
  const auto is_value = [](unsigned char c) { return c > ' ' && c != '"' && c != '\'' && c != ',' && c != '}'; };
  std::string out;
  for (size_t i = 0; i < plain.size();) {
    const size_t begin = i;
    while (i < plain.size() && is_name(plain[i])) ++i;
    const std::string_view name = std::string_view(plain).substr(begin, i - begin);
    out += name;
    if (name.empty()) out += plain[i++];
    if (!looks_secret(name)) continue;
    // Keep quotes and spaces around the mark, as in "name" = "value".
    size_t mark = std::min(plain.find_first_not_of("\"' ", i), plain.size());
    const bool assigned = mark < plain.size() &&
                          (plain[mark] == '=' || (plain[mark] == ':' && !name.ends_with("oken") && name.size() > 3));
    if (!assigned) continue;
    mark = std::min(plain.find_first_not_of("\"' ", mark + 1), plain.size());
    out += plain.substr(i, mark - i);
    for (i = mark; i < plain.size() && is_value(plain[i]);) ++i;
    if (i > mark) out += "***";
  }
  return out;
}

size_t detail::edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace trainkit
