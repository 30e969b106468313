// Checkpoints of ranks that divide the training state: each rank writes its parts, and the files are those of one rank.
#include <torch/torch.h>

#include "distributed/rank_threads.h"
#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/core/status.h"
#include "trainkit/data/sampler.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// A channels_last convolution, whose parts are no ranges of a file, a tied weight, a frozen one and a buffer.
struct MixedNetImpl : torch::nn::Module {
  MixedNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 2).bias(false)));
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    in = register_module("in", torch::nn::Linear(6, 33));
    tied = register_parameter("tied", at::zeros({6, 33}));
    register_parameter("again", tied);
    out = register_module("out", torch::nn::Linear(6, 4));
    frozen = register_parameter("frozen", torch::ones({5}), /*requires_grad=*/false);
    scale = register_buffer("scale", at::full({3}, 0.5));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor image = x.view({-1, 2, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor hidden = in(conv(image).flatten(1).relu()).relu();
    return out(at::linear(hidden, tied).relu()) * scale[0];
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear in{nullptr}, out{nullptr};
  at::Tensor tied, frozen, scale;
};
TORCH_MODULE(MixedNet);

struct SavedRun {
  Sharding sharding = Sharding::kNone;
  std::string optimizer = "adamw";
  int64_t ranks = 2;
  double ema_decay = 0;
};

absl::Status run_rank(ProcessGroup& group, const SavedRun& run, const std::string& output_dir) try {
  const DeviceReplicatorOptions placing{.strategy = Strategy::kDistributed,
                                        .device = at::kCPU,
                                        .process_group = std::shared_ptr<ProcessGroup>(&group, [](ProcessGroup*) {}),
                                        .sharding = run.sharding,
                                        .bucket_bytes = 512,
                                        .first_bucket_bytes = 128};
  const auto devices = DeviceReplicator::create([] { return MixedNet(); }, placing).value();
  double shift = 0;
  for (const at::Tensor& weight : devices->module()->parameters()) {
    const at::NoGradGuard no_grad;
    weight.copy_(at::arange(weight.numel(), at::kFloat).mul(0.7).add(++shift).cos().mul(0.3).view(weight.sizes()));
  }
  const auto dataset = tiny_dataset(96);
  const DistributedSamplerOptions share{
      .rank = group.rank(), .world_size = group.world_size(), .tail = UnevenTail::kPad};
  const auto loader =
      Prefetcher::create(dataset, DistributedSampler(RandomSampler(96, {.seed = 3}), share), {.batch_size = 4}).value();
  const TrainerOptions options{
      .max_epochs = 0, .max_steps = 6, .ema_decay = run.ema_decay, .save_every = 3, .output_dir = output_dir};
  auto trainer = run.optimizer == "muon" ? Trainer::create(*devices, Muon({.lr = 0.01}), options)
                                         : Trainer::create(*devices, AdamW({.lr = 0.01}), options);
  TRAINKIT_RETURN_IF_ERROR(trainer.status());
  const auto loss = [](MixedNet& model, const Batch& batch) {
    return at::cross_entropy_loss(model->forward(batch["x"]), batch["y"]);
  };
  return trainer->fit(*loader, loss).status();
} catch (...) {
  return status_from_current_exception();
}

std::vector<std::string> run_ranks(const SavedRun& run, const std::string& output_dir) {
  return on_ranks(run.ranks, [&](ProcessGroup& group) { return run_rank(group, run, output_dir); },
                  {.timeout = std::chrono::seconds(20)});
}

std::string file_of(const std::string& output_dir, int64_t step, const std::string& name) {
  const std::string path = output_dir + "/checkpoints/step-0000000" + std::to_string(step) + "/" + name;
  return Fs::posix().read_file(path, 1 << 20).value();
}

}  // namespace

TEST_CASE("Checkpoints of ranks that divide the training state have the bytes of those without --shard",
          "[train][saves][sharding]") {
  const auto optimizer = GENERATE(as<std::string>(), "adamw", "muon");
  const int64_t ranks = GENERATE(1, 2, 3);
  const double ema_decay = GENERATE(0.0, 0.9);
  CAPTURE(optimizer, ranks, ema_decay);
  const TempDir dir;
  SavedRun run{.optimizer = optimizer, .ranks = ranks, .ema_decay = ema_decay};
  for (const auto& [name, sharding] : {std::pair("none", Sharding::kNone), std::pair("optimizer", Sharding::kOptimizer),
                                       std::pair("gradients", Sharding::kGradients)}) {
    run.sharding = sharding;
    for (const std::string& text : run_ranks(run, dir / name)) REQUIRE(text == "ok");
    for (const int64_t step : {3, 6}) {
      CAPTURE(name, step);
      CHECK(verify_checkpoint({.folder = dir / (std::string(name) + "/checkpoints"), .step = step}).ok());
      for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        CAPTURE(file);
        CHECK(file_of(dir / name, step, file).size() > 2000);
        CHECK(file_of(dir / name, step, file) == file_of(dir / "none", step, file));
      }
    }
  }
}
