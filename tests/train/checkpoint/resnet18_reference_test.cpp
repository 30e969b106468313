// Compares ResNet18 with torchvision's, using torchvision's files.
#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/nn/resnet18.h"
#include "trainkit/train/weights.h"

using namespace trainkit;

namespace {

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return (a - b).abs().max().item<double>();
}

}  // namespace

TEST_CASE("ResNet18 loads torchvision's files and gives the same features and gradients", "[train][resnet18]") {
  if (!test::python_has("torchvision")) TRAINKIT_SKIP("no Python with torchvision");
  const test::TempDir folder;
  test::run_reference("resnet18.py", folder.path().string());
  const auto theirs = SafetensorsFile::open(folder / "out.safetensors");
  REQUIRE(theirs.status() == absl::OkStatus());
  const auto of = [&](const std::string& name) { return theirs->tensor(name).value(); };
  for (const char* file : {"new.pth", "old.pth", "parallel.pth", "weights.safetensors"}) {
    CAPTURE(file);
    ResNet18 model(ResNet18Options{.num_classes = 10});
    const auto loaded = load_weights(*model, folder / file);
    REQUIRE(loaded.status() == absl::OkStatus());
    CHECK(loaded->loaded == 122);  // all of torchvision's: 62 parameters, 60 statistics
    model->eval();
    {
      const at::NoGradGuard no_grad;
      CHECK(largest_difference(model->features(of("images")), of("features")) <= 1e-4);
      CHECK(largest_difference(model->forward(of("images")), of("scores")) <= 1e-4);
      const at::Tensor channels_last = of("images").contiguous(at::MemoryFormat::ChannelsLast);
      CHECK(largest_difference(model->features(channels_last), of("features")) <= 1e-4);
    }
    model->train();
    const at::Tensor scores = model->forward(of("images"));
    CHECK(largest_difference(scores, of("train_scores")) <= 1e-4);
    (scores * (torch::arange(scores.numel()).remainder(7) - 3).view_as(scores)).sum().backward();
    for (const auto& parameter : model->named_parameters()) {
      CAPTURE(parameter.key());
      const at::Tensor gradient = of("grad:" + parameter.key());
      const double scale = std::max(1.0, gradient.abs().max().item<double>());
      CHECK(largest_difference(parameter.value().grad(), gradient) <= 1e-3 * scale);
    }
  }
}
