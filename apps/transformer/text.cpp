#include "transformer/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/base/utf8.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/folder_files.h"
#include "trainkit/text/tokenizer.h"
#include "transformer/demo_text.h"
#include "transformer/json_lines.h"
#include "transformer/text_writer.h"

namespace trainkit::transformer {
namespace {

namespace fs = std::filesystem;

constexpr char kLicences[] = "/usr/share/common-licenses";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::string_view skip_byte_order_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

/// Returns whether `c` is white space, a control character or a character without width.
bool is_invisible(uint32_t c) {
  return c <= 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad || (c >= 0x2000 && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202f) || (c >= 0x205f && c <= 0x206f) || c == 0x3000 || c == 0xfeff;
}

/// Returns the files of `folder`, with their paths.
absl::StatusOr<FolderFiles> files_of(const std::string& folder) {
  std::error_code error;
  FolderFiles files = list_files(folder, {}, error);
  if (error) return bad_text("data.unreadable", folder, "cannot be read", error.message(), "a folder of text files");
  if (files.names.empty()) {
    return bad_text("data.empty", folder, "no file in this folder", left_out_note(files.left_out),
                    "a folder of text files");
  }
  for (std::string& name : files.names) name = (fs::path(folder) / name).string();
  return files;
}

bool is_jsonl(const std::string& path) { return path.ends_with(".jsonl"); }

int64_t count_crlf(std::string_view text) {
  int64_t count = 0;
  for (size_t at = text.find("\r\n"); at != text.npos; at = text.find("\r\n", at + 2)) ++count;
  return count;
}

/// Appends one file to the prepared text.
absl::Status append_file(const std::string& path, const TextOptions& options, TextWriter& writer, Text& text) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto map, MappedFile::open(path));
  const std::string_view content = skip_byte_order_mark(map->text());
  if (content.empty()) text.left_out.push_back(split_path(path).second + " (empty)");
  if (is_jsonl(path)) {
    const auto take = [&](const std::string& document) {
      text.crlf += count_crlf(document);
      return writer.append_document(document);
    };
    TRAINKIT_RETURN_IF_ERROR(for_each_json_line(path, content, options.jsonl_field, take));
    return map->check();
  }
  if (content.empty()) return absl::OkStatus();
  if (absl::Status status = check_text(content); !status.ok()) return add_file_to_error(status, path);
  text.crlf += count_crlf(content);
  if (options.files_are_documents) {
    TRAINKIT_RETURN_IF_ERROR(writer.append_document(content));
  } else {
    TRAINKIT_RETURN_IF_ERROR(writer.append(content));
    if (!content.ends_with('\n')) TRAINKIT_RETURN_IF_ERROR(writer.append("\n"));
  }
  return map->check();
}

/// Checks the files and writes them as one text to `prepared`. Maps one input file at a time.
absl::StatusOr<Text> prepare(std::string name, const std::vector<std::string>& files, const TextOptions& options,
                             const std::string& prepared) {
  Text text{.name = std::move(name)};
  const auto [folder, file] = split_path(prepared);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(directory, file, [&](WritableFile& out) -> absl::Status {
    TextWriter writer(out, options);
    for (const std::string& each : files) TRAINKIT_RETURN_IF_ERROR(append_file(each, options, writer, text));
    text.documents = writer.documents();
    text.empty_documents = writer.empty_documents();
    return writer.flush();
  }));
  TRAINKIT_ASSIGN_OR_RETURN(text.file, MappedFile::open(prepared));
  text.content = text.file->text();
  if (text.content.empty()) {
    return bad_text("data.empty", files.front(), "no text in this file", fmt::format("{} files", files.size()), "text");
  }
  return text;
}

absl::StatusOr<Text> open_folder(const std::string& folder, const TextOptions& options, const std::string& prepared) {
  TRAINKIT_ASSIGN_OR_RETURN(const FolderFiles files, files_of(folder));
  TRAINKIT_ASSIGN_OR_RETURN(
      Text text, prepare(fmt::format("{} ({} files)", folder, files.names.size()), files.names, options, prepared));
  text.left_out.insert(text.left_out.end(), files.left_out.begin(), files.left_out.end());
  return text;
}

/// Opens a plain text file. It is converted only if that changes it.
absl::StatusOr<Text> open_file(std::string name, const std::string& path, const TextOptions& options,
                               const std::string& prepared) {
  TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  const std::string_view content = skip_byte_order_mark(file->text());
  if (absl::Status status = check_text(content); !status.ok()) return add_file_to_error(status, path);
  const int64_t crlf = count_crlf(content);
  const bool has_marker = options.replace_end_of_text && content.find(Gpt2Tokenizer::kEndOfText) != content.npos;
  if (!has_marker && !(options.normalize_newlines && crlf > 0)) {
    TRAINKIT_RETURN_IF_ERROR(file->check());
    return Text{.name = std::move(name), .file = std::move(file), .content = content, .crlf = crlf};
  }
  Text text{.name = std::move(name), .crlf = crlf};
  const auto [folder, prepared_name] = split_path(prepared);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(directory, prepared_name, [&](WritableFile& out) -> absl::Status {
    TextWriter writer(out, options);
    TRAINKIT_RETURN_IF_ERROR(writer.append(content));
    TRAINKIT_RETURN_IF_ERROR(writer.flush());
    return file->check();
  }));
  TRAINKIT_ASSIGN_OR_RETURN(text.file, MappedFile::open(prepared));
  text.content = text.file->text();
  return text;
}

}  // namespace

std::string Text::digest() const {
  if (documents.empty()) return Digest::of(content);
  Digest all;
  all.update(content.data(), content.size());
  all.update(documents.data(), documents.size() * sizeof documents[0]);
  return all.hex();
}

absl::StatusOr<Text> open_text(const std::string& input, const TextOptions& options, const std::string& prepared) {
  std::error_code ignored;
  if (!input.empty()) {
    if (fs::is_directory(input, ignored)) return open_folder(input, options, prepared);
    if (is_jsonl(input)) return prepare(input, {input}, options, prepared);
    return open_file(input, input, options, prepared);
  }
  if (fs::is_directory(kLicences, ignored)) {
    if (auto licences = open_folder(kLicences, options, prepared); licences.ok()) return licences;
  }
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), prepared, demo_text()));
  return open_file("generated text", prepared, options, prepared);
}

absl::Status add_file_to_error(const absl::Status& status, const std::string& path) {
  auto error = error_of(status);
  if (!error || !(error->where.empty() || error->where.starts_with("@"))) return status;
  error->where = path + error->where;
  return to_status(*error, status.code());
}

absl::Status bad_text(const std::string& id, const std::string& where, const std::string& problem,
                      const std::string& got, const std::string& expected, const std::string& hint) {
  return data_error(id, {.file = where}, problem, got, expected, hint);
}

absl::Status check_text(std::string_view text) {
  bool visible = false;
  for (size_t at = 0; at < text.size();) {
    uint32_t code_point = 0;
    const size_t length = decode_utf8(text.substr(at, 4), code_point);
    if (length == 0 || code_point == 0) {
      const auto byte = static_cast<unsigned char>(text[at]);
      const bool compressed = text.starts_with("\x1f\x8b");
      const bool utf16 = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
      return bad_text("data.encoding", fmt::format("@{:#x}", at), length == 0 ? "not UTF-8" : "a NUL byte in a text",
                      fmt::format("byte {:#04x}", byte), "UTF-8 text",
                      compressed ? "the file is compressed: unpack it first"
                      : utf16    ? "the file is UTF-16: convert it with iconv"
                                 : "convert the file with iconv, or remove it");
    }
    visible = visible || !is_invisible(code_point);
    at += length;
  }
  if (!visible)
    return bad_text("data.empty", "", "no visible character in this text", fmt::format("{} bytes", text.size()),
                    "text");
  return absl::OkStatus();
}

}  // namespace trainkit::transformer
