// A separate file, because it is skipped without a GPU.
#include <ATen/ATen.h>

#include "core/device/gpu_operations.h"
#include "gpt2_recommender/device_triplets.h"
#include "gpt2_recommender/triplets.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::rec;

TEST_CASE("Triplets drawn on a GPU equal those of the CPU, with and without the kernel", "[apps][rec][gpu]") {
  if (!at::hasCUDA()) TRAINKIT_SKIP("no GPU that LibTorch can use");
  Interactions data;
  data.users.resize(60);
  data.items.resize(40);
  for (int32_t row = 0; row < 600; ++row) {
    data.user.push_back(row % 60);
    data.item.push_back(row / 60 * 3);
  }
  const Split split{"", std::vector<Part>(data.user.size(), Part::kTrain)};
  const auto triplets = TripletDataset::create(data, split, Part::kTrain, Negatives::kUniform).value();
  const DeviceTriplets on_device(triplets, {at::Device(at::kCUDA, 0)});
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(on_device.rows()->fields());
  const at::Tensor rows = at::arange(triplets->size()), keys = at::arange(triplets->size()).mul(123'457);
  const Triplets expected = on_device.draw(Batch(fields, {rows, keys}));
  for (const bool has_kernels : {true, false}) {
    CAPTURE(has_kernels);
    const trainkit::detail::GpuOperations gpu(false, has_kernels);
    const Triplets drawn = on_device.draw(Batch(fields, {rows.cuda(), keys.cuda()}));
    CHECK(drawn.negatives.is_cuda());
    CHECK(drawn.users.cpu().equal(expected.users));
    CHECK(drawn.positives.cpu().equal(expected.positives));
    CHECK(drawn.negatives.cpu().equal(expected.negatives));
  }
}
