/// A custom data set: points on two spirals, computed on request, with new noise in every epoch.

#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "trainkit/data/prefetcher.h"

using namespace trainkit;

// A data set returns its size, declares its fields once, and writes a row into the given memory.
class Spirals final : public Dataset {
 public:
  explicit Spirals(int64_t size) : size_(size) {}

  int64_t size() const override { return size_; }

  const std::vector<FieldSpec>& fields() const override {
    static const std::vector<FieldSpec> fields = {{"point", at::kFloat, {2}}, {"arm", at::kLong, {}}};
    return fields;
  }

  // Called from all workers at once. Random numbers come from the key: the same row, epoch and seed give the same
  // numbers.
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    const int64_t arm = key.index % 2;
    const double turn = 3.0 * static_cast<double>(key.index) / static_cast<double>(size_);
    const double angle = 2 * std::numbers::pi * turn + std::numbers::pi * static_cast<double>(arm);
    RandomStream random = key.random();
    float* point = out.row<float>(0, at);
    point[0] = static_cast<float>(turn * std::cos(angle) + 0.05 * random.normal());
    point[1] = static_cast<float>(turn * std::sin(angle) + 0.05 * random.normal());
    *out.row<int64_t>(1, at) = arm;
  }

  // Names a row in error messages.
  std::string describe(int64_t index) const override { return "point " + std::to_string(index); }

 private:
  int64_t size_;
};

int main() {
  auto dataset = std::make_shared<Spirals>(1000);
  auto loader = Prefetcher::create(dataset, RandomSampler(dataset->size(), {.seed = 7}),
                                   {.batch_size = 256, .num_workers = 2, .persistent_workers = true})
                    .value();
  for (int epoch = 0; epoch < 2; ++epoch) {
    while (auto batch = loader->next().value()) {
      std::printf("epoch %d: %4ld points, %3ld of them on arm 1, the first at (%.3f, %.3f)\n", epoch,
                  static_cast<long>(batch->size()), static_cast<long>((*batch)["arm"].sum().item<int64_t>()),
                  (*batch)["point"][0][0].item<float>(), (*batch)["point"][0][1].item<float>());
    }
  }
}
