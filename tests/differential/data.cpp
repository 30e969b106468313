// Data sets, samplers and loaders of a program.
#include <torch/torch.h>

#include "model.h"
#include "trainkit/core/random.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit::differential {
namespace {

using Columns = std::vector<std::pair<std::string, at::Tensor>>;

at::Tensor integers(int64_t count, int64_t below, uint64_t key) {
  at::Tensor values = at::empty({count}, at::kLong);
  RandomStream random(key);
  for (int64_t i = 0; i < count; ++i) values.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(below));
  return values;
}

at::Tensor row_weights(const Spec& spec, int64_t rows, uint64_t key) {
  if (spec.weights == "rows")
    return at::tensor({0.0, 1.0, 0.5, 2.0}, at::kDouble).index_select(0, integers(rows, 4, key));
  if (spec.weights == "scaled") return at::full({rows}, 1000.0, at::kDouble);
  if (spec.weights != "blocks") return at::ones({rows}, at::kDouble);
  return at::arange(rows).div(spec.batch_size, "floor").remainder(2).to(at::kDouble);
}

/// Rows of the inner data set that a subset shows; some twice.
std::vector<int64_t> subset_of(const Spec& spec) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < spec.rows; ++i) indices.push_back((i * 3) % ((2 * spec.rows + 2) / 3));
  return indices;
}

/// Columns that a program's data set holds before its adapters.
Columns inner_columns(const Spec& spec) { return columns(spec, spec.rows, hash_key(spec.seed, spec.number, 2)); }

Columns slice(const Columns& all, int64_t begin, int64_t end) {
  Columns some = all;
  for (auto& [name, tensor] : some) tensor = tensor.slice(0, begin, end);
  return some;
}

std::shared_ptr<const Dataset> tensors(Columns all) { return std::make_shared<TensorDataset>(std::move(all)); }

}  // namespace

Columns columns(const Spec& spec, int64_t rows, uint64_t key) {
  at::Tensor x, y;
  if (spec.input == "tokens") {
    x = integers(rows * kTokens, kVocabulary, key).view({rows, kTokens});
  } else {
    std::vector<int64_t> shape{rows, kFeatures};
    if (spec.input == "sequence") shape = {rows, 3, 8};
    if (spec.input == "image") shape = {rows, 2, 6, 6};
    x = normal(shape, key, dtype_of(spec));
    for (const int64_t bad : spec.bad_rows) {
      const int64_t row = bad < 0 ? -1 - bad : bad;
      if (row < rows) x[row].flatten()[0] = bad < 0 ? INFINITY : NAN;
    }
  }
  if (spec.loss == "cross_entropy") {
    y = integers(rows, outputs_of(spec), key + 1);
  } else {
    y = normal({rows, outputs_of(spec)}, key + 1, dtype_of(spec));
  }
  return {{"x", x},
          {"y", y},
          {"w", row_weights(spec, rows, key + 2).to(dtype_of(spec))},
          {"m", integers(rows, 3, key + 3).eq(0).to(at::kLong)}};
}

Columns outer_columns(const Spec& spec) {
  Columns all = inner_columns(spec);
  if (spec.dataset != "subset") return all;
  for (auto& [name, tensor] : all) tensor = tensor.index_select(0, at::tensor(subset_of(spec), at::kLong));
  return all;
}

Columns evaluation_columns(const Spec& spec) {
  Spec clean = spec;
  clean.bad_rows.clear();
  Columns all = columns(clean, spec.evaluation_rows, hash_key(spec.seed, spec.number, 4));
  all[2].second[0] = 1;  // an evaluation in which no row counts is refused
  return all;
}

std::shared_ptr<const Dataset> make_dataset(const Spec& spec) {
  const Columns all = inner_columns(spec);
  if (spec.dataset == "subset") return std::make_shared<Subset>(tensors(all), subset_of(spec));
  if (spec.dataset == "concat") {
    const int64_t half = spec.rows / 2;
    std::vector<std::shared_ptr<const Dataset>> parts{tensors(slice(all, 0, half)),
                                                      tensors(slice(all, half, spec.rows))};
    return std::make_shared<ConcatDataset>(std::move(parts));
  }
  if (spec.dataset != "mapped" || spec.input == "tokens") return tensors(all);
  const bool is_double = dtype_of(spec) == at::kDouble;
  return std::make_shared<MapDataset>(tensors(all), [is_double](const RowKey& key, const BatchView& row) {
    RandomStream random = key.random();
    const double noise = random.normal();
    if (is_double) row.row<double>(0, 0)[0] += noise;
    if (!is_double) row.row<float>(0, 0)[0] += static_cast<float>(noise);
  });
}

std::shared_ptr<const Sampler> make_sampler(const Spec& spec) {
  const uint64_t seed = hash_key(spec.seed, spec.number, 3) >> 1;
  if (spec.sampler == "random") return std::make_shared<RandomSampler>(spec.rows, RandomSamplerOptions{.seed = seed});
  if (spec.sampler == "weighted") {
    std::vector<double> weights;
    for (int64_t i = 0; i < spec.rows; ++i) weights.push_back(1 + static_cast<double>(i % 3));
    return std::make_shared<WeightedRandomSampler>(weights, WeightedRandomSamplerOptions{.seed = seed});
  }
  if (spec.sampler == "mixture") {
    const std::vector<int64_t> sizes{spec.rows / 2, spec.rows - spec.rows / 2};
    const std::vector<double> weights{1, 3};
    return mixture_sampler(sizes, weights, {.seed = seed});
  }
  return std::make_shared<SequentialSampler>(spec.rows);
}

std::unique_ptr<Prefetcher> make_loader(const Spec& spec, int64_t batch_size, int64_t rank, int64_t ranks) {
  std::shared_ptr<const Sampler> sampler = make_sampler(spec);
  if (ranks > 1) {
    sampler = std::make_shared<DistributedSampler>(
        sampler, DistributedSamplerOptions{.rank = rank,
                                           .world_size = ranks,
                                           .tail = UnevenTail::kPad,
                                           .multiple_of = spec.drop_last ? batch_size * ranks : 1});
  }
  auto loader = Prefetcher::create(make_dataset(spec), sampler,
                                   {.batch_size = batch_size,
                                    .num_workers = static_cast<int>(spec.workers),
                                    .persistent_workers = spec.workers > 1,
                                    .drop_last = spec.drop_last})
                    .value();
  if (loader->batches_per_epoch() == 0)
    throw std::runtime_error("no batch");  // else a loop would look for one for ever
  return loader;
}

std::unique_ptr<Prefetcher> make_validation(const Spec& spec, int64_t rank, int64_t ranks) {
  if (spec.evaluation_rows == 0) return nullptr;
  auto dataset = tensors(evaluation_columns(spec));
  std::shared_ptr<const Sampler> sampler = std::make_shared<SequentialSampler>(spec.evaluation_rows);
  if (ranks > 1) {
    sampler = std::make_shared<DistributedSampler>(
        sampler, DistributedSamplerOptions{.rank = rank, .world_size = ranks, .tail = UnevenTail::kPad});
  }
  return Prefetcher::create(dataset, sampler, {.batch_size = std::max<int64_t>(1, spec.batch_size / ranks)}).value();
}

}  // namespace trainkit::differential
