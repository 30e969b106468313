// Checks that the bytes of a Prefetcher's batches arrive on the device while host and device are busy.
#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "trainkit/core/format.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/verify.h"

namespace trainkit::tool {
namespace {

constexpr int64_t kCopiedRows = 4096, kNumbersPerRow = 256, kRowsPerBatch = 256, kCopiedEpochs = 6;

/// Keeps the host's memory and another stream of the device busy, in threads of its own, until destruction.
class Load {
 public:
  explicit Load(at::Device device) {
    threads_.emplace_back([this] { move_memory(); });
    if (device.is_cuda()) threads_.emplace_back([this, device] { compute(device); });
  }
  ~Load() {
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  void move_memory() {
    std::vector<char> from(8 << 20, 'x'), to(from.size());
    while (!is_over_) {
      std::memcpy(to.data(), from.data(), from.size());
      std::swap(from, to);
    }
  }

  void compute(at::Device device) {
    const c10::impl::VirtualGuardImpl streams(device.type());
    const c10::Stream side = streams.getStreamFromGlobalPool(device);
    const c10::StreamGuard guard(side);
    at::Tensor x = at::full({256, 256}, 1.0 / 256, at::TensorOptions().device(device));
    const at::Tensor y = x.clone();
    while (!is_over_) {
      for (int i = 0; i < 8; ++i) x = at::mm(x, y);
      streams.synchronizeStream(side);
    }
  }

  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};

/// Returns a checksum (N) int64 of rows (N, M) int32: sum over j of value j times an odd 41-bit factor j. It depends on
/// every bit and its place. Integer arithmetic, so it is exact on every device.
at::Tensor checksums(const at::Tensor& rows, const at::Tensor& factors) {
  return (rows.to(at::kLong) * factors).sum(1);
}

/// A batch that arrived: checksums (N) computed on the device, and the indices of its rows.
struct Arrived {
  at::Tensor checksums;
  std::vector<int64_t> rows;
};

/// Random int32 rows that use all bits, and the checksums that the device must compute from them.
struct Copied {
  explicit Copied(at::Device where)
      : device(where),
        data(at::randint(-(int64_t{1} << 31), int64_t{1} << 31, {kCopiedRows, kNumbersPerRow}, at::kLong).to(at::kInt)),
        factors(at::randint(int64_t{1} << 40, {kNumbersPerRow}, at::kLong).mul(2).add(1)),
        expected(checksums(data, factors)),
        factors_there(factors.to(device)) {}

  at::Device device;
  at::Tensor data, factors, expected, factors_there;
};

std::unique_ptr<Prefetcher> loader_of(const Copied& copied, at::Device device) {
  return Prefetcher::create(
             std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{{"data", copied.data}}),
             RandomSampler(kCopiedRows, {.seed = 5}),
             {.batch_size = kRowsPerBatch,
              .num_workers = 2,
              .persistent_workers = true,
              .pin_memory = true,
              .device = device})
      .value();
}

/// Reads batches that the Prefetcher copies to the device ahead of the loop.
std::vector<Arrived> copy_ahead(const Copied& copied) {
  const auto loader = loader_of(copied, copied.device);
  std::vector<Arrived> arrived;
  for (int64_t epoch = 0; epoch < kCopiedEpochs; ++epoch) {
    while (const auto batch = loader->next().value()) {
      const auto rows = batch->row_indices();
      arrived.push_back({checksums((*batch)["data"], copied.factors_there), {rows.begin(), rows.end()}});
    }
  }
  return arrived;
}

/// Reads batches on the host and copies them in two slices while work is queued on the device, as DataParallel and
/// micro-batches do. The Prefetcher must not reuse a host slot before its asynchronous copies have finished.
std::vector<Arrived> copy_slices(const Copied& copied) {
  const auto loader = loader_of(copied, at::kCPU);
  at::Tensor x = at::full({512, 512}, 1.0 / 512, at::TensorOptions().device(copied.device));
  const at::Tensor y = x.clone();
  std::vector<Arrived> arrived;
  for (int64_t epoch = 0; epoch < kCopiedEpochs; ++epoch) {
    while (const auto batch = loader->next().value()) {
      for (int i = 0; i < 2; ++i) x = at::mm(x, y);
      std::vector<at::Tensor> parts;
      for (const int64_t begin : {int64_t{0}, batch->size() / 3}) {
        const int64_t end = begin == 0 ? batch->size() / 3 : batch->size();
        parts.push_back(checksums(batch->slice(begin, end).to(copied.device)["data"], copied.factors_there));
      }
      const auto rows = batch->row_indices();
      arrived.push_back({at::cat(parts), {rows.begin(), rows.end()}});
    }
  }
  return arrived;
}

struct Wrong {
  int64_t batches = 0, rows = 0, first = -1;

  std::string text() const {
    return batches == 0 ? "0 wrong"
                        : fmt::format("{} wrong ({} rows, the first in batch {})", batches, rows, first + 1);
  }
};

Wrong count_wrong(const std::vector<Arrived>& all, const at::Tensor& expected) {
  Wrong wrong;
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor differs = all[i].checksums.cpu().ne(expected.index_select(0, at::tensor(all[i].rows)));
    const auto rows = differs.sum().item<int64_t>();
    if (rows > 0 && wrong.batches++ == 0) wrong.first = static_cast<int64_t>(i);
    wrong.rows += rows;
  }
  return wrong;
}

}  // namespace

Checked verify_copies(at::Device device) {
  torch::manual_seed(31);
  const Copied copied(device);
  std::vector<Arrived> ahead, slices;
  {
    const Load load(device);
    ahead = copy_ahead(copied);
    slices = copy_slices(copied);
  }
  const Wrong wrong_ahead = count_wrong(ahead, copied.expected), wrong_slices = count_wrong(slices, copied.expected);
  const int64_t bytes = kRowsPerBatch * kNumbersPerRow * 4;
  return passed_if(
      wrong_ahead.batches + wrong_slices.batches == 0,
      fmt::format("batches of {}: {} copied ahead, {}; {} copied in slices, {}", format_size(bytes), ahead.size(),
                  wrong_ahead.text(), slices.size(), wrong_slices.text()),
      {{"batch_bytes", bytes},
       {"copied_ahead", ahead.size()},
       {"wrong_ahead", wrong_ahead.batches},
       {"copied_in_slices", slices.size()},
       {"wrong_in_slices", wrong_slices.batches}},
      "copies to this GPU are damaged: check its slot and cable (`nvidia-smi -q -d ECC,PCIE`), and send this report "
      "to the developers");
}

}  // namespace trainkit::tool
