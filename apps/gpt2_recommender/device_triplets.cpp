#include "gpt2_recommender/device_triplets.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "gpt2_recommender/triplet_draw.h"
#include "trainkit/core/gpu_kernels.h"
#include "trainkit/core/random.h"

#ifdef TRAINKIT_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace trainkit::rec {
namespace {

constexpr int64_t kGrain = 4096;

class TripletRows final : public Dataset {
 public:
  explicit TripletRows(std::shared_ptr<const TripletDataset> triplets)
      : triplets_(std::move(triplets)), fields_{{"row", at::kLong, {}}, {"key", at::kLong, {}}} {}

  int64_t size() const override { return triplets_->size(); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    *out.row<int64_t>(0, at) = key.index;
    *out.row<int64_t>(1, at) = static_cast<int64_t>(hash_key(key.seed, key.epoch));
  }

 private:
  std::shared_ptr<const TripletDataset> triplets_;
  std::vector<FieldSpec> fields_;
};

template <class Word>
at::Tensor as_tensor(std::span<const Word> words, at::ScalarType type) {
  static_assert(sizeof(Word) == 4 || sizeof(Word) == 8);
  // A view: the data set owns the memory and outlives the tensor.
  return at::from_blob(const_cast<Word*>(words.data()), {static_cast<int64_t>(words.size())}, type);
}

void draw_on_cpu(const detail::TripletTables& tables, const int64_t* rows, const int64_t* keys, int64_t count,
                 int64_t* users, int64_t* positives, int64_t* negatives) {
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      TORCH_CHECK_INDEX(rows[i] >= 0 && rows[i] < int64_t{tables.rows}, "row ", rows[i], " of ", tables.rows);
      const uint64_t pair = tables.pairs[rows[i]];
      users[i] = static_cast<int64_t>(pair >> 32);
      positives[i] = static_cast<int64_t>(pair & 0xffffffffu);
      negatives[i] = detail::draw_negative(tables, static_cast<uint32_t>(rows[i]), static_cast<uint64_t>(keys[i]));
    }
  });
}

}  // namespace

DeviceTriplets::DeviceTriplets(std::shared_ptr<const TripletDataset> triplets, const std::vector<at::Device>& devices)
    : triplets_(std::move(triplets)) {
  TORCH_CHECK_VALUE(!triplets_->history().bits().empty(),
                    "too many users and items to draw on the device: the history exceeds 256 MiB");
  const Tables here = {as_tensor(triplets_->pairs(), at::kLong), as_tensor(triplets_->history().bits(), at::kInt)};
  copies_.push_back(here);
  for (const at::Device device : devices) {
    const bool there = std::any_of(copies_.begin(), copies_.end(),
                                   [&](const Tables& tables) { return tables.pairs.device() == device; });
    if (!there) copies_.push_back({here.pairs.to(device), here.bits.to(device)});
  }
}

std::shared_ptr<const Dataset> DeviceTriplets::rows() const { return std::make_shared<TripletRows>(triplets_); }

int64_t DeviceTriplets::table_bytes() const {
  return static_cast<int64_t>(copies_.front().pairs.nbytes() + copies_.front().bits.nbytes());
}

Triplets DeviceTriplets::draw(const Batch& batch) const {
  at::Tensor rows = batch["row"].contiguous(), keys = batch["key"].contiguous();
  const at::Device device = rows.device();
  bool has_kernel = false;
#ifdef TRAINKIT_WITH_CUDA
  has_kernel = device.is_cuda() && has_gpu_kernels(device);
#endif
  if (!has_kernel) {  // draw the same triplets on the host
    rows = rows.cpu();
    keys = keys.cpu();
  }
  const auto here = std::find_if(copies_.begin(), copies_.end(),
                                 [&](const Tables& tables) { return tables.pairs.device() == rows.device(); });
  TORCH_CHECK(here != copies_.end(), "the triplets are not on ", rows.device());
  const History& history = triplets_->history();
  const detail::TripletTables tables = {
      .pairs = reinterpret_cast<const uint64_t*>(here->pairs.const_data_ptr<int64_t>()),
      .rows = static_cast<uint32_t>(triplets_->size()),
      .bits = reinterpret_cast<const uint32_t*>(here->bits.const_data_ptr<int32_t>()),
      .bits_per_user = history.bits_per_user(),
      .num_items = static_cast<uint32_t>(history.positives().num_items()),
      .by_popularity = triplets_->negatives() == Negatives::kPopularity};
  const int64_t count = rows.numel();
  at::Tensor all = at::empty({3, count}, rows.options());
  auto* const out = all.mutable_data_ptr<int64_t>();
  const auto *row = rows.const_data_ptr<int64_t>(), *key = keys.const_data_ptr<int64_t>();
  if (!has_kernel) {
    draw_on_cpu(tables, row, key, count, out, out + count, out + 2 * count);
    all = all.to(device);
  }
#ifdef TRAINKIT_WITH_CUDA
  if (has_kernel) {
    const c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(static_cast<cudaError_t>(detail::launch_draw_triplets(
        tables, row, key, count, out, out + count, out + 2 * count, c10::cuda::getCurrentCUDAStream().stream())));
  }
#endif
  return {all[0], all[1], all[2]};
}

}  // namespace trainkit::rec
