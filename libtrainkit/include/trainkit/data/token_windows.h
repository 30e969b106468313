#pragma once
/// Rows of text for a language model: windows of a token file.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "trainkit/data/dataset.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit {

struct TokenWindowsOptions {
  /// Window length in tokens.
  int64_t block_size = 128;
  /// Part [begin, end) of the file; end -1 means the end of the file.
  int64_t begin = 0;
  int64_t end = -1;
  /// Kind of epoch. False, for training: every non-overlapping window once, from an offset in [0, block_size) drawn
  /// from (seed, epoch), so that window boundaries change between epochs; up to 2 * block_size tokens at the ends are
  /// skipped. True, for evaluation: every token but the first is a target exactly once.
  bool whole = false;
  /// Token that ends a document: a window then packs several documents. -1: a window is one text.
  int64_t document_end = -1;
};

/// Windows of a token file. Fields, both (block_size) int64:
///   x   tokens
///   y   the next token of each; kNoTarget (kIgnoreIndex of nn/transformer.h) after the end of the text, where x is 0
///
/// With `document_end` y is also kNoTarget at the end of a document, because its next token belongs to another one,
/// and there is a third field (block_size) int64:
///   positions   position of each token in its document, or in the part of it that the window has
///
/// A batch is gathered and widened in one pass, at memory speed. A damaged file throws; see TokenFile::read.
class TokenWindows final : public Dataset {
 public:
  /// Target of a position without one.
  static constexpr int64_t kNoTarget = -100;

  /// Throws c10::ValueError if an option is out of range or the part has fewer than block_size + 1 tokens (2 if
  /// `whole`).
  TokenWindows(TokenFile file, const TokenWindowsOptions& options);

  int64_t size() const override { return size_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;

  /// Number of targets other than kNoTarget in row `index`, if `whole`.
  int64_t targets(int64_t index) const;

 private:
  int64_t window_begin(const RowKey& key) const;
  void pack(int64_t* y, int64_t* positions, const int64_t* x, int64_t count) const;

  TokenFile file_;
  TokenWindowsOptions options_;
  int64_t size_ = 0;
  int64_t offsets_ = 1;  // number of possible offsets of an epoch
  std::vector<FieldSpec> fields_;
};

/// Counts the tokens [begin, end) that equal `token`. Reads all of them.
int64_t count_tokens(const TokenFile& file, int64_t begin, int64_t end, int64_t token);

/// Rows for an evaluation, see LanguageOptions::targets_of.
struct ValidationRows {
  std::shared_ptr<const Dataset> dataset = nullptr;
  /// Number of targets other than kNoTarget in a row.
  std::function<int64_t(int64_t row)> targets_of = nullptr;

  /// Number of targets in all of `rows`.
  int64_t targets(std::span<const int64_t> rows) const;
};

/// Joins the windows of one or more texts, which must be `whole`. With more than `max_rows` windows, takes that many,
/// evenly spaced from the first one on; 0 takes all.
ValidationRows validation_rows(const std::vector<std::shared_ptr<const TokenWindows>>& texts, int64_t max_rows = 0);

}  // namespace trainkit
