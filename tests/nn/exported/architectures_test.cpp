// Architectures of torchvision, timm and transformers, exported by Python and trained here: PyTorch's losses and
// weights.
#include <filesystem>
#include <sstream>

#include "read_text.h"
#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/nn/exported_model.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

/// The mean square of each output, summed as in tests/reference/architectures.py.
at::Tensor loss_of(const NamedTensors& outputs) {
  at::Tensor sum;
  for (const auto& [name, output] : outputs) {
    if (!output.is_floating_point()) continue;
    const at::Tensor mean = output.square().mean();
    sum = sum.defined() ? sum + mean : mean;
  }
  return sum;
}

std::unique_ptr<Optimizer> optimizer_of(const std::string& name, const ExportedModel& model) {
  std::unique_ptr<Optimizer> optimizer;
  if (name == "adamw") {
    optimizer = std::make_unique<AdamW>(AdamWOptions{.lr = 1e-3, .weight_decay = 0.01});
  } else {
    optimizer = std::make_unique<SGD>(SGDOptions{.lr = 1e-3, .momentum = 0.9});
  }
  optimizer->add_param_group({.params = trainable_parameters(*model)});
  return optimizer;
}

/// What differs from PyTorch after its steps; empty if nothing does.
std::string difference(const std::string& folder, const std::string& name) {
  auto loaded = ExportedModel::load(folder + "/" + name + ".tkm", {.exact = true});
  if (!loaded.ok()) return std::string(loaded.status().message());
  ExportedModel model = *loaded;
  const SafetensorsFile file = SafetensorsFile::open(folder + "/" + name + ".safetensors").value();
  NamedTensors inputs;
  for (const ExportedInput& input : model->inputs()) {
    inputs.emplace_back(input.name, file.tensor("input:" + input.name).value());
  }
  const at::Tensor losses = file.tensor("losses").value();
  const auto optimizer = optimizer_of(file.tensor("adamw").ok() ? "adamw" : "sgd", model);
  torch::manual_seed(5);
  for (int64_t step = 0; step < losses.size(0); ++step) {
    optimizer->zero_grad();
    const at::Tensor loss = loss_of(model->outputs(inputs));
    loss.backward();
    optimizer->step();
    if (!loss.equal(losses[step])) {
      return "loss of step " + std::to_string(step + 1) + ": " + std::to_string(loss.item<double>()) + ", in PyTorch " +
             std::to_string(losses[step].item<double>());
    }
  }
  for (const auto& entry : model->named_parameters()) {
    const at::Tensor expected = file.tensor("weight:" + entry.key()).value();
    if (!entry.value().equal(expected)) return entry.key() + " differs after the steps";
  }
  for (const auto& entry : model->named_buffers()) {
    if (!entry.value().equal(file.tensor("weight:" + entry.key()).value())) return entry.key() + " differs";
  }
  return "";
}

std::string train(const std::string& name, const std::string& folder) {
  try {
    return difference(folder, name);
  } catch (const std::exception& error) {
    return std::string(error.what()).substr(0, 600);
  }
}

}  // namespace

// ./dev test trains those with a star in the script, --full all.
TEST_CASE("Architectures that Python exports train as in PyTorch", "[nn][exported][architectures]") {
  if (!python_has("torch safetensors")) TRAINKIT_SKIP("no Python with torch");
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // as in Python
  std::istringstream names(run_reference("architectures.py", std::string("names ") + (is_full() ? "full" : "short")));
  for (std::string some; std::getline(names, some);) {
    const TempDir dir;
    for (const std::string& line : split_lines(run_reference("architectures.py", dir.path().string() + " " + some))) {
      const std::string name = line.substr(0, line.find(' '));
      const bool is_exported = std::filesystem::exists(dir / (name + ".safetensors"));
      const std::string problem = is_exported ? train(name, dir.path().string()) : "";
      std::cout << line << (is_exported ? problem.empty() ? ", trains as in PyTorch" : ", " + problem : "")
                << std::endl;
      INFO(line);
      CHECK(problem == "");
      CHECK((is_exported || line.find(" skipped: no Python package") != std::string::npos));
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("The page names the architectures that are tested", "[nn][exported][architectures]") {
  if (!python_has("torch")) TRAINKIT_SKIP("no Python with torch");
  const std::string page = read_text(std::string(TRAINKIT_REFERENCE_DIR) + "/../../docs/how-to/pytorch-models.md");
  CHECK_THAT(page, Contains(run_reference("architectures.py", "table")));
}
