// Exported models with what a program adds to a training: players, gradient penalties, adapters, predictions, other
// formats. Each has the bits of the same model as a C++ class.
#include "nn/exported/made_model.h"
#include "read_text.h"
#include "test_util.h"
#include "train/gan.h"
#include "train/trainer_run.h"
#include "trainkit/app/predictor.h"
#include "trainkit/nn/exported_model.h"
#include "trainkit/nn/linear.h"
#include "trainkit/nn/lora.h"
#include "trainkit/onnx/onnx.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

/// Two linear layers called "0" and "2" with a ReLU between them, as torch::nn::Sequential names them.
ExportedModel exported_mlp(const NamedTensors& weights) {
  const TempDir dir;
  MadeModel model(weights, {{"x", "float32", {-1, weights[0].second.size(1)}}});
  TORCH_CHECK(model
                  .write(dir / "model.tkm",
                         [](MadeModel& m) {
                           const auto layer = [&](const Json& input, const std::string& name) {
                             return m.call(
                                 "aten::linear",
                                 {{"input", input}, {"weight", m[name + ".weight"]}, {"bias", m[name + ".bias"]}});
                           };
                           return layer(m.call("aten::relu", {{"self", layer(m["x"], "0")}}), "2");
                         })
                  .ok());
  return ExportedModel::load(dir / "model.tkm").value();
}

torch::nn::Sequential mlp(int64_t in, int64_t out) {
  using torch::nn::Linear;
  return torch::nn::Sequential(Linear(in, 16), torch::nn::ReLU(), Linear(16, out));
}

/// Players that are C++ classes, or exported.
template <bool exported>
struct PairImpl : torch::nn::Module {
  PairImpl() {
    torch::manual_seed(2);
    auto g = mlp(4, 8), d = mlp(8, 1);
    if constexpr (exported) {
      generator = register_module("generator", exported_mlp(named_tensors(*g)));
      discriminator = register_module("discriminator", exported_mlp(named_tensors(*d)));
    } else {
      generator = register_module("generator", g);
      discriminator = register_module("discriminator", d);
    }
  }
  using Part = std::conditional_t<exported, ExportedModel, torch::nn::Sequential>;
  Part generator{nullptr}, discriminator{nullptr};
};

/// The holder that LossFunction passes on.
template <bool exported>
struct PairOf : torch::nn::ModuleHolder<PairImpl<exported>> {
  using torch::nn::ModuleHolder<PairImpl<exported>>::ModuleHolder;
};

at::Tensor score(auto& pair, const at::Tensor& x) { return pair->discriminator->forward(x); }

/// The squared distance of the discriminator's slope from 1 (Gulrajani et al., arXiv 1704.00028).
at::Tensor slope_penalty(auto& pair, const at::Tensor& x) {
  const at::Tensor input = x.detach().requires_grad_();
  const auto slope = torch::autograd::grad({score(pair, input).sum()}, {input}, {}, true, /*create_graph=*/true)[0];
  return (slope.norm(2, 1) - 1).square().mean();
}

template <bool exported>
std::vector<Player> players() {
  using Pair = PairOf<exported>;
  const auto adam = [] { return std::make_shared<Adam>(AdamOptions{.lr = 1e-2}); };
  return {
      {.name = "d",
       .parameters = {"discriminator.*"},
       .optimizer = adam(),
       .loss =
           [](Pair& pair, const Batch& batch, const Shared& shared) {
             const at::Tensor fake = shared.at("fake").detach();
             return score(pair, fake).mean() - score(pair, batch["x"]).mean() + slope_penalty(pair, fake);
           }},
      {.name = "g",
       .parameters = {"generator.*"},
       .optimizer = adam(),
       .loss = [](Pair& pair, const Batch&, const Shared& shared) { return -score(pair, shared.at("fake")).mean(); }}};
}

template <bool exported>
NamedTensors weights_of_players() {
  using Pair = PairOf<exported>;
  const auto devices = DeviceReplicator::create([] { return Pair(); }, {.device = at::kCPU}).value();
  const auto fake = [](Pair& pair, const Batch& batch) -> Shared {
    return {{"fake", pair->generator->forward(batch["z"])}};
  };
  TrainStep step(*devices, players<exported>(), fake, {});
  for (int64_t k = 0; k < 6; ++k) step(gan_batch(k));
  NamedTensors copies;
  for (const auto& [name, tensor] : named_tensors(*devices->module())) copies.emplace_back(name, tensor.clone());
  return copies;
}

/// TinyNet's task on the layers "0" and "2".
NamedTensors first_weights() {
  torch::manual_seed(3);
  return {{"0.weight", torch::randn({16, 8}) * 0.3},
          {"0.bias", torch::randn({16}) * 0.1},
          {"2.weight", torch::randn({4, 16}) * 0.3},
          {"2.bias", torch::randn({4}) * 0.1}};
}

/// The model as layers that carry adapters.
struct AdaptedNetImpl : torch::nn::Module {
  AdaptedNetImpl() {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : first_weights()) named_parameters()[name].copy_(tensor);
  }
  trainkit::Linear hidden = register_module("0", trainkit::Linear(8, 16));
  trainkit::Linear out = register_module("2", trainkit::Linear(16, 4));
  at::Tensor forward(const at::Tensor& x) { return out->forward(hidden->forward(x).relu()); }
};
TORCH_MODULE(AdaptedNet);

template <class Net>
NamedTensors weights_after_lora(const std::function<Net()>& make) {
  const auto adapted = [&] {
    Net net = make();
    torch::manual_seed(5);
    TORCH_CHECK(apply_lora(*net, {.rank = 2, .targets = {"0"}}).ok());
    return net;
  };
  auto devices = DeviceReplicator::create(adapted, {.device = at::kCPU}).value();
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), {.max_steps = 6}).value();
  const auto loader = tiny_loader(60, 6);
  trainer.fit(*loader, [](Net& net, const Batch& b) { return at::cross_entropy_loss(net->forward(b["x"]), b["y"]); })
      .value();
  NamedTensors copies;
  for (const auto& [name, tensor] : named_tensors(*devices->module())) copies.emplace_back(name, tensor.clone());
  std::sort(copies.begin(), copies.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return copies;
}

}  // namespace

TEST_CASE("Two players on exported models with a gradient penalty have the bits of C++ classes", "[train][exported]") {
  const NamedTensors expected = weights_of_players<false>(), found = weights_of_players<true>();
  REQUIRE(expected.size() == 8);
  CHECK(same_bits(found, expected));
}

TEST_CASE("Adapters of an exported model train as those of C++ layers, within rounding", "[train][exported][lora]") {
  const NamedTensors expected = weights_after_lora<AdaptedNet>([] { return AdaptedNet(); });
  const NamedTensors found = weights_after_lora<ExportedModel>([] { return exported_mlp(first_weights()); });
  REQUIRE(expected.size() == 6);
  REQUIRE(found.size() == 6);
  for (size_t k = 0; k < found.size(); ++k) {
    CAPTURE(found[k].first);
    CHECK(found[k].first == expected[k].first);
    CHECK(torch::allclose(found[k].second, expected[k].second, 1e-4, 1e-6));
  }
  CHECK(found[2].first == "0.lora_B.weight");
  CHECK(found[2].second.abs().max().item<float>() > 0);  // it began as 0
}

TEST_CASE("Adapters of an exported model are merged, restored, copied and written", "[train][exported][lora]") {
  ExportedModel model = exported_mlp(first_weights());
  const LoRAConfig config{.rank = 2, .targets = {"2"}};
  REQUIRE(apply_lora(*model, config).ok());
  {
    const torch::NoGradGuard no_grad;
    model->named_parameters()["2.lora_B.weight"].fill_(0.5);
  }
  const at::Tensor x = torch::randn({3, 8}), adapted = model->forward(x);
  ExportedModel copy = model.copy();
  CHECK(copy->forward(x).equal(adapted));
  CHECK(copy->named_parameters()["2.lora_A.weight"].requires_grad());
  CHECK_FALSE(copy->named_parameters()["2.weight"].requires_grad());
  merge_lora(*model);
  CHECK(torch::allclose(model->forward(x), adapted, 1e-5, 1e-6));
  unmerge_lora(*model);
  const TempDir dir;
  REQUIRE(save_lora(*model, config, dir.path().string()).ok());
  ExportedModel other = exported_mlp(first_weights());
  REQUIRE(load_lora(*other, dir.path().string()).ok());
  CHECK(other->forward(x).equal(adapted));

  ExportedModel plain = exported_mlp(first_weights());
  CHECK_THAT(std::string(apply_lora(*plain, {.dropout = 0.1, .targets = {"0"}}).message()),
             Contains("the adapter of an exported layer has no dropout"));
  CHECK_THAT(std::string(apply_lora(*plain, {.targets = {"3"}}).message()), Contains("no layer is called '3'"));
  CHECK(plain->parameters().size() == 4);
}

TEST_CASE("A step of an exported model whose loss is not finite is skipped", "[train][exported]") {
  const auto devices =
      DeviceReplicator::create([] { return exported_mlp(first_weights()); }, {.device = at::kCPU}).value();
  auto trainer =
      Trainer::create(*devices, AdamW({.lr = 1e-2}), {.max_steps = 5, .on_nonfinite = OnNonfinite::kSkip}).value();
  int64_t calls = 0;
  const auto result = trainer
                          .fit(*tiny_loader(60, 6),
                               [&](ExportedModel& net, const Batch& batch) {
                                 const at::Tensor loss = at::cross_entropy_loss(net->forward(batch["x"]), batch["y"]);
                                 return ++calls == 2 ? loss / 0 : loss;
                               })
                          .value();
  CHECK(calls >= 5);
  for (const auto& [name, tensor] : named_tensors(*devices->module())) CHECK(tensor.isfinite().all().item<bool>());
}

TEST_CASE("The Predictor runs an exported model with a run's weights", "[train][exported]") {
  const TempDir dir;
  ExportedModel trained = exported_mlp(first_weights());
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : trained->parameters()) parameter.mul_(2);
  }
  trained->eval();
  REQUIRE(save_safetensors(Fs::posix(), dir / "best.safetensors", named_tensors(*trained), {{"step", "1"}}).ok());
  auto predictor = Predictor::open(dir.path().string(), [] { return exported_mlp(first_weights()); }).value();
  std::vector<at::Tensor> outputs;
  const auto rows = tiny_dataset(40);
  predictor
      .run(
          rows, [](ExportedModel& net, const Batch& batch) { return net->forward(batch["x"]); },
          [&](const Batch& batch, const at::Tensor& output) {
            CHECK(output.equal(trained->forward(batch["x"])));
            outputs.push_back(output);
            return absl::OkStatus();
          })
      .value();
  CHECK(at::cat(outputs).sizes() == at::IntArrayRef({40, 4}));
}

TEST_CASE("An exported model is written as ONNX, with the weights under their names", "[train][exported]") {
  const TempDir dir;
  ExportedModel model = exported_mlp(first_weights());
  const auto write = [&](const std::string& path, auto& net) {
    return export_onnx(path, {.module = net.ptr(),
                              .inputs = {{"x", torch::ones({1, 8})}},
                              .forward = [&](const auto& in) { return std::vector{net->forward(in[0])}; }});
  };
  REQUIRE(write(dir / "exported.onnx", model).message() == "");
  AdaptedNet net;
  REQUIRE(write(dir / "class.onnx", net).message() == "");
  // All but the name of the class, which begins after the last call and ends before the weights.
  const std::string found = read_text(dir / "exported.onnx"), expected = read_text(dir / "class.onnx");
  const auto calls_of = [](const std::string& text) {
    const size_t first = text.find("0.weight");
    return text.substr(first, text.find("Identity") - first);
  };
  const auto weights_of = [](const std::string& text) { return text.substr(text.rfind("0.weight")); };
  CHECK(calls_of(found).find("Gemm") != std::string::npos);
  CHECK(calls_of(found) == calls_of(expected));
  CHECK(weights_of(found) == weights_of(expected));
}
