#pragma once
/// The commands that use a trained run: `trainkit-gpt2rec recommend`, `similar` and `export`.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "gpt2_recommender/models.h"
#include "gpt2_recommender/options.h"
#include "trainkit/app/app.h"

namespace trainkit::rec {

/// An item of a list and its score.
struct ScoredItem {
  int64_t item = 0;
  double score = 0;
};

/// Returns the `top_n` best items for each row of `users` (N, D), best first, without the items that the same row of
/// `seen` holds: top_items (which explains `numbers`) and the inner products. Rows have fewer items if fewer are left.
std::vector<std::vector<ScoredItem>> recommend(const at::Tensor& users, const at::Tensor& items, const UserItems& seen,
                                               int64_t top_n, std::span<const int64_t> numbers = {});

/// Returns the `top_n` items whose vectors have the largest cosine with that of `item`, without `item` itself.
std::vector<ScoredItem> similar_items(const at::Tensor& items, int64_t item, int64_t top_n);

/// Returns the commands. `options` are those that app.add_flags binds.
///
/// export writes a tower as an ONNX file. That of users maps "user" (batch) int64 to "vector" (batch, D) and "scores"
/// (batch, items); that of items maps "item" (batch) int64 to "vector" (batch, D). Users and items are numbers; the
/// lists "user_ids" and "item_ids" in the file give their ids.
std::vector<AppCommand> recommend_commands(App& app, const RecOptions& options);

}  // namespace trainkit::rec
