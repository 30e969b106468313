#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "text/text_record.h"
#include "text/token_cache.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/text/documents.h"

namespace trainkit {
namespace {

// Note [A text that is not read again]
//
// The record next to a token file has the size, the time of the last change (ctime) and the digest of each file of the
// text, and size and time of the token file. At a start with the same sizes and times nothing is read but the record.
//
// A program can set the date of a file (mtime) but not its ctime, which every write changes. Two writes within one step
// of the file system's clock have one ctime. So a time is trusted only if it is older than the reading by kSteadyNs;
// else the file's digest decides, as in git's index ("racy" entries). The digest also decides if only the time differs,
// after a copy for example. The record then gets the new time.

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Returns what determines how files become a text.
std::string describe(const DocumentOptions& options, const detail::TextSource& source) {
  const std::string& first = source.paths.front();
  return fmt::format("{} newlines={} marker={} files={} end={} field={}",
                     source.is_folder            ? "folder"
                     : first.ends_with(".jsonl") ? "jsonl"
                                                 : "text",
                     options.normalize_newlines, options.replace_end_of_text, options.files_are_documents,
                     static_cast<int>(options.document_end), options.jsonl_field);
}

/// Whether the file at `path` is still `part`. Gives the part a new time if that is all that has changed, and sets
/// `renewed`.
bool is_same(TextPart& part, const std::string& path, int64_t read_ns, bool& renewed) {
  const auto now = detail::stat_part(path);
  if (!now || now->bytes != part.bytes) return false;
  if (now->changed_ns == part.changed_ns && part.changed_ns + detail::kSteadyNs <= read_ns) return true;
  const auto file = MappedFile::open(path);
  if (!file.ok() || Digest::of((*file)->text()) != part.digest || !(*file)->check().ok()) return false;
  part.changed_ns = now->changed_ns;
  return renewed = true;
}

}  // namespace

class CachedText::Impl {
 public:
  Impl(std::string input, DocumentOptions options, std::string prepared, std::string path)
      : input_(std::move(input)),
        options_(std::move(options)),
        prepared_(std::move(prepared)),
        path_(std::move(path)) {}

  absl::Status open() {
    const int64_t now = now_ns();
    TRAINKIT_ASSIGN_OR_RETURN(const detail::TextSource source, detail::find_text(input_));
    if (auto record = detail::read_text_record(record_path());
        record && record->options == describe(options_, source) && has_same_parts(*record, source)) {
      if (renewed_) record->read_ns = now;
      record_ = *std::move(record);
      set_facts(source);
      return absl::OkStatus();
    }
    record_ = {.options = describe(options_, source), .read_ns = now};
    TRAINKIT_ASSIGN_OR_RETURN(text_, open_documents(input_, options_, prepared_));
    record_.parts = text_->parts;
    record_.bytes = static_cast<int64_t>(text_->content.size());
    record_.crlf = text_->crlf, record_.empty_documents = text_->empty_documents;
    const auto others = std::min(source.left_out.size(), text_->left_out.size());
    record_.empty_files.assign(text_->left_out.begin(), text_->left_out.end() - static_cast<std::ptrdiff_t>(others));
    record_.content_digest = text_->content_digest, record_.digest = text_->digest;
    set_facts(source);
    return absl::OkStatus();
  }

  const Documents& facts() const { return facts_; }
  int64_t size_bytes() const { return record_.bytes; }

  absl::StatusOr<std::string> characters() {
    if (record_.characters.empty()) {
      TRAINKIT_RETURN_IF_ERROR(read_text());
      const auto tokenizer = CharTokenizer::from_text(text_->content);
      if (!tokenizer.ok()) return add_file_to_error(tokenizer.status(), facts_.name);
      for (int64_t id = 0; id < (*tokenizer)->vocab_size(); ++id) {
        record_.characters += (*tokenizer)->token_bytes(static_cast<TokenId>(id));
      }
    }
    return record_.characters;
  }

  absl::StatusOr<TokenFile> tokens(const Tokenizer& tokenizer, const TokenizeProgress& progress) {
    if (!text_) {
      if (auto kept = kept_tokens(tokenizer)) return *std::move(kept);
      TRAINKIT_RETURN_IF_ERROR(read_text());
    }
    bool made = false;
    TRAINKIT_ASSIGN_OR_RETURN(TokenFile file, detail::cached_tokens(path_, *text_, tokenizer, progress, made));
    describe_tokens(file);
    if (made) update_record();
    text_.reset();
    return file;
  }

  /// Without the record the next start reads the text again, so a failure is no error.
  void update_record() {
    if (renewed_ && !record_.tokens.name.empty()) (void)detail::write_text_record(record_path(), record_);
    renewed_ = false;
  }

 private:
  std::string record_path() const { return path_ + ".json"; }

  bool has_same_parts(detail::TextRecord& record, const detail::TextSource& source) {
    if (record.parts.size() != source.paths.size()) return false;
    for (size_t i = 0; i < record.parts.size(); ++i) {
      const bool has_name = !source.is_folder || record.parts[i].name == split_path(source.paths[i]).second;
      if (!has_name || !is_same(record.parts[i], source.paths[i], record.read_ns, renewed_)) return false;
    }
    return true;
  }

  void set_facts(const detail::TextSource& source) {
    facts_ = {.name = text_ ? text_->name : source.name,
              .crlf = record_.crlf,
              .empty_documents = record_.empty_documents,
              .left_out = record_.empty_files,
              .parts = record_.parts,
              .content_digest = record_.content_digest,
              .digest = record_.digest};
    facts_.left_out.insert(facts_.left_out.end(), source.left_out.begin(), source.left_out.end());
  }

  absl::Status read_text() {
    if (text_) return absl::OkStatus();
    TRAINKIT_ASSIGN_OR_RETURN(text_, open_documents(input_, options_, prepared_));
    if (text_->digest == record_.digest) return absl::OkStatus();
    return data_error("data.damaged", {.file = facts_.name}, "the text changed while the run started", "", "",
                      "do not write to a text that a run reads; start the run again");
  }

  /// Returns the tokens of the file, if it is that of the record or verified.
  std::optional<TokenFile> kept_tokens(const Tokenizer& tokenizer) {
    auto file = TokenFile::open(path_);
    if (!file.ok() || !file->check_origin(detail::origin_of(facts_, record_.bytes, tokenizer)).ok()) {
      return std::nullopt;
    }
    const auto now = detail::stat_part(path_);
    if (now && now->bytes == record_.tokens.bytes && now->changed_ns == record_.tokens.changed_ns &&
        file->check_blocks(record_.blocks)) {
      return *std::move(file);
    }
    if (!file->verify().ok()) return std::nullopt;
    describe_tokens(*file);
    return *std::move(file);
  }

  /// Puts the file that was read or verified into the record.
  void describe_tokens(const TokenFile& file) {
    record_.tokens = detail::stat_part(path_).value_or(TextPart{});
    record_.blocks = file.block_digests();
    renewed_ = file.check().ok();
  }

  const std::string input_;
  const DocumentOptions options_;
  const std::string prepared_, path_;
  detail::TextRecord record_;
  bool renewed_ = false;  // differs from the file
  Documents facts_;
  std::optional<Documents> text_;
};

CachedText::CachedText(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CachedText::CachedText(CachedText&&) noexcept = default;
CachedText& CachedText::operator=(CachedText&&) noexcept = default;
CachedText::~CachedText() = default;

absl::StatusOr<CachedText> CachedText::open(const std::string& input, const DocumentOptions& options,
                                            const std::string& prepared, const std::string& tokens) {
  auto impl = std::make_unique<Impl>(input, options, prepared, tokens);
  TRAINKIT_RETURN_IF_ERROR(impl->open());
  return CachedText(std::move(impl));
}

const Documents& CachedText::facts() const { return impl_->facts(); }
int64_t CachedText::size_bytes() const { return impl_->size_bytes(); }
absl::StatusOr<std::string> CachedText::characters() { return impl_->characters(); }

absl::StatusOr<TokenFile> CachedText::tokens(const Tokenizer& tokenizer, const TokenizeProgress& progress) {
  return impl_->tokens(tokenizer, progress);
}
void CachedText::update_record() const { impl_->update_record(); }

}  // namespace trainkit
