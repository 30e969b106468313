#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <unordered_map>

#include "core/base/utf8.h"
#include "text/gpt2_split.h"
#include "text/gpt2_vocabulary.h"
#include "text/in_order.h"
#include "text/piece_cache.h"
#include "text/token_buffer.h"
#include "trainkit/core/error.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit {
namespace {

constexpr uint32_t kNoRank = ~uint32_t{0};
constexpr size_t kLongPiece = 128;             // longer pieces are faster with the queue than with the scan
constexpr size_t kMaxPiece = size_t{4} << 20;  // limits the memory for merging
/// Threads encode parts of about this size, at most kPartsPerThread for each ahead of what is passed on.
constexpr size_t kPartBytes = size_t{1} << 16;
constexpr int64_t kPartsPerThread = 16;

/// A merge of two neighbouring tokens. A lower rank is merged first.
struct Merge {
  uint32_t rank = kNoRank;
  TokenId token = 0;
};

/// Maps pairs of neighbouring tokens to their merge: open addressing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t pairs) : entries_(std::bit_ceil(2 * pairs + 1)) {}

  void insert(TokenId left, TokenId right, Merge merge) {
    size_t at = slot(key(left, right));
    while (entries_[at].merge.rank != kNoRank) at = (at + 1) & (entries_.size() - 1);
    entries_[at] = {key(left, right), merge};
  }
  Merge find(TokenId left, TokenId right) const {
    const uint64_t wanted = key(left, right);
    for (size_t at = slot(wanted);; at = (at + 1) & (entries_.size() - 1)) {
      if (entries_[at].merge.rank == kNoRank || entries_[at].key == wanted) return entries_[at].merge;
    }
  }

 private:
  struct Entry {
    uint64_t key = 0;
    Merge merge = {};
  };
  static uint64_t key(TokenId left, TokenId right) { return uint64_t{left} << 32 | right; }
  size_t slot(uint64_t key) const { return detail::mix64(key) & (entries_.size() - 1); }
  std::vector<Entry> entries_;
};

}  // namespace

class Gpt2Tokenizer::Impl {
 public:
  Impl(detail::Gpt2Vocabulary vocabulary, Gpt2TokenizerOptions options)
      : vocabulary_(std::move(vocabulary)), options_(options), merges_(make_merges()) {}

  const detail::Gpt2Vocabulary& vocabulary() const { return vocabulary_; }
  const Gpt2TokenizerOptions& options() const { return options_; }

  /// Encodes a text whose documents end at `ends`; see Gpt2Tokenizer::encode_documents. See Note [Parts of a text] in
  /// gpt2_split.h.
  absl::Status encode(std::string_view text, std::span<const int64_t> ends, const TokenSink& sink,
                      const TokenizeProgress& progress) const {
    const int64_t threads = text.size() > kPartBytes ? at::get_num_threads() : 1;
    detail::PieceCache cache(text.size());
    size_t at = 0;
    bool has_begun = false;  // a text without bytes has one part
    return detail::run_in_order<Part>(
        threads, static_cast<size_t>(threads == 1 ? 1 : threads * kPartsPerThread),
        [&](Part& part) {
          if (at == text.size() && has_begun) return false;
          has_begun = true;
          part.begin = at;
          part.end = at = end_of_part(text, ends, at);
          return true;
        },
        [&](Part& part, int64_t) { encode_part(text, ends, part, cache); },
        [&](const Part& part) { return pass_on(part, text.size(), sink, progress); });
  }

 private:
  /// text[begin, end) and its tokens up to an error.
  struct Part {
    size_t begin = 0, end = 0;
    std::vector<TokenId> tokens = {};
    absl::Status status = absl::OkStatus();
  };

  static absl::Status pass_on(const Part& part, size_t size, const TokenSink& sink, const TokenizeProgress& progress) {
    if (!part.tokens.empty()) TRAINKIT_RETURN_IF_ERROR(sink(part.tokens));
    TRAINKIT_RETURN_IF_ERROR(part.status);
    const bool go_on = !progress || progress(static_cast<int64_t>(part.end), static_cast<int64_t>(size));
    return go_on ? absl::OkStatus() : absl::CancelledError("tokenizing was stopped");
  }

  /// Returns the end of the part that begins at `begin`: about kPartBytes later.
  size_t end_of_part(std::string_view text, std::span<const int64_t> ends, size_t begin) const {
    const size_t wanted = begin + kPartBytes;
    if (wanted >= text.size()) return text.size();
    const std::string_view special = options_.special_tokens ? kEndOfText : std::string_view();
    const auto document_end = std::lower_bound(ends.begin(), ends.end(), static_cast<int64_t>(wanted));
    if (document_end == ends.end()) return detail::find_cut(text, wanted, text.size(), special).value_or(text.size());
    const auto end = static_cast<size_t>(*document_end);
    return detail::find_cut(text, wanted, end - 1, special).value_or(end);
  }

  void encode_part(std::string_view text, std::span<const int64_t> ends, Part& part, detail::PieceCache& cache) const {
    part.tokens.clear();
    part.status = absl::OkStatus();
    auto document_end = std::upper_bound(ends.begin(), ends.end(), static_cast<int64_t>(part.begin));
    for (size_t at = part.begin; at < part.end && part.status.ok();) {
      const bool has_end = document_end != ends.end() && *document_end <= static_cast<int64_t>(part.end);
      const size_t end = has_end ? static_cast<size_t>(*document_end) - 1 : part.end;
      part.status = encode_text(text, at, end, cache, part.tokens);
      at = end;
      if (has_end) part.tokens.push_back(vocabulary_.end_of_text), ++document_end, ++at;
    }
  }

  /// Encodes text[at, end).
  absl::Status encode_text(std::string_view text, size_t at, size_t end, detail::PieceCache& cache,
                           std::vector<TokenId>& tokens) const {
    while (options_.special_tokens) {
      const size_t special = text.substr(0, end).find(kEndOfText, at);
      if (special == std::string_view::npos) break;
      TRAINKIT_RETURN_IF_ERROR(encode_ordinary(text, at, special, cache, tokens));
      tokens.push_back(vocabulary_.end_of_text);
      at = special + kEndOfText.size();
    }
    return encode_ordinary(text, at, end, cache, tokens);
  }

  /// Encodes text[at, end), which has no special tokens.
  absl::Status encode_ordinary(std::string_view text, size_t at, size_t end, detail::PieceCache& cache,
                               std::vector<TokenId>& tokens) const {
    const std::string_view part = text.substr(0, end);
    while (at < end) {
      const size_t length = detail::piece_length(part, at);
      if (length == 0) return detail::invalid_utf8(text, at);
      if (length > kMaxPiece) {
        return to_status({.exit_code = ExitCode::kData,
                          .id = "data.tokens",
                          .where = fmt::format("@{:#x}", at),
                          .problem = "a run of characters that cannot be split",
                          .got = fmt::format("{} bytes", length),
                          .expected = fmt::format("at most {}", kMaxPiece)});
      }
      append_piece(part.substr(at, length), cache, tokens);
      at += length;
    }
    return absl::OkStatus();
  }

  void append_piece(std::string_view piece, detail::PieceCache& cache, std::vector<TokenId>& out) const {
    if (cache.find(piece, out)) return;
    const size_t before = out.size();
    if (const auto whole = ids_.find(piece); whole != ids_.end()) {
      out.push_back(whole->second);
    } else if (piece.size() <= kLongPiece) {
      merge_by_scan(piece, out);
    } else {
      return merge_by_queue(piece, out);
    }
    cache.insert(piece, out.data() + before, out.size() - before);
  }

  /// Merges the pair of lowest rank, the leftmost of equals, until no pair can be merged. O(n^2) in the size of the
  /// piece.
  void merge_by_scan(std::string_view piece, std::vector<TokenId>& out) const {
    TokenId parts[kLongPiece];
    Merge joins[kLongPiece];  // joins[i] merges parts i and i + 1
    size_t count = piece.size();
    for (size_t i = 0; i < count; ++i) parts[i] = vocabulary_.byte_ids[static_cast<unsigned char>(piece[i])];
    for (size_t i = 0; i + 1 < count; ++i) joins[i] = merges_.find(parts[i], parts[i + 1]);
    while (count > 1) {
      const Merge* best =
          std::min_element(joins, joins + count - 1, [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
      if (best->rank == kNoRank) break;
      const auto at = static_cast<size_t>(best - joins);
      parts[at] = best->token;
      std::copy(parts + at + 2, parts + count, parts + at + 1);
      --count;
      if (at + 1 < count) std::copy(joins + at + 2, joins + count, joins + at + 1);
      if (at + 1 < count) joins[at] = merges_.find(parts[at], parts[at + 1]);
      if (at > 0) joins[at - 1] = merges_.find(parts[at - 1], parts[at]);
    }
    out.insert(out.end(), parts, parts + count);
  }

  /// Same, in O(n log n), with a priority queue over a linked list of parts. A merge does not remove the queued
  /// candidates of its neighbours: a popped candidate is skipped if its two tokens are no longer there.
  void merge_by_queue(std::string_view piece, std::vector<TokenId>& out) const {
    struct Part {
      TokenId token;
      uint32_t previous;
      uint32_t next;
    };
    struct Candidate {
      Merge merge;
      uint32_t at;
      TokenId left, right;  // tokens when queued; if they differ now, the candidate is stale
      bool operator<(const Candidate& other) const {
        return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : at > other.at;
      }
    };
    const auto end = static_cast<uint32_t>(piece.size());
    std::vector<Part> parts(end);
    for (uint32_t i = 0; i < end; ++i) {
      parts[i] = {vocabulary_.byte_ids[static_cast<unsigned char>(piece[i])], i == 0 ? end : i - 1, i + 1};
    }
    std::priority_queue<Candidate> queue;
    const auto consider = [&](uint32_t at) {
      if (at == end || parts[at].next == end) return;
      const TokenId left = parts[at].token;
      const TokenId right = parts[parts[at].next].token;
      if (const Merge merge = merges_.find(left, right); merge.rank != kNoRank) queue.push({merge, at, left, right});
    };
    for (uint32_t i = 0; i + 1 < end; ++i) consider(i);
    constexpr TokenId kRemoved = ~TokenId{0};
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Part& part = parts[best.at];
      if (part.token != best.left || part.next == end || parts[part.next].token != best.right) continue;
      part.token = best.merge.token;
      parts[part.next].token = kRemoved;
      part.next = parts[part.next].next;
      if (part.next != end) parts[part.next].previous = best.at;
      consider(best.at);
      consider(part.previous);
    }
    for (uint32_t at = 0; at != end; at = parts[at].next) out.push_back(parts[at].token);
  }

  /// Builds the table of merges. As in tiktoken, two neighbours can be merged whenever their joined bytes are the
  /// result of a merge, not only if they are the two halves listed in the file.
  MergeTable make_merges() {
    for (TokenId id : vocabulary_.byte_ids) ids_.emplace(vocabulary_.tokens[id], id);
    for (TokenId id : vocabulary_.merged) ids_.emplace(vocabulary_.tokens[id], id);
    struct Pair {
      TokenId left, right;
      Merge merge;
    };
    std::vector<Pair> pairs;
    for (uint32_t rank = 0; rank < vocabulary_.merged.size(); ++rank) {
      const std::string_view bytes = vocabulary_.tokens[vocabulary_.merged[rank]];
      for (size_t split = 1; split < bytes.size(); ++split) {
        const auto left = ids_.find(bytes.substr(0, split));
        const auto right = ids_.find(bytes.substr(split));
        if (left == ids_.end() || right == ids_.end()) continue;
        pairs.push_back({left->second, right->second, {rank, vocabulary_.merged[rank]}});
      }
    }
    MergeTable table(pairs.size());
    for (const Pair& pair : pairs) table.insert(pair.left, pair.right, pair.merge);
    return table;
  }

  detail::Gpt2Vocabulary vocabulary_;
  Gpt2TokenizerOptions options_;
  std::unordered_map<std::string_view, TokenId> ids_;  // single bytes and merges, without the special token
  MergeTable merges_;
};

absl::StatusOr<std::unique_ptr<Gpt2Tokenizer>> Gpt2Tokenizer::open(const std::string& vocab_path,
                                                                   const std::string& merges_path,
                                                                   Gpt2TokenizerOptions options) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto vocab, MappedFile::open(vocab_path));
  TRAINKIT_ASSIGN_OR_RETURN(const auto merges, MappedFile::open(merges_path));
  return parse(vocab->text(), merges->text(), vocab_path, merges_path, options);
}

absl::StatusOr<std::unique_ptr<Gpt2Tokenizer>> Gpt2Tokenizer::parse(std::string_view vocab_json,
                                                                    std::string_view merges,
                                                                    const std::string& vocab_path,
                                                                    const std::string& merges_path,
                                                                    Gpt2TokenizerOptions options) {
  TRAINKIT_ASSIGN_OR_RETURN(auto vocabulary,
                            detail::parse_gpt2_vocabulary(vocab_json, merges, vocab_path, merges_path));
  return std::unique_ptr<Gpt2Tokenizer>(
      new Gpt2Tokenizer(std::make_unique<const Impl>(std::move(vocabulary), options)));
}

Gpt2Tokenizer::Gpt2Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Gpt2Tokenizer::~Gpt2Tokenizer() = default;

int64_t Gpt2Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->vocabulary().tokens.size()); }

absl::Status Gpt2Tokenizer::encode(std::string_view text, const TokenSink& sink,
                                   const TokenizeProgress& progress) const {
  return impl_->encode(text, {}, sink, progress);
}

absl::Status Gpt2Tokenizer::encode_documents(std::string_view text, std::span<const int64_t> ends,
                                             const TokenSink& sink, const TokenizeProgress& progress) const {
  return impl_->encode(text, ends, sink, progress);
}

std::string_view Gpt2Tokenizer::token_bytes(TokenId id) const {
  const auto& tokens = impl_->vocabulary().tokens;
  TORCH_CHECK_INDEX(id < tokens.size(), "token ", id, " is outside the vocabulary of ", tokens.size());
  return tokens[id];
}

std::string Gpt2Tokenizer::to_json() const {
  return nlohmann::json{{"type", "gpt2"},
                        {"vocab", detail::gpt2_vocab_json(impl_->vocabulary())},
                        {"merges", detail::gpt2_merges_text(impl_->vocabulary())},
                        {"special_tokens", impl_->options().special_tokens}}
      .dump();
}

TokenId Gpt2Tokenizer::end_of_text() const { return impl_->vocabulary().end_of_text; }

}  // namespace trainkit
