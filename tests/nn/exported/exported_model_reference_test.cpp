// Models that Python exports, trained here and in PyTorch: the same losses and weights, bit for bit.
#include <set>

#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/nn/exported_model.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

at::Tensor loss_of(ExportedModel& model, const SafetensorsFile& file) {
  const at::Tensor logits = model->forward(file.tensor("x").value());
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), file.tensor("y").value().reshape(-1));
}

void check_training(const std::string& folder, const std::string& name) {
  CAPTURE(name);
  auto loaded = ExportedModel::load(folder + "/" + name + ".tkm", {.exact = true});
  REQUIRE(loaded.status() == absl::OkStatus());
  ExportedModel model = *loaded;
  const SafetensorsFile file = SafetensorsFile::open(folder + "/" + name + ".safetensors").value();
  const at::Tensor losses = file.tensor("losses").value();
  torch::manual_seed(5);
  for (int64_t step = 0; step < losses.size(0); ++step) {
    model->zero_grad();
    const at::Tensor loss = loss_of(model, file);
    loss.backward();
    {
      const torch::NoGradGuard no_grad;
      std::set<const void*> updated;  // a tied parameter has two names
      for (at::Tensor& parameter : model->parameters()) {
        const bool is_new = updated.insert(parameter.unsafeGetTensorImpl()).second;
        if (is_new && parameter.grad().defined()) parameter.add_(parameter.grad(), -0.05);
      }
    }
    CHECK(loss.item<float>() == losses[step].item<float>());
  }
  model->eval();
  {
    const torch::NoGradGuard no_grad;
    CHECK(loss_of(model, file).item<float>() == file.tensor("evaluation").value().item<float>());
  }
  for (const auto& entry : model->named_parameters()) {
    CHECK(entry.value().equal(file.tensor("weight:" + entry.key()).value()));
  }
  for (const auto& entry : model->named_buffers()) {
    CHECK(entry.value().equal(file.tensor("weight:" + entry.key()).value()));
  }
  // Other numbers of rows than the example's.
  const at::Tensor x = file.tensor("x").value();
  for (const int64_t rows : {1, 3, 11}) {
    const at::Tensor some = at::cat({x, x}).slice(0, 0, rows);
    CHECK(model->forward(some).size(0) == rows);
  }
}

void check_models(const std::vector<std::string>& names, int64_t steps) {
  const TempDir dir;
  std::string arguments = dir.path().string() + " " + std::to_string(steps);
  for (const std::string& name : names) arguments += " " + name;
  run_reference("exported_model.py", arguments);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // as in Python
  for (const std::string& name : names) check_training(dir.path().string(), name);
  at::set_num_threads(threads);
}

}  // namespace

// Dropout, batch statistics, a recurrent network, tied weights, nested modes; in ./dev test --full also models of
// torchvision and transformers.
TEST_CASE("Exported models train with PyTorch's bits", "[nn][exported]") {
  if (!python_has("torch safetensors")) TRAINKIT_SKIP("no Python with torch");
  check_models({"conv", "recurrent", "tied"}, 5);
  if (is_full() && python_has("torchvision transformers")) check_models({"resnet18", "gpt2", "llama", "bert"}, 50);
}

TEST_CASE("A model that has no graph is refused with its line, and leaves no file", "[nn][exported]") {
  if (!python_has("torch safetensors")) TRAINKIT_SKIP("no Python with torch");
  const TempDir dir;
  const std::string printed = run_reference("exported_model.py", "refusals " + dir.path().string());
  using Catch::Contains;
  CHECK_THAT(printed, Contains("decides refused: torch.export cannot trace the model in training mode") &&
                          Contains("if x.sum() > 0") && Contains("decides left no file"));
  CHECK_THAT(printed, Contains("forgets refused: output output of the exported graph differs") &&
                          Contains("forgets left no file"));
  CHECK_THAT(printed, Contains("fixed as in the example: scale"));
  CHECK_THAT(printed, Contains("mine::twice is no operator of PyTorch"));
  CHECK_THAT(std::string(ExportedModel::load(dir / "foreign.tkm").status().message()), Contains("mine::twice"));
  ExportedModel scaled = ExportedModel::load(dir / "refused.tkm").value();
  CHECK(scaled->inputs().size() == 1);
  CHECK(scaled->forward(at::ones({2, 4})).size(0) == 2);
}
