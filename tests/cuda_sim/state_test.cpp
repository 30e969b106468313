// State of a run on simulated devices: copies to the host, contents of a save, and replicas on several devices.
#include <c10/cuda/CUDAFunctions.h>
#include <torch/torch.h>

#include "core/device/host_tensors.h"
#include "cuda_sim_control.h"
#include "test_util.h"
#include "train/checkpoint/background_saves.h"
#include "trainkit/data/sampler.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/nn/functional.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

const at::Device kGpu(at::kCUDA, 0);

/// The device's counts while `work` ran.
struct Counted {
  explicit Counted(const std::function<void()>& work) {
    const nlohmann::json before = cuda_sim_counts();
    work();
    const nlohmann::json after = cuda_sim_counts();
    pageable = after["pageable"].get<int64_t>() - before["pageable"].get<int64_t>();
    to_host = after["to_host"].get<int64_t>() - before["to_host"].get<int64_t>();
    waits = after["stream_syncs"].get<int64_t>() - before["stream_syncs"].get<int64_t>();
  }
  int64_t pageable, to_host, waits;
};

/// Tensors of all layouts and some dtypes, on the CPU.
std::vector<at::Tensor> all_kinds() {
  torch::manual_seed(3);
  const at::Tensor image = torch::randn({2, 3, 4, 5});
  return {image,
          image.contiguous(at::MemoryFormat::ChannelsLast),
          image[0][0].t(),
          image.slice(3, 1, 4),
          torch::randn({7}).to(at::kBFloat16),
          torch::ones({3}, torch::kBool),
          torch::tensor(4.5),
          torch::empty({0, 3}),
          torch::randn({3}, torch::kComplexFloat).conj(),
          torch::randn({1000})};
}

std::vector<at::Tensor> on_gpu(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = tensor.to(kGpu);
  c10::cuda::device_synchronize();
  return tensors;
}

void check_equal(const at::Tensor& found, const at::Tensor& expected) {
  CHECK(found.is_cpu());
  CHECK(found.is_contiguous());
  CHECK(found.scalar_type() == expected.scalar_type());
  CHECK(torch::equal(found, expected.resolve_conj()));
}

struct ImageNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return second(first(x).relu()).mean({2, 3}); }
  torch::nn::Conv2d first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)));
  torch::nn::Conv2d second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 3)));
};
TORCH_MODULE(ImageNet);

/// Gradients of one step with nine images, on the CPU.
std::vector<at::Tensor> image_gradients(const DeviceReplicatorOptions& options, bool channels_last) {
  torch::manual_seed(5);
  const at::Tensor images = torch::randn({9, 3, 8, 8}), labels = torch::randint(4, {9});
  const auto devices = DeviceReplicator::create(
                           [&] {
                             ImageNet net;
                             if (!channels_last) return net;
                             for (at::Tensor parameter : net->parameters()) {
                               if (parameter.dim() == 4)
                                 parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
                             }
                             return net;
                           },
                           options)
                           .value();
  const int64_t rows = 9 / devices->replicas();
  devices->run([&](int64_t replica) {
    const at::Device device = devices->device(replica);
    auto* net = devices->module(replica)->as<ImageNetImpl>();
    const at::Tensor x = images.narrow(0, replica * rows, rows).to(device);
    return cross_entropy(net->forward(x), labels.narrow(0, replica * rows, rows).to(device)) /
           static_cast<double>(devices->replicas());
  });
  std::vector<at::Tensor> gradients;
  for (int64_t replica = 0; replica < devices->replicas(); ++replica) {
    for (const at::Tensor& parameter : devices->module(replica)->parameters())
      gradients.push_back(parameter.grad().cpu());
  }
  return gradients;
}

}  // namespace

TEST_CASE("Tensors of a device are copied to the host with one synchronisation, through page-locked memory",
          "[cuda_sim][state]") {
  const std::vector<at::Tensor> expected = all_kinds(), tensors = on_gpu(expected);
  std::vector<at::Tensor> found;
  trainkit::detail::HostBuffer buffer;
  const Counted counted([&] { found = trainkit::detail::copy_to_host(tensors, buffer); });
  CHECK(counted.pageable == 0);
  CHECK(counted.to_host == std::ssize(tensors) - 1);  // one is empty
  CHECK(counted.waits == 1);
  for (size_t i = 0; i < found.size(); ++i) {
    INFO(i);
    check_equal(found[i], expected[i]);
    if (found[i].numel() > 0) CHECK(found[i].is_pinned());
  }
  SECTION("a buffer in use is not reused") {
    const auto again = trainkit::detail::copy_to_host(tensors, buffer);
    CHECK(again[0].data_ptr() != found[0].data_ptr());
    check_equal(found[0], expected[0]);
  }
  SECTION("a free buffer is reused") {
    const void* before = found[0].data_ptr();
    found.clear();
    CHECK(trainkit::detail::copy_to_host(tensors, buffer)[0].data_ptr() == before);
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("A file's tensors are copied through one buffer, as many at a time as fit", "[cuda_sim][state]") {
  const std::vector<at::Tensor> expected = all_kinds(), tensors = on_gpu(expected);
  for (const auto& [room, waits] : {std::pair<int64_t, int64_t>{1 << 20, 1}, {1024, 3}, {1, 9}}) {
    trainkit::detail::HostTensors on_host(tensors, room);
    const Counted counted([&] {
      for (const at::Tensor& tensor : expected) check_equal(on_host.next(), tensor);
    });
    INFO("room for " << room);
    CHECK(counted.pageable == 0);
    CHECK(counted.waits == waits);
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("A checkpoint has the weights of its step although training changes them immediately", "[cuda_sim][state]") {
  const CudaSimSetting late("DELAY_US", "2000");
  const TempDir dir;
  const at::Tensor weight = torch::full({1000}, 1.0, kGpu), moment = torch::full({1000}, 2.0, kGpu);
  BackgroundSaves saves(nullptr);
  auto store = CheckpointStore::open(dir / "run").value();
  StoreWriter writer(&store);
  for (const int64_t step : {1, 2, 3}) {
    saves.begin(step, {.model = {{"weight", weight}}, .optimizer = {{"moment", moment}}, .state = {}}, absl::OkStatus(),
                writer);
    weight.add_(1);
    moment.zero_();
    REQUIRE(saves.finish().ok());
    const auto saved = load_checkpoint({.folder = dir / "run/checkpoints", .step = step}).value();
    CHECK(torch::equal(saved.model[0].second, torch::full({1000}, static_cast<double>(step))));
    CHECK(torch::equal(saved.optimizer[0].second, torch::full({1000}, step == 1 ? 2.0 : 0.0)));
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("A buffer is kept for the next save only if saves follow one another", "[cuda_sim][state]") {
  const auto now = BackgroundSaves::TimePoint() + std::chrono::hours(9);
  CHECK_FALSE(BackgroundSaves::keeps_buffer(std::nullopt, now));
  CHECK(BackgroundSaves::keeps_buffer(now - std::chrono::seconds(60), now));
  CHECK_FALSE(BackgroundSaves::keeps_buffer(now - std::chrono::seconds(61), now));
}

TEST_CASE("Gradients that are not contiguous are summed over three devices", "[cuda_sim][state]") {
  const bool channels_last = GENERATE(false, true);
  const auto expected = image_gradients({.device = at::kCPU}, channels_last);
  const auto found = image_gradients(
      {.strategy = Strategy::kDataParallel, .device = at::Device(at::kCUDA), .gpu_ids = {0, 1, 2}}, channels_last);
  REQUIRE(found.size() == 3 * expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO(i);
    const at::Tensor& one = expected[i % expected.size()];
    CHECK(found[i].sizes() == one.sizes());
    CHECK(torch::allclose(found[i], one, 1e-4, 1e-6));
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("A run trains on the GPU by default, with a loader that does too", "[cuda_sim][state]") {
  const auto loss_on = [](const DeviceReplicatorOptions& options, at::Device expected) {
    torch::manual_seed(7);
    const at::Tensor x = torch::randn({64, 8}), y = torch::randint(3, {64});
    const auto dataset = std::make_shared<TensorDataset>(NamedTensors{{"x", x}, {"y", y}});
    const auto loader = Prefetcher::create(dataset, SequentialSampler(64), {.batch_size = 8}).value();
    const auto validation = Prefetcher::create(dataset, SequentialSampler(64), {.batch_size = 16}).value();
    const auto devices = DeviceReplicator::create([] { return torch::nn::Linear(8, 3); }, options).value();
    CHECK(devices->device() == expected);
    auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), {.max_epochs = 3, .eval_every = 5}).value();
    const auto loss = [](torch::nn::Linear& model, const Batch& batch) {
      return cross_entropy(model->forward(batch["x"]), batch["y"]);
    };
    const auto result = trainer.fit(*loader, loss, {.validation = validation.get()}).value();
    CHECK(loader->options().device == expected);
    return result.evaluation.at("loss");
  };
  const double expected = loss_on({.device = at::kCPU}, at::kCPU);
  CHECK(loss_on({}, kGpu) == Approx(expected).epsilon(1e-5));
  CHECK(loss_on({.gpu_ids = {2}}, at::Device(at::kCUDA, 2)) == Approx(expected).epsilon(1e-5));
  CHECK(DeviceReplicator::create([] { return torch::nn::Linear(8, 3); }, {.cpu_replicas = 2}).value()->device() ==
        at::kCPU);
  CHECK(take_cuda_sim_findings().empty());
}
