#include "hsi_classification/split.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "trainkit/core/data_error.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"

namespace trainkit::hsi {
namespace {

using Pixels = std::vector<int64_t>;

/// Purposes of random numbers; they separate the streams.
enum Purpose : uint64_t { kTrain = 1, kValidation = 2, kBlocks = 3 };

absl::Status check(const SplitOptions& options) {
  const bool is_drawn = options.mode == "random" || options.mode == "disjoint";
  if (!is_drawn) return absl::OkStatus();
  if (options.train_count < 0) {
    return bad_option("--train_count", "negative", std::to_string(options.train_count), "0 or more pixels per class");
  }
  if (options.train_count == 0 && !(options.train_ratio > 0 && options.train_ratio < 1)) {
    return bad_option("--train_ratio", "out of range", fmt::format("{}", options.train_ratio), "above 0 and below 1");
  }
  if (!(options.validation_share >= 0 && options.validation_share < 1)) {
    return bad_option("--validation_share", "out of range", fmt::format("{}", options.validation_share),
                      "0 or more, below 1");
  }
  if (options.mode == "disjoint" && options.block_size < 1) {
    return bad_option("--block_size", "out of range", std::to_string(options.block_size), "at least 1 pixel");
  }
  return absl::OkStatus();
}

/// Pixels of class 1..C, each ascending, at [class - 1].
std::vector<Pixels> pixels_by_class(const Scene& scene) {
  std::vector<Pixels> classes(static_cast<size_t>(scene.num_classes()));
  const int64_t* labels = scene.labels.const_data_ptr<int64_t>();
  for (int64_t pixel = 0; pixel < scene.labels.numel(); ++pixel) {
    if (labels[pixel] > 0) classes[static_cast<size_t>(labels[pixel] - 1)].push_back(pixel);
  }
  return classes;
}

/// Returns the number of training pixels of a class with `n` pixels.
int64_t train_pixels(int64_t n, const SplitOptions& options) {
  const int64_t wanted =
      options.train_count > 0 ? options.train_count : std::llround(options.train_ratio * static_cast<double>(n));
  return std::max<int64_t>(1, std::min(wanted, n - 1));
}

/// Moves `count` random elements of `pixels` to the front (Fisher-Yates shuffle).
void draw(Pixels& pixels, int64_t count, uint64_t key) {
  RandomStream random(key);
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<int64_t>(pixels.size());
    std::swap(pixels[i], pixels[i + static_cast<int64_t>(random.below(static_cast<uint64_t>(n - i)))]);
  }
}

/// Parts of a split, filled class by class.
struct Parts {
  Pixels train, validation, test;

  static at::Tensor tensor(Pixels& pixels) {
    std::sort(pixels.begin(), pixels.end());
    return at::tensor(pixels, at::kLong);
  }
  Split split() && { return {tensor(train), tensor(validation), tensor(test)}; }

  /// Adds the training pixels of a class, and moves a share of them to validation.
  void add_training(Pixels pixels, size_t class_index, const SplitOptions& options) {
    const auto kept = static_cast<int64_t>(options.validation_share * static_cast<double>(pixels.size()));
    draw(pixels, kept, hash_key(options.seed, kValidation, class_index));
    validation.insert(validation.end(), pixels.begin(), pixels.begin() + kept);
    train.insert(train.end(), pixels.begin() + kept, pixels.end());
  }
};

Split random_split(const Scene& scene, const SplitOptions& options) {
  Parts parts;
  const auto classes = pixels_by_class(scene);
  for (size_t c = 0; c < classes.size(); ++c) {
    Pixels pixels = classes[c];
    const int64_t count = train_pixels(static_cast<int64_t>(pixels.size()), options);
    draw(pixels, count, hash_key(options.seed, kTrain, c));
    parts.test.insert(parts.test.end(), pixels.begin() + count, pixels.end());
    pixels.resize(static_cast<size_t>(count));
    std::sort(pixels.begin(), pixels.end());
    parts.add_training(std::move(pixels), c, options);
  }
  return std::move(parts).split();
}

// Note [Disjoint split]
// ~~~~~~~~~~~~~~~~~~~~~
// Patches of neighbouring pixels overlap, so a random split trains on the spectra of test pixels (leak()). A disjoint
// split assigns whole blocks. Classes are visited from the rarest to the most frequent, because a block usually
// contains several classes and the rarest has the fewest choices. A block becomes a training block only if every class
// in it keeps a test pixel elsewhere. A class that gets no block this way, for example because it lies within one
// block, is divided at a row instead. Only for such a class may a training and a test pixel share a block.

/// Chooses training blocks among the blocks with labelled pixels. See Note [Disjoint split].
class Blocks {
 public:
  Blocks(const Scene& scene, const SplitOptions& options)
      : options_(options), classes_(pixels_by_class(scene)), width_(scene.width()), trained_(classes_.size(), 0) {
    across_ = (width_ + options.block_size - 1) / options.block_size;
    for (size_t c = 0; c < classes_.size(); ++c) {
      for (const int64_t pixel : classes_[c]) ++counts_[block_of(pixel)].emplace(c, 0).first->second;
    }
  }

  Split split() {
    // Rarest class first: it has the fewest blocks to choose from.
    std::vector<size_t> order(classes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return classes_[a].size() < classes_[b].size(); });
    for (const size_t c : order) choose(c);
    Parts parts;
    for (size_t c = 0; c < classes_.size(); ++c) add(c, parts);
    return std::move(parts).split();
  }

 private:
  int64_t block_of(int64_t pixel) const {
    return pixel / width_ / options_.block_size * across_ + pixel % width_ / options_.block_size;
  }
  int64_t wanted(size_t c) const { return train_pixels(static_cast<int64_t>(classes_[c].size()), options_); }

  /// Returns whether every class of the block keeps a test pixel.
  bool leaves_test(int64_t block) const {
    return std::all_of(counts_.at(block).begin(), counts_.at(block).end(), [&](const auto& entry) {
      return trained_[entry.first] + entry.second < static_cast<int64_t>(classes_[entry.first].size());
    });
  }

  /// Takes random blocks until class c has enough training pixels.
  void choose(size_t c) {
    Pixels blocks;
    for (const auto& [block, counts] : counts_) {
      if (counts.count(c) && !chosen_.count(block)) blocks.push_back(block);
    }
    draw(blocks, static_cast<int64_t>(blocks.size()), hash_key(options_.seed, kBlocks, c));
    for (const int64_t block : blocks) {
      if (trained_[c] >= wanted(c)) return;
      if (!leaves_test(block)) continue;
      chosen_[block] = true;
      for (const auto& [other, count] : counts_.at(block)) trained_[other] += count;
    }
  }

  /// Divides a class without a training block at a row.
  void add(size_t c, Parts& parts) const {
    Pixels training;
    const bool divided = trained_[c] == 0;
    for (size_t i = 0; i < classes_[c].size(); ++i) {
      const int64_t pixel = classes_[c][i];
      const bool trains = divided ? static_cast<int64_t>(i) < wanted(c) : chosen_.count(block_of(pixel)) > 0;
      (trains ? training : parts.test).push_back(pixel);
    }
    parts.add_training(std::move(training), c, options_);
  }

  const SplitOptions& options_;
  std::vector<Pixels> classes_;
  int64_t width_;
  int64_t across_ = 0;
  std::map<int64_t, std::map<size_t, int64_t>> counts_;  // pixels per block and class
  std::map<int64_t, bool> chosen_;
  std::vector<int64_t> trained_;  // pixels of each class in the chosen blocks
};

/// Checks that all pixels are labelled: the file may belong to another ground truth of the same size.
absl::Status check_labelled(const Scene& scene, const Split& split, const std::string& path) {
  const at::Tensor labels = scene.labels.flatten();
  for (const at::Tensor& part : {split.train, split.validation, split.test}) {
    const at::Tensor unlabelled = labels.index_select(0, part).eq(0);
    if (!unlabelled.any().item<bool>()) continue;
    const int64_t pixel = part.masked_select(unlabelled)[0].item<int64_t>();
    return data_error("data.split", {.file = path}, "a pixel is not labelled",
                      fmt::format("{}: row {}, column {}", pixel, pixel / scene.width(), pixel % scene.width()),
                      "labelled pixels of " + scene.name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Split> make_split(const Scene& scene, const SplitOptions& options) try {
  TRAINKIT_RETURN_IF_ERROR(check(options));
  if (options.mode == "random") return random_split(scene, options);
  if (options.mode == "disjoint") return Blocks(scene, options).split();
  TRAINKIT_ASSIGN_OR_RETURN(Split split, load_split(options.mode, scene.height(), scene.width()));
  TRAINKIT_RETURN_IF_ERROR(check_labelled(scene, split, options.mode));
  return split;
} catch (...) {
  return status_from_current_exception();
}

double leak(const Split& split, int64_t height, int64_t width, int64_t patch_size) {
  TORCH_CHECK_VALUE(patch_size >= 1 && patch_size % 2 == 1, "patch_size must be odd, got ", patch_size);
  if (split.test.numel() == 0 || patch_size == 1) return 0;
  // Summed-area table. sums[r][c]: training pixels above row r and left of column c; four entries count any rectangle.
  const auto at = [&](int64_t row, int64_t column) { return row * (width + 1) + column; };
  std::vector<int64_t> sums(static_cast<size_t>((height + 1) * (width + 1)), 0);
  const auto train = split.train.accessor<int64_t, 1>(), test = split.test.accessor<int64_t, 1>();
  for (int64_t i = 0; i < train.size(0); ++i) ++sums[at(train[i] / width + 1, train[i] % width + 1)];
  for (int64_t row = 1; row <= height; ++row) {
    for (int64_t column = 1; column <= width; ++column) {
      sums[at(row, column)] += sums[at(row - 1, column)] + sums[at(row, column - 1)] - sums[at(row - 1, column - 1)];
    }
  }
  const int64_t radius = patch_size / 2;
  int64_t seen = 0;
  for (int64_t i = 0; i < test.size(0); ++i) {
    const int64_t row = test[i] / width, column = test[i] % width;
    const int64_t top = std::max<int64_t>(0, row - radius), bottom = std::min(height, row + radius + 1);
    const int64_t left = std::max<int64_t>(0, column - radius), right = std::min(width, column + radius + 1);
    seen += sums[at(bottom, right)] - sums[at(top, right)] - sums[at(bottom, left)] + sums[at(top, left)] > 0;
  }
  return static_cast<double>(seen) / static_cast<double>(test.size(0));
}

}  // namespace trainkit::hsi
