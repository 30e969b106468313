#include "transformer/mixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace trainkit::transformer {
namespace {

double sum_of(const std::vector<int64_t>& rows) {
  return static_cast<double>(std::max<int64_t>(1, std::accumulate(rows.begin(), rows.end(), int64_t{0})));
}

}  // namespace

Mixture::Mixture(std::vector<Part> parts, uint64_t seed) : parts_(std::move(parts)) {
  std::vector<int64_t> sizes;
  std::vector<double> weights;
  for (const Part& part : parts_) sizes.push_back(part.rows), weights.push_back(part.weight);
  order_ = mixture_sampler(sizes, weights, {.seed = seed});
}

RunFacts Mixture::describe() const {
  std::vector<int64_t> counts(parts_.size());
  add_rows(/*epoch=*/0, 0, order_->size(), 1, counts);
  std::vector<std::string> lines;
  for (size_t i = 0; i < parts_.size(); ++i) {
    lines.push_back(fmt::format("{} {:.1f} % ({:.2f} passes per epoch)", parts_[i].name,
                                100 * static_cast<double>(counts[i]) / sum_of(counts),
                                static_cast<double>(counts[i]) / static_cast<double>(parts_[i].rows)));
  }
  return {{"mixture", fmt::format("{} of {} rows per epoch", fmt::join(lines, ", "), order_->size())}};
}

void Mixture::add_rows(int64_t epoch, int64_t begin, int64_t end, int64_t factor, std::vector<int64_t>& counts) const {
  std::vector<int64_t> rows(4096);
  for (int64_t at = begin; at < end; at += static_cast<int64_t>(rows.size())) {
    const auto some = std::span(rows).first(static_cast<size_t>(std::min<int64_t>(4096, end - at)));
    order_->fill(epoch, at, some);
    for (int64_t row : some) {
      size_t part = 0;
      while (row >= parts_[part].rows) row -= parts_[part++].rows;
      counts[part] += factor;
    }
  }
}

std::vector<int64_t> Mixture::count_rows(int64_t epochs, int64_t positions, int64_t positions_per_epoch) const {
  // Each epoch has the same rows of each text; the dropped ones at its end differ.
  std::vector<int64_t> counts(parts_.size());
  if (epochs > 0) add_rows(/*epoch=*/0, 0, order_->size(), epochs, counts);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) add_rows(epoch, positions_per_epoch, order_->size(), -1, counts);
  add_rows(epochs, 0, std::min(positions, positions_per_epoch), 1, counts);
  return counts;
}

std::string Mixture::describe_shares(const std::vector<int64_t>& rows) const {
  const double all = std::accumulate(parts_.begin(), parts_.end(), 0.0,
                                     [](double sum, const Part& part) { return sum + part.weight; });
  std::vector<std::string> lines;
  for (size_t i = 0; i < parts_.size(); ++i) {
    lines.push_back(fmt::format("{} {:.2f} % (weight {:.2f} %)", parts_[i].name,
                                100 * static_cast<double>(rows[i]) / sum_of(rows), 100 * parts_[i].weight / all));
  }
  return fmt::format("mixture of {} rows: {}", std::accumulate(rows.begin(), rows.end(), int64_t{0}),
                     fmt::join(lines, ", "));
}

Metrics Mixture::shares(const std::vector<int64_t>& rows) const {
  Metrics metrics;
  for (size_t i = 0; i < rows.size(); ++i) {
    metrics[fmt::format("input_share_{}", i + 1)] = static_cast<double>(rows[i]) / sum_of(rows);
  }
  return metrics;
}

}  // namespace trainkit::transformer
