#include "trainkit/text/documents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/strict_json.h"
#include "core/base/utf8.h"
#include "text/text_record.h"
#include "text/token_cache.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf", kCrlf = "\r\n";

std::string_view skip_byte_order_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

/// Returns whether `c` is white space, a control character or a character without width.
bool is_invisible(uint32_t c) {
  return c <= 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad || (c >= 0x2000 && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202f) || (c >= 0x205f && c <= 0x206f) || c == 0x3000 || c == 0xfeff;
}

/// Returns the part that a mapped file is.
TextPart part_of(const MappedFile& file, const std::string& path) {
  TextPart part = detail::stat_part(file.same_file_path()).value_or(TextPart{});
  part.name = split_path(path).second;
  part.digest = Digest::of(file.text());
  return part;
}

bool is_jsonl(const std::string& path) { return path.ends_with(".jsonl"); }

int64_t count_crlf(std::string_view text) {
  int64_t count = 0;
  for (size_t at = text.find(kCrlf); at != text.npos; at = text.find(kCrlf, at + 2)) ++count;
  return count;
}

/// Returns the text of a line of JSON. `blame` has the place.
absl::StatusOr<std::string> read_json_line(const Error& blame, std::string_view line, const DocumentOptions& options) {
  const std::string& field = options.jsonl_field;
  TRAINKIT_ASSIGN_OR_RETURN(nlohmann::json object, detail::parse_strict_json(line, blame));
  const auto bad = [&](const std::string& name, const std::string& problem, const std::string& got,
                       const std::string& expected, const std::string& hint = "") {
    Error error = blame;
    error.field = name, error.problem = problem, error.got = got, error.expected = expected, error.hint = hint;
    return to_status(error);
  };
  if (!object.is_object()) return bad("", "not a JSON object", object.type_name(), "{\"" + field + "\": \"...\"}");
  const auto found = object.find(field);
  if (found == object.end()) {
    const std::string& flag = options.jsonl_field_flag;
    const std::string hint = flag.empty() ? "fields with a text" : flag + " selects one of";
    std::vector<std::string> others;
    for (const auto& [name, value] : object.items()) {
      if (value.is_string() && others.size() < 5) others.push_back(escape_text(name));
    }
    return bad(field, "no such field", "", "a field with the text",
               others.empty() ? "" : fmt::format("{}: {}", hint, fmt::join(others, ", ")));
  }
  if (!found->is_string()) return bad(field, "not a string", found->type_name(), "a string");
  std::string& text = found->get_ref<std::string&>();
  if (text.find('\0') != text.npos) return bad(field, "a NUL character in a text", "\\u0000", "text");
  return std::move(text);
}

/// Writes a prepared text: converted line ends and markers, and the ends of its documents.
class TextWriter {
 public:
  /// Keeps references.
  TextWriter(WritableFile& file, const DocumentOptions& options, Documents& text)
      : file_(file), options_(options), text_(text) {}

  /// Appends a file, whose first bytes are no byte order mark.
  absl::Status append_file(const std::string& path, std::string_view content) {
    if (is_jsonl(path)) return append_json_lines(path, content);
    if (content.empty()) return absl::OkStatus();
    TRAINKIT_RETURN_IF_ERROR(add_file_to_error(check_text(content), path));
    text_.crlf += count_crlf(content);
    if (options_.files_are_documents) return append_document(content);
    TRAINKIT_RETURN_IF_ERROR(append(content));
    return content.ends_with('\n') ? absl::OkStatus() : append("\n");
  }

  /// Appends `text`, converted as the options say.
  absl::Status append(std::string_view text) {
    // Each search starts after the last match, so that the text is read once.
    const auto next = [&](bool wanted, std::string_view what, size_t at) {
      return wanted ? std::min(text.find(what, at), text.size()) : text.size();
    };
    constexpr std::string_view kMarker = Gpt2Tokenizer::kEndOfText;
    size_t at = 0, crlf = next(options_.normalize_newlines, kCrlf, 0);
    size_t marker = next(options_.replace_end_of_text, kMarker, 0);
    while (true) {
      const size_t end = std::min(crlf, marker);
      TRAINKIT_RETURN_IF_ERROR(put(text.substr(at, end - at)));
      if (end == text.size()) return absl::OkStatus();
      const bool is_line_end = end == crlf;
      TRAINKIT_RETURN_IF_ERROR(put(is_line_end ? "\n" : std::string_view(&options_.document_end, 1)));
      at = end + (is_line_end ? kCrlf.size() : kMarker.size());
      (is_line_end ? crlf : marker) = next(true, is_line_end ? kCrlf : kMarker, at);
    }
  }

  absl::Status flush() {
    TRAINKIT_RETURN_IF_ERROR(file_.append(buffer_));
    buffer_.clear();
    return absl::OkStatus();
  }

 private:
  absl::Status put(std::string_view bytes) {
    constexpr size_t kBufferBytes = size_t{1} << 20;
    buffer_ += bytes;
    return buffer_.size() < kBufferBytes ? absl::OkStatus() : flush();
  }

  /// Appends a document and its end. Skips an empty one.
  absl::Status append_document(std::string_view text) {
    if (text.empty()) return ++text_.empty_documents, absl::OkStatus();
    TRAINKIT_RETURN_IF_ERROR(append(text));
    TRAINKIT_RETURN_IF_ERROR(put({&options_.document_end, 1}));
    text_.ends.push_back(file_.size_bytes() + static_cast<int64_t>(buffer_.size()));
    return absl::OkStatus();
  }

  absl::Status append_json_lines(const std::string& path, std::string_view content) {
    int64_t number = 0;
    for (size_t begin = 0; begin < content.size();) {
      const size_t end = std::min(content.find('\n', begin), content.size());
      const std::string_view line = content.substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      const Error blame{.exit_code = ExitCode::kData, .id = "data.jsonl", .where = fmt::format("{}:{}", path, number)};
      TRAINKIT_ASSIGN_OR_RETURN(const std::string document, read_json_line(blame, line, options_));
      text_.crlf += count_crlf(document);
      TRAINKIT_RETURN_IF_ERROR(append_document(document));
    }
    return absl::OkStatus();
  }

  WritableFile& file_;
  const DocumentOptions& options_;
  Documents& text_;
  std::string buffer_;
};

/// Makes the content of `text` what `write` appends to the file `prepared`.
absl::Status write_prepared(const std::string& prepared, const DocumentOptions& options, Documents& text,
                            const std::function<absl::Status(TextWriter&)>& write) {
  const auto [folder, file] = split_path(prepared);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(directory, file, [&](WritableFile& out) -> absl::Status {
    TextWriter writer(out, options, text);
    TRAINKIT_RETURN_IF_ERROR(write(writer));
    return writer.flush();
  }));
  TRAINKIT_ASSIGN_OR_RETURN(text.file, MappedFile::open(prepared));
  text.content = text.file->text();
  return absl::OkStatus();
}

/// Checks the files and writes them as one text to `prepared`. Maps one input file at a time.
absl::StatusOr<Documents> prepare(const detail::TextSource& source, const DocumentOptions& options,
                                  const std::string& prepared) {
  Documents text{.name = source.name};
  TRAINKIT_RETURN_IF_ERROR(write_prepared(prepared, options, text, [&](TextWriter& writer) -> absl::Status {
    for (const std::string& path : source.paths) {
      TRAINKIT_ASSIGN_OR_RETURN(const auto map, MappedFile::open(path));
      text.parts.push_back(part_of(*map, path));
      const std::string_view content = skip_byte_order_mark(map->text());
      if (content.empty()) text.left_out.push_back(text.parts.back().name + " (empty)");
      TRAINKIT_RETURN_IF_ERROR(writer.append_file(path, content));
      TRAINKIT_RETURN_IF_ERROR(map->check());
    }
    return absl::OkStatus();
  }));
  if (text.content.empty()) {
    return data_error("data.empty", {.file = source.paths.front()}, "no text in this file",
                      fmt::format("{} files", source.paths.size()), "text");
  }
  text.left_out.insert(text.left_out.end(), source.left_out.begin(), source.left_out.end());
  return text;
}

/// Opens a plain text file. It is converted only if that changes it.
absl::StatusOr<Documents> open_file(const std::string& path, const DocumentOptions& options,
                                    const std::string& prepared) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const TextPart part = part_of(*file, path);
  const std::string_view content = skip_byte_order_mark(file->text());
  TRAINKIT_RETURN_IF_ERROR(add_file_to_error(check_text(content), path));
  Documents text{.name = path, .file = file, .content = content, .crlf = count_crlf(content), .parts = {part}};
  const bool has_marker = options.replace_end_of_text && content.find(Gpt2Tokenizer::kEndOfText) != content.npos;
  if (has_marker || (options.normalize_newlines && text.crlf > 0)) {
    TRAINKIT_RETURN_IF_ERROR(write_prepared(prepared, options, text, [&](TextWriter& writer) -> absl::Status {
      TRAINKIT_RETURN_IF_ERROR(writer.append(content));
      return file->check();
    }));
  } else if (content.size() == file->text().size()) {
    text.content_digest = part.digest;
  }
  return text;
}

/// Fills the digests in one pass over the content, or in none if it is a whole file.
void add_digests(Documents& text) {
  text.digest = text.content_digest;
  if (!text.digest.empty()) return;
  Digest all;
  all.update(text.content.data(), text.content.size());
  text.digest = text.content_digest = all.hex();
  if (text.ends.empty()) return;
  all.update(text.ends.data(), text.ends.size() * sizeof text.ends[0]);
  text.digest = all.hex();
}

}  // namespace

absl::StatusOr<Documents> open_documents(const std::string& input, const DocumentOptions& options,
                                         const std::string& prepared) {
  TRAINKIT_ASSIGN_OR_RETURN(const detail::TextSource source, detail::find_text(input));
  const bool is_plain = !source.is_folder && !is_jsonl(input);
  TRAINKIT_ASSIGN_OR_RETURN(Documents text,
                            is_plain ? open_file(input, options, prepared) : prepare(source, options, prepared));
  add_digests(text);
  TRAINKIT_RETURN_IF_ERROR(text.file->check());
  return text;
}

TokenFileOrigin detail::origin_of(const Documents& text, int64_t bytes, const Tokenizer& tokenizer) {
  // A char tokenizer finds the ends of documents in the text.
  const bool adds_ends = dynamic_cast<const Gpt2Tokenizer*>(&tokenizer) != nullptr;
  return {.vocab_size = tokenizer.vocab_size(),
          .tokenizer_digest = tokenizer.digest(),
          .source_digest = adds_ends ? text.digest : text.content_digest,
          .source_bytes = bytes};
}

absl::StatusOr<TokenFile> cached_tokens(const std::string& path, const Documents& text, const Tokenizer& tokenizer,
                                        const TokenizeProgress& progress) {
  bool made = false;
  return detail::cached_tokens(path, text, tokenizer, progress, made);
}

absl::StatusOr<TokenFile> detail::cached_tokens(const std::string& path, const Documents& text,
                                                const Tokenizer& tokenizer, const TokenizeProgress& progress,
                                                bool& made) {
  const auto* gpt2 = dynamic_cast<const Gpt2Tokenizer*>(&tokenizer);
  const auto origin = detail::origin_of(text, static_cast<int64_t>(text.content.size()), tokenizer);
  auto tokens = detail::cached_token_file(path, origin, [&](const TokenSink& sink) {
    made = true;
    return gpt2 && !text.ends.empty() ? gpt2->encode_documents(text.content, text.ends, sink, progress)
                                      : tokenizer.encode(text.content, sink, progress);
  });
  TRAINKIT_RETURN_IF_ERROR(text.file->check());
  if (!tokens.ok()) return add_file_to_error(tokens.status(), text.name);
  return tokens;
}

absl::Status add_file_to_error(const absl::Status& status, const std::string& path) {
  auto error = error_of(status);
  if (!error || !(error->where.empty() || error->where.starts_with("@"))) return status;
  error->where = path + error->where;
  return to_status(*error, status.code());
}

absl::Status check_text(std::string_view text) {
  bool visible = false;
  for (size_t at = 0; at < text.size();) {
    uint32_t code_point = 0;
    const size_t length = decode_utf8(text.substr(at, 4), code_point);
    if (length == 0 || code_point == 0) {
      const bool compressed = text.starts_with("\x1f\x8b");
      const bool utf16 = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
      return data_error("data.encoding", {.offset = static_cast<int64_t>(at)},
                        length == 0 ? "not UTF-8" : "a NUL byte in a text",
                        fmt::format("byte {:#04x}", static_cast<unsigned char>(text[at])), "UTF-8 text",
                        compressed ? "the file is compressed: unpack it first"
                        : utf16    ? "the file is UTF-16: convert it with iconv"
                                   : "convert the file with iconv, or remove it");
    }
    visible = visible || !is_invisible(code_point);
    at += length;
  }
  if (visible) return absl::OkStatus();
  return data_error("data.empty", {}, "no visible character in this text", fmt::format("{} bytes", text.size()),
                    "text");
}

}  // namespace trainkit
