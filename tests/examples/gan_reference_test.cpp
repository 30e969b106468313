// The training of examples/gan.cpp equals PyTorch's: the same initial weights, data and noise.
#include "examples/dcgan.h"
#include "reference_util.h"
#include "temp_dir.h"
#include "test_util.h"
#include "train/reference_training.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

// As in tests/reference/gan.py.
constexpr int64_t kBatch = 16, kSteps = 50;

double largest(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

/// Trains the players of the example with an optimizer of each from `make`. Returns the losses (steps, 2), and compares
/// weights and statistics with those of `name`.
template <class MakeOptimizer>
std::pair<at::Tensor, double> train(const ReferenceTraining& reference, const std::string& name, at::ScalarType dtype,
                                    MakeOptimizer make) {
  auto devices = DeviceReplicator::create(
                     [&] {
                       Gan gan = reference.with_weights(Gan(), "init.");
                       gan->to(dtype);
                       return gan;
                     },
                     {.device = at::kCPU})
                     .value();
  const auto rows = std::make_shared<TensorDataset>(
      NamedTensors{{"picture", reference["picture"].to(dtype)}, {"noise", reference["noise"].to(dtype)}});
  const auto loader = Prefetcher::create(rows, SequentialSampler(rows->size()), {.batch_size = kBatch}).value();
  const auto fake = [](Gan& gan, const Batch& batch) -> Shared {
    return {{"fake", gan->generator->forward(batch["noise"])}};
  };
  auto trainer = Trainer::create(*devices, gan_players(make(), make()), fake, {.max_steps = kSteps}).value();
  StepValues losses({"d.loss", "g.loss"});
  trainer.fit(*loader, {.events = &losses}).value();
  return {losses.tensor(), reference.largest_difference(*devices->module(), name + ".final.")};
}

}  // namespace

TEST_CASE("The GAN's losses and weights over 50 steps equal PyTorch's", "[examples][gan]") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const TempDir dir;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // as gan.py
  run_reference("gan.py", dir / "out.pt");
  const ReferenceTraining reference(dir / "out.pt");
  const auto sgd = [] { return std::make_shared<SGD>(SGDOptions{.lr = 0.01}); };
  const auto adam = [] { return std::make_shared<Adam>(AdamOptions{.lr = 2e-4, .betas = {0.5, 0.999}}); };
  {
    const auto [losses, weights] = train(reference, "sgd64", at::kDouble, sgd);
    std::cout << "float64, SGD: weights differ by " << weights << " at most" << std::endl;
    CHECK(weights <= 1e-9);
    CHECK(largest(losses, reference["sgd64.losses"]) <= 1e-9);
  }
  {
    const auto [losses, weights] = train(reference, "adam64", at::kDouble, adam);
    std::cout << "float64, Adam: weights differ by " << weights << " at most" << std::endl;
    CHECK(weights <= 1e-9);
    CHECK(largest(losses, reference["adam64.losses"]) <= 1e-9);
  }
  const at::Tensor expected = reference["adam32.losses"];
  const double own = largest(expected, reference["adam32_plain.losses"]);
  const auto [losses, weights] = train(reference, "adam32", at::kFloat, adam);
  const double of_ten = largest(losses.slice(0, 0, 10), expected.slice(0, 0, 10)), of_all = largest(losses, expected);
  std::cout << "float32, Adam: losses of 10 steps differ by " << of_ten << ", of 50 by " << of_all
            << " at most; PyTorch's own with and without oneDNN by " << own << std::endl;
  CHECK(of_ten <= 1e-5);
  CHECK(of_all <= std::max(2 * own, 1e-5));
  at::set_num_threads(threads);
}
