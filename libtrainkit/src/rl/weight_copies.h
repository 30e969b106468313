#pragma once
// Memory of versions of a model's weights.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trainkit/rl/weights_publisher.h"

namespace torch::nn {
class Module;
}

namespace trainkit::detail {

/// Parameters, then buffers of a module, each once.
struct NamedWeights {
  explicit NamedWeights(const torch::nn::Module& model);
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

/// A version, whose tensors are views of one block per dtype: another device gets it by one copy per dtype.
struct WeightBlocks : WeightsVersion {
  std::vector<at::Tensor> blocks;
};

/// Where the tensors lie in the blocks.
class WeightLayout {
 public:
  explicit WeightLayout(const std::vector<at::Tensor>& tensors);
  /// Uninitialised memory on a device.
  std::unique_ptr<WeightBlocks> make(at::Device device, bool page_locked) const;

 private:
  struct Place {
    size_t block;
    int64_t offset;
    std::vector<int64_t> sizes, strides;
  };
  std::vector<at::ScalarType> dtypes_;  // of the blocks
  std::vector<int64_t> lengths_;        // elements
  std::vector<Place> places_;
};

/// Memory on the host that is used again when nobody refers to it: a fresh allocation costs more than the copy. Any
/// thread. On a GPU LibTorch's allocator does the same, and knows which streams still read.
class HostVersions : public std::enable_shared_from_this<HostVersions> {
 public:
  HostVersions(std::shared_ptr<const WeightLayout> layout, bool page_locked)
      : layout_(std::move(layout)), page_locked_(page_locked) {}
  /// Returns a version to write. It comes back when its last reference ends.
  std::shared_ptr<WeightBlocks> take();

 private:
  void give_back(std::unique_ptr<WeightBlocks> version);

  const std::shared_ptr<const WeightLayout> layout_;
  const bool page_locked_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<WeightBlocks>> free_;  // guarded by mutex_
};

}  // namespace trainkit::detail
