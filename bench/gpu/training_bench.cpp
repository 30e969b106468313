// Whole training steps on a GPU, as in a run: copy of a page-locked batch to the device, forward, loss, backward,
// clipping for language models, fused optimizer. Each case runs eagerly and as one CUDA graph. The peer,
// peers/gpu_training.py, trains the same models in Python. Both use LibTorch's default precision of float32 (products
// without TF32, convolutions with TF32), and cuDNN's fastest algorithms (cudnn.benchmark).
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include "device_rate.h"
#include "gpt2_recommender/models.h"
#include "hsi/networks.h"
#include "hsi_classification/feed.h"
#include "training_run.h"
#include "trainkit/nn/functional.h"
#include "trainkit/nn/resnet18.h"

namespace trainkit::bench {
namespace {

using MakeRun = std::function<TrainingRun(const TrainStepOptions&)>;

/// Measures the steps of `make(options)`, each `work` items, and reports items per second as `counter`.
void train(benchmark::State& state, const char* counter, int64_t work, const MakeRun& make,
           const TrainStepOptions& options) {
  at::globalContext().setBenchmarkCuDNN(true);
  torch::manual_seed(0);
  double steps = 0;
  {
    TrainingRun run = make(options);
    for (int k = 0; k < 10; ++k) run.step();  // including the capture
    for (auto _ : state) {
      steps = device_rate(quick() ? 0.05 : 0.8, [&] {
        run.step();
        return 1;
      });
      state.SetIterationTime(1 / steps);
    }
    if (options.cuda_graph != CudaGraph::kOff &&
        (run.train_step().graph_steps() == 0 || !run.train_step().uses_graphs())) {
      state.SkipWithError(("no CUDA graph: " + run.train_step().graph_reason()).c_str());
    }
  }
  state.counters[counter] = steps * static_cast<double>(work);
  at::accelerator::emptyCache();
}

/// Adds `name`_eager and `name`_graph.
void add_both(const std::string& name, const char* counter, int64_t work, const MakeRun& make,
              TrainStepOptions options = {}) {
  for (const CudaGraph graph : {CudaGraph::kOff, CudaGraph::kOn}) {
    options.cuda_graph = graph;
    add_case(name + (graph == CudaGraph::kOff ? "_eager" : "_graph"),
             [=](benchmark::State& state) { train(state, counter, work, make, options); });
  }
}

/// nanoGPT's model for a GPU (train_shakespeare_char).
LanguageModelTask nano_gpt_for_gpu() {
  return {.rows = 64, .model = {.vocab_size = 65, .block_size = 256, .n_layers = 6, .n_heads = 6, .hidden_dim = 384}};
}

/// GPT-2, 124 M parameters, without biases.
LanguageModelTask gpt2() {
  return {.rows = 8,
          .model = {.vocab_size = 50257, .block_size = 1024, .n_layers = 12, .n_heads = 12, .hidden_dim = 768}};
}

void add_language_models() {
  const std::vector<std::pair<std::string, LanguageModelTask>> tasks = {
      {"small", nano_gpt_for_cpu()}, {"baby", nano_gpt_for_gpu()}, {"gpt2", gpt2()}};
  for (const auto& [name, task] : tasks) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      add_both("BM_GpuLanguageModel/" + name + (precision == Precision::kFp32 ? "_fp32" : "_bf16"), "tokens",
               task.tokens(),
               [task = task](const TrainStepOptions& options) { return language_model_run(task, options, kGpu); },
               {.precision = precision});
    }
  }
}

/// The image is on the device, as with --feed device; a batch has pixels and labels.
TrainingRun hsi_run(const HsiTask& task, const TrainStepOptions& options) {
  constexpr int64_t kSide = 145;
  const int64_t side = kSide + task.model.patch_size - 1;
  const auto feed = std::make_shared<hsi::Feed>(hsi::FeedKind::kDevice, torch::rand({side, side, task.model.bands}),
                                                task.model.patch_size, std::vector<at::Device>{kGpu});
  const auto batch = [&] {
    return std::vector<at::Tensor>{torch::randint(kSide * kSide, {task.batch_size}, at::kLong),
                                   torch::zeros({task.batch_size}, at::kByte),
                                   torch::randint(task.model.num_classes, {task.batch_size}, at::kLong)};
  };
  return TrainingRun(
      [model = task.model] { return hsi::create_model(model); }, std::make_unique<AdamW>(),
      [feed](hsi::HsiModel& model, const Batch& batch) {
        return cross_entropy(model.forward(feed->patches(batch)), batch["y"]);
      },
      made_up_batches(8, {{"pixel", at::kLong, {}}, {"orientation", at::kByte, {}}, {"y", at::kLong, {}}}, batch),
      options, kGpu);
}

constexpr int64_t kPictures = 32;

ResNet18 channels_last_resnet18() {
  ResNet18 model(ResNet18Options{.num_classes = 7});
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  return model;
}

TrainingRun resnet18_run(const TrainStepOptions& options) {
  const auto batch = [] {
    return std::vector<at::Tensor>{torch::randn({kPictures, 3, 224, 224}).contiguous(at::MemoryFormat::ChannelsLast),
                                   torch::randint(7, {kPictures}, at::kLong)};
  };
  return TrainingRun(
      channels_last_resnet18, std::make_unique<AdamW>(),
      [](ResNet18& model, const Batch& batch) { return cross_entropy(model->forward(batch["x"]), batch["y"]); },
      made_up_batches(4, {{"x", at::kFloat, {3, 224, 224}}, {"y", at::kLong, {}}}, batch), options, kGpu);
}

constexpr int64_t kTriplets = 2048, kUsers = 6040, kItems = 3706;  // MovieLens 1M

TrainingRun bpr_run(const TrainStepOptions& options) {
  const auto ids = [](int64_t count) { return torch::randint(count, {kTriplets}, at::kLong); };
  return TrainingRun(
      [] { return std::make_shared<rec::BprMf>(kUsers, kItems, 64); }, std::make_unique<Adam>(),
      [](rec::BprMf& model, const Batch& batch) {
        return model.loss(batch["users"], batch["pos_items"], batch["neg_items"]);
      },
      made_up_batches(8, {{"users", at::kLong, {}}, {"pos_items", at::kLong, {}}, {"neg_items", at::kLong, {}}},
                      [&] {
                        return std::vector<at::Tensor>{ids(kUsers), ids(kItems), ids(kItems)};
                      }),
      options, kGpu);
}

}  // namespace

void add_training_cases() {
  add_language_models();
  for (const char* name : {"cnn2d", "cnn3d", "hybridsn", "ssrn"}) {
    const HsiTask task = hsi_task(name);
    add_both(std::string("BM_GpuHsi/") + name, "patches", task.batch_size,
             [task](const TrainStepOptions& options) { return hsi_run(task, options); });
  }
  add_both("BM_GpuResNet18/bf16", "pictures", kPictures, resnet18_run, {.precision = Precision::kBf16});
  add_both("BM_GpuBprMf/adam", "samples", kTriplets, bpr_run);
}

}  // namespace trainkit::bench
