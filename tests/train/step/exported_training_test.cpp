// Exported models in everything that trains: each run has the bits of the same model as a C++ class.
#include "distributed/rank_threads.h"
#include "nn/exported/handmade_model.h"
#include "test_util.h"
#include "train/trainer_run.h"
#include "trainkit/core/status.h"
#include "trainkit/nn/exported_model.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/step_memory.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// The handmade model as a class.
struct PlainNetImpl : torch::nn::Module {
  explicit PlainNetImpl(double dropout) : p(dropout) {}
  double p;
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(8, 16));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(16, 4));
  at::Tensor forward(const at::Tensor& x) { return out(at::dropout(hidden(x).relu(), p, is_training())); }
};
TORCH_MODULE(PlainNet);

std::mutex making;

PlainNet make_plain_with(double dropout) {
  const std::lock_guard lock(making);
  PlainNet net(dropout);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : handmade_tensors()) net->named_parameters()[name].copy_(tensor);
  return net;
}

PlainNet make_plain() { return make_plain_with(0.2); }

ExportedModel make_exported_with(double dropout) {
  const std::lock_guard lock(making);
  const TempDir dir;
  Json description = handmade_description();
  description["train"]["calls"][2]["args"]["p"] = dropout;
  TORCH_CHECK(write_exported(dir / "model.tkm", description).ok());
  return ExportedModel::load(dir / "model.tkm").value();
}
ExportedModel make_exported() { return make_exported_with(0.2); }

struct Settings {
  std::string name;
  TrainerOptions trainer = {};
  DeviceReplicatorOptions devices = {.device = at::kCPU};
  int64_t out_of_memory_at = -1;  // call of the loss
  std::string frozen = {};        // from step 3 on
  std::string folder = {};
};

template <class Net, class Make>
NamedTensors weights_after(const Make& make, const Settings& settings) {
  auto devices = DeviceReplicator::create(make, settings.devices).value();
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), settings.trainer).value();
  const auto loader = tiny_loader(60, 6);
  std::atomic<int64_t> calls = 0;
  const auto loss = [&](Net& net, const Batch& batch) {
    if (++calls == settings.out_of_memory_at) throw c10::OutOfMemoryError({__func__, __FILE__, 0}, "no memory");
    return at::cross_entropy_loss(net->forward(batch["x"]), batch["y"]);
  };
  torch::manual_seed(12);
  Session session = trainer.begin(*loader, loss).value();
  while (session.step().value()) {
    if (session.progress().step == 3 && !settings.frozen.empty()) {
      session.set_trainable(settings.frozen, false).IgnoreError();
    }
  }
  session.finish().value();
  NamedTensors copies;
  for (const auto& [name, tensor] : named_tensors(*devices->module())) copies.emplace_back(name, tensor.clone());
  return copies;
}

void check_equal(const Settings& settings) {
  CAPTURE(settings.name);
  const NamedTensors expected = weights_after<PlainNet>(make_plain, settings);
  const NamedTensors found = weights_after<ExportedModel>(make_exported, settings);
  REQUIRE(found.size() == 4);
  CHECK(same_bits(found, expected));
}

Settings settings_of(std::string name) {
  Settings settings{.name = std::move(name)};
  settings.trainer.max_steps = 8;
  return settings;
}

}  // namespace

TEST_CASE("An exported model trains on one device, replicas and ranks with the bits of a C++ class",
          "[train][exported]") {
  check_equal(settings_of("one device"));
  Settings clipped = settings_of("accumulation, clipping, averages");
  clipped.trainer.grad_accum_steps = 2;
  clipped.trainer.grad_clip = 0.1;
  clipped.trainer.ema_decay = 0.9;
  check_equal(clipped);
  Settings half = settings_of("bf16");
  half.trainer.precision = Precision::kBf16;
  check_equal(half);
  Settings freezing = settings_of("a layer is frozen");
  freezing.frozen = "hidden.*";
  check_equal(freezing);
  Settings split = settings_of("a step runs out of memory");
  split.out_of_memory_at = 3;
  check_equal(split);
  for (const bool share : {true, false}) {
    Settings replicas = settings_of(share ? "replicas that share weights" : "replicas with their own weights");
    replicas.devices = {.device = at::kCPU, .cpu_replicas = 2, .share_weights = share};
    check_equal(replicas);
  }
}

TEST_CASE("An exported model trains on ranks, sharded too, with the bits of a C++ class", "[train][exported]") {
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    const auto on_two = [&](const auto& run) {
      std::vector<NamedTensors> weights(2);
      const auto texts = on_ranks(2, [&](ProcessGroup& group) -> absl::Status {
        Settings settings = settings_of("ranks");
        settings.devices = {.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}, .sharding = sharding};
        weights[static_cast<size_t>(group.rank())] = run(settings);
        return absl::OkStatus();
      });
      for (const std::string& text : texts) CHECK(text == "ok");
      return weights;
    };
    // Without dropout: the ranks of a test share LibTorch's default generator.
    const auto expected =
        on_two([](const Settings& s) { return weights_after<PlainNet>([] { return make_plain_with(0); }, s); });
    const auto found =
        on_two([](const Settings& s) { return weights_after<ExportedModel>([] { return make_exported_with(0); }, s); });
    CHECK(same_bits(found[0], expected[0]));
    CHECK(same_bits(found[0], found[1]));
  }
}

TEST_CASE("A run of an exported model with dropout resumes with the bits of an uninterrupted one",
          "[train][exported][resume]") {
  const TempDir dir;
  Settings whole = settings_of("whole");
  const NamedTensors expected = weights_after<ExportedModel>(make_exported, whole);
  Settings part = settings_of("part");
  part.trainer.max_steps = 5;
  part.trainer.save_every = 5;
  part.trainer.output_dir = dir / "run";
  weights_after<ExportedModel>(make_exported, part);
  part.trainer.max_steps = 8;
  part.trainer.resume = "latest";
  CHECK(same_bits(weights_after<ExportedModel>(make_exported, part), expected));
  CHECK(same_bits(weights_after<PlainNet>(make_plain, part), expected));
}

TEST_CASE("The memory of a step of an exported model is that of a C++ class", "[train][exported]") {
  const auto bytes = [](const auto& make, auto loss) {
    StepRecipe recipe;
    recipe.make_model = [make] { return make().ptr(); };
    recipe.make_optimizer = [] { return std::make_unique<AdamW>(AdamWOptions{.lr = 1e-2}); };
    recipe.loss = loss;
    recipe.dataset = tiny_dataset(64);
    return record_step_memory(recipe, 32, 1).value().peak().total();
  };
  const auto loss_of = [](auto& net, const Batch& batch) {
    return at::cross_entropy_loss(net->forward(batch["x"]), batch["y"]);
  };
  CHECK(bytes(make_exported, [&](ExportedModel& net, const Batch& batch) { return loss_of(net, batch); }) ==
        bytes(make_plain, [&](PlainNet& net, const Batch& batch) { return loss_of(net, batch); }));
}
