// Reads a configuration file as a flat list of keys and values.
//
// Note [Strict configuration files]
//
// YAML is read from yaml-cpp's events instead of its node graph, which hides errors: it keeps the first of two equal
// keys, follows cyclic aliases, reads 010 as 8, accepts invalid UTF-8 and ignores a second document. JSON is read from
// nlohmann's SAX events for the same reason. Those have no positions, so JsonTokens scans the same text in step with
// the parser.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "config/entry_builder.h"
#include "core/base/utf8.h"
#include "core/files/unique_descriptor.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;  // configurations have a few kilobytes; yaml-cpp needs seconds for 50 MB

absl::Status file_error(const std::string& path, const std::string& id, std::string problem, std::string got = {},
                        std::string expected = {}, std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kConfig,
                    .id = id,
                    .where = path,
                    .field = {},
                    .problem = std::move(problem),
                    .got = std::move(got),
                    .expected = std::move(expected),
                    .hint = std::move(hint)});
}

absl::Status to_status_at(const std::string& path, const FileFault& fault) {
  return file_error(file_position(path, fault.at.line, fault.at.column), fault.id, fault.problem, {}, fault.expected,
                    fault.hint);
}

absl::StatusOr<std::string> read_text(const std::string& path) {
  const auto failed = [&](const char* problem) { return file_error(path, "config.file", problem); };
  // O_NONBLOCK: opening a pipe without a writer would block forever.
  const detail::UniqueDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return failed(std::strerror(errno));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return failed(std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return file_error(path, "config.file", "a folder", {}, "a YAML or JSON file");
  if (!S_ISREG(info.st_mode)) return file_error(path, "config.file", "not a regular file", {}, "a YAML or JSON file");
  std::string text;
  char chunk[16384];
  while (text.size() <= kMaxFileBytes) {
    const ssize_t count = ::read(file.get(), chunk, sizeof chunk);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed(std::strerror(errno));
    if (count == 0) break;
    text.append(chunk, static_cast<size_t>(count));
  }
  if (text.size() > kMaxFileBytes) {
    return file_error(path, "config.size", "too large for a configuration file",
                      std::to_string(info.st_size) + " bytes", "at most " + std::to_string(kMaxFileBytes));
  }
  return text;
}

/// Refuses bytes that are invalid in both formats, before a parser runs.
void check_bytes(std::string_view text) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") ||
      (text.size() > 1 && (text[0] == 0) != (text[1] == 0))) {
    throw FileFault{"config.encoding", {}, "looks like UTF-16", "UTF-8"};
  }
  if (const size_t at = find_invalid_utf8(text); at != text.size()) {
    throw FileFault{"config.encoding", position_of(text, at), "not valid UTF-8"};
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool line_end = c == '\n' || (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n');
    if (c < 0x20 && c != '\t' && !line_end) {
      throw FileFault{"config.encoding", position_of(text, i),
                      c == '\r' ? "a carriage return without a line feed" : "a control byte"};
    }
  }
}

}  // namespace

std::string file_position(const std::string& path, int line, int column) {
  return line > 0 ? path + ":" + std::to_string(line) + ":" + std::to_string(column) : path;
}

absl::StatusOr<std::vector<FileEntry>> read_config_file(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(std::string text, read_text(path));
  EntryBuilder builder;
  try {
    if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
    check_bytes(text);
    const bool blank = text.find_first_not_of(" \t\r\n") == std::string::npos;
    if (!blank) path.ends_with(".json") ? read_json(text, builder) : read_yaml(std::move(text), builder);
  } catch (const FileFault& fault) {
    return to_status_at(path, fault);
  }
  if (!builder.has_root())
    return file_error(path, "config.empty", "no settings in the file", {}, "lines of 'name: value'");
  return builder.take();
}

}  // namespace trainkit::detail
