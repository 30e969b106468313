#include "text/text_record.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>

#include "core/base/strict_json.h"
#include "core/files/new_files.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/folder_files.h"

namespace trainkit {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TextPart, name, bytes, changed_ns, digest)

namespace detail {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TextRecord, options, read_ns, parts, bytes, crlf, empty_documents, empty_files,
                                   content_digest, digest, characters, tokens, blocks)

namespace {

constexpr char kBegin[] = "{\"trainkit_text\":1,";
/// The blocks of 100 GB of tokens have 4 MB.
constexpr int64_t kMaxBytes = int64_t{1} << 30;

/// Returns the text of the file.
std::string text_of(std::string_view record) {
  return fmt::format("{}\"digest\":\"{}\",\"record\":{}}}\n", kBegin, Digest::of(record), record);
}

}  // namespace

absl::StatusOr<TextSource> find_text(const std::string& input) {
  std::error_code error;
  if (!std::filesystem::is_directory(input, error)) return TextSource{.name = input, .paths = {input}};
  const FolderFiles files = list_files(input, {}, error);
  const std::string expected = "a folder of text files";
  if (error) return data_error("data.unreadable", {.file = input}, "cannot be read", error.message(), expected);
  if (files.names.empty()) {
    return data_error("data.empty", {.file = input}, "no file in this folder", left_out_note(files.left_out), expected);
  }
  TextSource source{
      .name = fmt::format("{} ({} files)", input, files.names.size()), .is_folder = true, .left_out = files.left_out};
  for (const std::string& name : files.names) source.paths.push_back((std::filesystem::path(input) / name).string());
  return source;
}

std::optional<TextPart> stat_part(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return TextPart{.name = split_path(path).second,
                  .bytes = info.st_size,
                  .changed_ns = info.st_ctim.tv_sec * int64_t{1'000'000'000} + info.st_ctim.tv_nsec};
}

std::optional<TextRecord> read_text_record(const std::string& path) {
  const auto text = Fs::posix().read_file(path, kMaxBytes);
  const size_t around = text_of("").size(), end = 2;
  if (!text.ok() || text->size() < around) return std::nullopt;
  const std::string_view record = std::string_view(*text).substr(around - end, text->size() - around);
  if (text_of(record) != *text) return std::nullopt;
  const auto json = parse_strict_json(record, {});
  if (!json.ok()) return std::nullopt;
  try {
    return json->get<TextRecord>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

absl::Status write_text_record(const std::string& path, const TextRecord& record) {
  if (Fs::posix().exists(path) && !begins_with(path, {kBegin})) {
    return foreign_file(path, "is not a record of a text, which would replace it", "move it away");
  }
  // A name that is not UTF-8 is replaced, so it differs at the next start.
  const nlohmann::json json = record;
  return write_file_atomically(Fs::posix(), path,
                               text_of(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

}  // namespace detail
}  // namespace trainkit
