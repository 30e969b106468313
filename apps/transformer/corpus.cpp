#include "transformer/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/utf8.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"
#include "transformer/demo_text.h"

namespace trainkit::transformer {
namespace {

namespace fs = std::filesystem;

constexpr char kLicences[] = "/usr/share/common-licenses";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

absl::Status bad_text(const std::string& id, const std::string& where, const std::string& problem,
                      const std::string& got, const std::string& expected, const std::string& hint = "") {
  return to_status({.exit_code = ExitCode::kData,
                    .id = id,
                    .where = where,
                    .problem = problem,
                    .got = got,
                    .expected = expected,
                    .hint = hint});
}

std::string_view skip_byte_order_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

/// Returns whether `c` is white space, a control character or a character without width.
bool is_invisible(uint32_t c) {
  return c <= 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad || (c >= 0x2000 && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202f) || (c >= 0x205f && c <= 0x206f) || c == 0x3000 || c == 0xfeff;
}

/// Returns the regular files of `folder`, sorted by name.
absl::StatusOr<std::vector<std::string>> files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const bool hidden = at->path().filename().string().starts_with(".");
    if (!hidden && at->symlink_status().type() == fs::file_type::regular) files.push_back(at->path().string());
  }
  if (error) return bad_text("data.unreadable", folder, "cannot be read", error.message(), "a folder of text files");
  if (files.empty()) return bad_text("data.empty", folder, "no file in this folder", "", "a folder of text files");
  std::sort(files.begin(), files.end());
  return files;
}

/// Checks the files and joins them into one file at `path`. Maps one input file at a time.
absl::Status join_files(const std::vector<std::string>& files, const std::string& path) {
  const auto [folder, name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  return write_file_atomically(directory, name, [&](WritableFile& joined) -> absl::Status {
    for (const std::string& file : files) {
      TRAINKIT_ASSIGN_OR_RETURN(const auto map, MappedFile::open(file));
      const std::string_view text = skip_byte_order_mark(map->text());
      if (text.empty()) continue;
      if (absl::Status status = check_text(text); !status.ok()) return add_file_to_error(status, file);
      TRAINKIT_RETURN_IF_ERROR(joined.append(text));
      if (!text.ends_with('\n')) TRAINKIT_RETURN_IF_ERROR(joined.append("\n"));
      TRAINKIT_RETURN_IF_ERROR(map->check());
    }
    return absl::OkStatus();
  });
}

struct Source {
  std::string name;
  std::shared_ptr<const MappedFile> file;
};

absl::StatusOr<Source> open_joined(const std::string& folder, const std::string& cache_dir) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto files, files_of(folder));
  const std::string joined = cache_dir + "/corpus.txt";
  TRAINKIT_RETURN_IF_ERROR(join_files(files, joined));
  TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(joined));
  return Source{fmt::format("{} ({} files)", folder, files.size()), std::move(file)};
}

absl::StatusOr<Source> open_source(const CorpusOptions& options) {
  const std::string& joined_dir = options.joined_dir.empty() ? options.cache_dir : options.joined_dir;
  std::error_code ignored;
  if (!options.input.empty()) {
    if (fs::is_directory(options.input, ignored)) return open_joined(options.input, joined_dir);
    TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(options.input));
    return Source{options.input, std::move(file)};
  }
  if (fs::is_directory(kLicences, ignored)) {
    if (auto licences = open_joined(kLicences, joined_dir); licences.ok()) return licences;
  }
  const std::string generated = joined_dir + "/corpus.txt";
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), generated, demo_text()));
  TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(generated));
  return Source{"generated text", std::move(file)};
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> make_tokenizer(const CorpusOptions& options, std::string_view text) {
  if (!options.saved_tokenizer.empty()) return load_tokenizer(options.saved_tokenizer);
  if (options.tokenizer == "gpt2") return Gpt2Tokenizer::open(options.vocab, options.merges);
  return CharTokenizer::from_text(text);
}

/// Returns the mean number of characters per token of tokens [begin, end).
double characters_per_token(const TokenFile& tokens, const Tokenizer& tokenizer, int64_t begin, int64_t end) {
  std::vector<int64_t> characters(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < characters.size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(static_cast<TokenId>(id));
    characters[id] = std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xc0) != 0x80; });
  }
  std::vector<int64_t> some(1 << 16);
  int64_t sum = 0;
  for (int64_t at = begin; at < end; at += static_cast<int64_t>(some.size())) {
    const auto count = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(some.size()), end - at));
    tokens.read(at, {some.data(), count});
    for (size_t i = 0; i < count; ++i) sum += characters[static_cast<size_t>(some[i])];
  }
  return static_cast<double>(sum) / static_cast<double>(end - begin);
}

absl::Status check_lengths(const std::string& source, int64_t train, int64_t validation, int64_t block_size) {
  if (train < block_size + 1) {
    return bad_text("data.empty", source, "the training part of the text is too short", fmt::format("{} tokens", train),
                    fmt::format("at least {} (block_size + 1)", block_size + 1),
                    "use more text or a smaller --block-size");
  }
  if (validation < 2) {
    return bad_text("data.empty", source, "the validation part of the text is too short",
                    fmt::format("{} tokens", validation), "at least 2", "use more text");
  }
  return absl::OkStatus();
}

}  // namespace

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

absl::StatusOr<Corpus> tokenize_corpus(const CorpusOptions& options, int64_t least_tokens,
                                       const TokenizeProgress& progress) {
  TRAINKIT_ASSIGN_OR_RETURN(const Source source, open_source(options));
  const std::string& path = source.file->path();
  const std::string_view text = skip_byte_order_mark(source.file->text());
  if (absl::Status status = check_text(text); !status.ok()) return add_file_to_error(status, path);

  const std::string digest = Digest::of(text);
  if (options.check_digest) TRAINKIT_RETURN_IF_ERROR(options.check_digest(digest));
  auto tokenizer = make_tokenizer(options, text);
  if (!tokenizer.ok()) return add_file_to_error(tokenizer.status(), path);
  const std::string cache = fmt::format("{}/corpus.{}.tokens", options.cache_dir, (*tokenizer)->name());
  auto tokens = cached_tokens(cache, text, **tokenizer, progress);
  TRAINKIT_RETURN_IF_ERROR(source.file->check());
  if (!tokens.ok()) return add_file_to_error(tokens.status(), path);

  if (tokens->size() < least_tokens) {
    return bad_text("data.empty", path, "the text is too short", fmt::format("{} tokens", tokens->size()),
                    fmt::format("at least {}", least_tokens));
  }
  return Corpus{.source = source.name,
                .path = path,
                .bytes = static_cast<int64_t>(text.size()),
                .digest = digest,
                .tokenizer = *std::move(tokenizer),
                .tokens = *std::move(tokens)};
}

absl::StatusOr<Corpus> prepare_corpus(const CorpusOptions& options, const TokenizeProgress& progress) {
  TRAINKIT_ASSIGN_OR_RETURN(Corpus corpus, tokenize_corpus(options, /*least_tokens=*/0, progress));
  const int64_t tokens = corpus.tokens.size();
  corpus.train_tokens = static_cast<int64_t>(static_cast<double>(tokens) * (1.0 - options.validation_fraction));
  TRAINKIT_RETURN_IF_ERROR(
      check_lengths(corpus.path, corpus.train_tokens, tokens - corpus.train_tokens, options.block_size));
  corpus.characters_per_token = characters_per_token(corpus.tokens, *corpus.tokenizer, corpus.train_tokens, tokens);
  return corpus;
}

}  // namespace trainkit::transformer
