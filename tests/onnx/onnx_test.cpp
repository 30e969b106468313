// Models as ONNX files, computed by ONNX Runtime.
#include "trainkit/onnx/onnx.h"

#include <torch/torch.h>

#include <filesystem>

#include "onnx_runtime.h"
#include "test_util.h"
#include "trainkit/core/error.h"
#include "trainkit/distributed/sync_batch_norm.h"
#include "trainkit/nn/mel_spectrogram.h"
#include "trainkit/nn/resnet18.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

using Tensors = std::vector<at::Tensor>;

/// A module without parameters, for functions.
struct NoParametersImpl : torch::nn::Module {
  NoParametersImpl() : torch::nn::Module("NoParameters") {}
};
TORCH_MODULE(NoParameters);

/// Exports `forward`, and compares ONNX Runtime's results for `inputs` with LibTorch's.
void check_export(const std::shared_ptr<torch::nn::Module>& module, const NamedTensors& inputs,
                  const std::function<Tensors(const Tensors&)>& forward, double most = 1e-5) {
  const TempDir dir;
  OnnxModel model{.module = module, .inputs = inputs, .forward = forward};
  Tensors rows;
  for (const auto& [name, tensor] : inputs) rows.push_back(tensor);
  const at::NoGradGuard no_grad;
  module->eval();
  const Tensors expected = forward(rows);
  model.outputs.clear();
  for (size_t i = 0; i < expected.size(); ++i) model.outputs.push_back("out" + std::to_string(i));
  REQUIRE(export_onnx(dir / "model.onnx", model) == absl::OkStatus());
  const OnnxRun run = run_onnx(dir / "model.onnx", inputs);
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("output " << i);
    CHECK(run.outputs[i].second.scalar_type() == expected[i].scalar_type());
    CHECK(largest_difference(run["out" + std::to_string(i)], expected[i]) <= most);
  }
  CHECK(run.facts["opset"] == 17);
  for (const auto& [name, tensor] : inputs) CHECK(run.facts["inputs"][name][0] == "batch");
}

std::string refused(const std::function<Tensors(const Tensors&)>& forward,
                    const at::Tensor& example = torch::rand({2, 4})) {
  const TempDir dir;
  const absl::Status status =
      export_onnx(dir / "model.onnx", {.module = NoParameters().ptr(), .inputs = {{"x", example}}, .forward = forward});
  CHECK(std::filesystem::is_empty(dir.path()));
  CHECK(exit_code(status) == ExitCode::kUsage);
  return error_line(status);
}

}  // namespace

TEST_CASE("Networks give ONNX Runtime's results for any number of rows", "[nn][onnx]") {
  if (!has_onnx_runtime()) TRAINKIT_SKIP("no Python with onnx and onnxruntime");
  torch::manual_seed(1);
  SECTION("ResNet18") {
    ResNet18 net(ResNet18Options{.num_classes = 5});
    net->forward(torch::rand({4, 3, 64, 64}));  // statistics of batch normalisation
    check_export(
        net.ptr(), {{"images", torch::rand({3, 3, 64, 64})}},
        [net](const Tensors& in) mutable { return Tensors{net->forward(in[0])}; }, 1e-4);
  }
  SECTION("a perceptron, layer normalisation and an encoder layer") {
    torch::nn::TransformerEncoderLayer layer(torch::nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32));
    check_export(layer.ptr(), {{"x", torch::randn({5, 7, 16})}}, [layer](const Tensors& in) mutable {
      return Tensors{layer->forward(in[0].transpose(0, 1), {}, {}).transpose(0, 1)};
    });
  }
  SECTION("convolutions of one to three dimensions") {
    struct Nets : torch::nn::Module {
      torch::nn::Conv1d one =
          register_module("one", torch::nn::Conv1d(torch::nn::Conv1dOptions(3, 4, 3).stride(2).padding(1)));
      torch::nn::Conv2d two =
          register_module("two", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, {3, 2}).dilation(2).groups(3)));
      torch::nn::Conv3d three =
          register_module("three", torch::nn::Conv3d(torch::nn::Conv3dOptions(2, 4, 3).bias(false)));
      SyncBatchNorm norm = register_module("norm", SyncBatchNorm(4));
    };
    const auto nets = std::make_shared<Nets>();
    check_export(
        nets,
        {{"a", torch::randn({4, 3, 20})}, {"b", torch::randn({4, 3, 9, 9})}, {"c", torch::randn({4, 2, 5, 6, 7})}},
        [nets](const Tensors& in) {
          return Tensors{nets->one(in[0]), nets->two(in[1]), nets->norm->forward_relu(nets->three(in[2]))};
        });
  }
  SECTION("a mel spectrogram") {
    MelSpectrogram mel(
        MelSpectrogramOptions{.n_fft = 400, .win_length = 320, .hop_length = 160, .n_mels = 40, .log_floor = 1e-6});
    check_export(
        mel.ptr(), {{"samples", torch::randn({3, 8000}) * 0.1}},
        [mel](const Tensors& in) mutable { return Tensors{mel->forward(in[0])}; }, 1e-3);
  }
}

TEST_CASE("Operations give ONNX Runtime's results", "[nn][onnx]") {
  if (!has_onnx_runtime()) TRAINKIT_SKIP("no Python with onnx and onnxruntime");
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({3, 4, 5}), bytes = torch::randint(0, 255, {3, 4, 5}, torch::kByte),
                   on = torch::rand({3, 4}) > 0.5;
  const at::Tensor table = torch::randn({256, 2}), weight = torch::randn({4, 5});
  check_export(NoParameters().ptr(), {{"x", x}, {"bytes", bytes}, {"on", on}}, [=](const Tensors& in) {
    const at::Tensor &a = in[0], &b = in[1], &mask = in[2];
    const at::Tensor real = b.to(torch::kFloat) / 255;
    const auto parts = a.chunk(2, 1);
    return Tensors{
        (a + 2 * real - 1.5).mul(mask.unsqueeze(2)),
        (1 - a).square().sum({1, 2}) / 3,
        a.var({2}, /*unbiased=*/false, /*keepdim=*/true).sqrt(),
        at::cat({parts[1], parts[0]}, 1).flatten(1),
        at::stack({a.select(1, -1), a.select(1, 0)}, 2),
        a.masked_fill(mask.logical_not().unsqueeze(2), -1e9).softmax(1),
        at::gelu(a) + at::gelu(a, "tanh") + a.sigmoid() * a.tanh() + a.clamp(-0.5, 0.5).exp(),
        at::embedding(table, b.to(torch::kLong)).mean({1, 2}),
        a.permute({0, 2, 1}).reshape({-1, 2, 10}).slice(2, 1, 9, 2).expand({-1, 2, 4}),
        at::where(mask, a.mean(2), at::zeros_like(a.narrow(2, 0, 1).squeeze(2))),
        at::matmul(weight, a.transpose(1, 2)).log_softmax(-1),
        (a.abs() + 1).rsqrt().pow(2).log(),
        b + 1,
    };
  });
}

TEST_CASE("An operation that ONNX lacks is refused by name, and nothing is written", "[nn][onnx]") {
  CHECK_THAT(refused([](const Tensors& in) { return Tensors{in[0].cumsum(1)}; }),
             Catch::Contains("NoParameters") && Catch::Contains("the operation aten::cumsum"));
  CHECK_THAT(refused([](const Tensors& in) { return Tensors{in[0] + in[0].max().item<float>()}; }),
             Catch::Contains("cannot be written as ONNX"));
  CHECK_THAT(refused([](const Tensors& in) { return Tensors{at::dropout(in[0], 0.5, /*train=*/true)}; }),
             Catch::Contains("aten::dropout: training mode"));
  CHECK_THAT(refused([](const Tensors& in) {
               return Tensors{in[0].view({-1}) * 2, in[0].cos()};
             }),
             Catch::Contains("aten::cos"));
  // A sum that LibTorch does not see.
  CHECK_THAT(refused([](const Tensors& in) {
               const auto* data = in[0].const_data_ptr<float>();
               return Tensors{in[0] * at::full({1}, data[0] + data[1])};
             }),
             Catch::Contains("cannot be written as ONNX"));
  CHECK_THAT(refused([](const Tensors& in) {
               return Tensors{in[0].sum(0, true).expand({in[0].size(0), 4}) * 1};
             }),
             Catch::Contains("depends on the number of rows"));
  CHECK_THAT(refused([](const Tensors& in) {
               const at::Tensor x = in[0].mul(2), view = x.view({-1, 2, 2});
               x.relu_();
               return Tensors{view.sum(2)};
             }),
             Catch::Contains("aten::relu_"));
}

TEST_CASE("An export leaves the module as it was", "[nn][onnx]") {
  const TempDir dir;
  torch::nn::Linear net(4, 2);
  net->bias.requires_grad_(false);
  net->train();
  REQUIRE(export_onnx(dir / "model.onnx", {.module = net.ptr(),
                                           .inputs = {{"x", torch::rand({1, 4})}},
                                           .forward = [net](const Tensors& in) mutable {
                                             return Tensors{net(in[0])};
                                           }}) == absl::OkStatus());
  CHECK(net->is_training());
  CHECK(net->weight.requires_grad());
  CHECK_FALSE(net->bias.requires_grad());
}
