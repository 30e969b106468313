// GPT-2 compared with transformers': the same files give the same hidden states.
#include <filesystem>

#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/nn/gpt2.h"

using namespace trainkit;
using namespace trainkit::test;
namespace stdfs = std::filesystem;

namespace {

bool has_transformers() {
  static const bool found = python_has("transformers safetensors");
  return found;
}

double worst_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// loss_of() of the Python scripts.
at::Tensor loss_of(const at::Tensor& x) { return (x * (torch::arange(x.numel()) % 7 - 3).view_as(x)).sum(); }

SafetensorsFile reference(const TempDir& dir, const std::string& arguments) {
  run_reference("gpt2.py", (dir / "out.safetensors") + " " + arguments);
  return SafetensorsFile::open(dir / "out.safetensors").value();
}

/// No padding, padding on the right, on the left with column positions, on the left with positions that skip it.
void check_hidden_states(GPT2Model& model, const SafetensorsFile& file, double tolerance) {
  const torch::NoGradGuard no_grad;
  const at::Tensor ids = file.tensor("ids").value();
  for (const std::string name : {"none", "right", "left", "counted"}) {
    CAPTURE(name);
    const at::Tensor mask = file.tensor(name + ".mask").value(), expected = file.tensor(name + ".hidden").value();
    const at::Tensor positions = name == "counted" ? position_ids_of(mask) : at::Tensor();
    if (positions.defined()) CHECK(torch::equal(positions, file.tensor("counted.positions").value()));
    const at::Tensor hidden = model->forward(ids, mask, positions);
    CHECK(worst_difference(hidden, expected) < tolerance);
    CHECK(worst_difference(last_token_hidden(hidden, mask), file.tensor(name + ".last").value()) < tolerance);
    if (name == "none") CHECK(worst_difference(model->forward(ids), expected) < tolerance);
  }
}

}  // namespace

TEST_CASE("GPT-2's hidden states and gradients equal transformers' for every setting", "[nn][gpt2]") {
  if (!has_transformers()) TRAINKIT_SKIP("no Python with transformers");
  const std::string base = R"("vocab_size": 61, "n_positions": 24, "n_embd": 32, "n_layer": 3, "n_head": 4)";
  const struct {
    const char *more, *flags;
    double tolerance;
  } rows[] = {
      {"", "", 1e-5},
      {R"(, "n_inner": 40, "activation_function": "gelu")", "--head", 1e-5},
      {R"(, "activation_function": "relu", "scale_attn_by_inverse_layer_idx": true)", "--head --torch zip", 1e-5},
      {R"(, "activation_function": "silu", "scale_attn_weights": false)", "--torch legacy", 1e-5},
      {R"(, "layer_norm_epsilon": 0.01, "activation_function": "gelu_pytorch_tanh")", "--head --torch legacy", 1e-5},
      {"", "--half", 1e-5},
  };
  for (const auto& row : rows) {
    CAPTURE(row.more, row.flags);
    TempDir dir;
    const SafetensorsFile file =
        reference(dir, "--config '{" + base + row.more + "}' --save " + (dir / "model") + " " + row.flags);
    auto model = load_gpt2(dir / "model");
    REQUIRE(model.status() == absl::OkStatus());
    CHECK_FALSE((*model)->is_training());
    check_hidden_states(*model, file, row.tolerance);
    for (const bool checkpointing : {false, true}) {
      CAPTURE(checkpointing);
      (*model)->set_gradient_checkpointing(checkpointing);
      (*model)->zero_grad();
      const at::Tensor mask = file.tensor("right.mask").value();
      const at::Tensor hidden = (*model)->forward(file.tensor("ids").value(), mask);
      loss_of(hidden * mask.unsqueeze(-1)).backward();
      size_t checked = 0;
      for (const auto& item : (*model)->named_parameters()) {
        INFO(item.key());
        const at::Tensor expected = file.tensor("grad:" + item.key()).value();
        CHECK(worst_difference(item.value().grad(), expected) < 1e-5 * (1 + expected.abs().max().item<double>()));
        ++checked;
      }
      CHECK(file.names().size() == 1 + 4 * 4 + checked);  // we have every parameter of Python's model
    }
  }
}

TEST_CASE("A GPT-2 small saved by transformers gives its hidden states to 1e-4", "[nn][gpt2][slow]") {
  if (!has_transformers()) TRAINKIT_SKIP("no Python with transformers");
  TempDir dir;
  const SafetensorsFile file = reference(dir, "--config '{}' --head --save " + (dir / "model"));
  auto model = load_gpt2(dir / "model");
  REQUIRE(model.status() == absl::OkStatus());
  CHECK((*model)->num_parameters() == 124'439'808);
  check_hidden_states(*model, file, 1e-4);
}

TEST_CASE("tiny-gpt2 gives transformers' hidden states from both of its files", "[nn][gpt2]") {
  if (!has_transformers() || data_dir().empty()) TRAINKIT_SKIP("needs transformers and TRAINKIT_TEST_DATA");
  const std::string folder = data_dir() + "/weights/tiny-gpt2";
  TempDir dir;
  const SafetensorsFile file = reference(dir, "--model " + folder);
  for (const char* weights : {"model.safetensors", "pytorch_model.bin"}) {
    CAPTURE(weights);
    const std::string one = dir / ("only_" + std::string(weights));
    stdfs::create_directory(one);
    for (const char* name : {"config.json", weights}) stdfs::copy_file(folder + "/" + name, one + "/" + name);
    auto model = load_gpt2(one);
    REQUIRE(model.status() == absl::OkStatus());
    check_hidden_states(*model, file, 1e-4);
  }
}

TEST_CASE("transformers reads the GPT-2 that we save", "[nn][gpt2]") {
  if (!has_transformers()) TRAINKIT_SKIP("no Python with transformers");
  TempDir dir;
  GPT2Model model(GPT2Config{.vocab_size = 40,
                             .n_positions = 24,
                             .n_embd = 16,
                             .n_layer = 2,
                             .n_head = 2,
                             .n_inner = 24,
                             .activation_function = "gelu",
                             .layer_norm_epsilon = 0.01,
                             .scale_attn_by_inverse_layer_idx = true});
  model->eval();
  REQUIRE(save_gpt2(*model, dir / "new/model") == absl::OkStatus());
  check_hidden_states(model, reference(dir, "--model " + (dir / "new/model")), 1e-5);
}
