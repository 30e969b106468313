#pragma once
/// Adam, AdamW, SparseAdam, and Muon with AdamW for the parameters that are no matrices.

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// PyTorch's names and defaults.
struct AdamOptions {
  double lr = 1e-3;
  /// Decay rates of the running means of the gradient and of its square. Each in [0, 1).
  std::array<double, 2> betas = {0.9, 0.999};
  /// Added to the denominator.
  double eps = 1e-8;
  /// Adam adds weight_decay * parameter to the gradient (L2 penalty). A group may override it.
  double weight_decay = 0;
  /// Keep learning rates and step counts on the device from the first step, so that a step can be captured in a CUDA
  /// graph. Otherwise they move to the device when a GradScaler needs them there.
  bool capturable = false;
};

/// Options of AdamW, which shrinks the parameter by lr * weight_decay instead.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool capturable = false;
};

/// Adam with bias correction. State per parameter: "exp_avg" and "exp_avg_sq", with the parameter's shape and dtype.
/// Source: Kingma and Ba, "Adam: A method for stochastic optimization"; torch.optim.Adam (PyTorch 2.11, fused).
class Adam : public Optimizer {
 public:
  /// Throws c10::ValueError if options are out of range; the message names all of them.
  explicit Adam(const AdamOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;

 protected:
  Adam(const BaseOptions& base, const std::array<double, 2>& betas, double eps);
  AdamOptions options() const;
  const char* type() const override { return "adam"; }
  std::vector<std::string> state_names(const ParamGroup&) const override { return {"exp_avg", "exp_avg_sq"}; }
  std::vector<std::pair<const char*, double*>> hyperparameters() override;
  std::string option_problems() const override;
  void apply(const FusedArguments& arguments) override;
  bool apply_by_kernel(const FusedArguments& arguments, bool decouples_decay) const;

  std::array<double, 2> betas_;
  double eps_;
};

/// Adam with decoupled weight decay.
/// Source: Loshchilov and Hutter, "Decoupled weight decay regularization"; torch.optim.AdamW (PyTorch 2.11, fused).
class AdamW : public Adam {
 public:
  explicit AdamW(const AdamWOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;

 protected:
  const char* type() const override { return "adamw"; }
  void apply(const FusedArguments& arguments) override;
};

/// Options of SparseAdam. PyTorch's names and defaults.
struct SparseAdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
};

/// Adam for the rows of a sparse gradient: of torch::nn::Embedding and EmbeddingBag with sparse(true). Rows without a
/// gradient keep their weights and running means, so that a step costs what the batch has rows, whatever the size of
/// the table. Bias correction uses the step count of the parameter. A parameter with a dense gradient gets Adam's
/// update (PyTorch's SparseAdam refuses it). There is no weight decay.
///
/// State: Adam's, on the CPU bitwise identical to torch.optim.SparseAdam's, and so are the weights in float64. In
/// float32 there is one loop over the rows, whose square roots are exact; PyTorch's may differ in the last bit. Other
/// dtypes and devices use LibTorch's operations, which allocate memory for the gradient's rows. On a GPU each step
/// waits for the number of rows, and cannot be captured in a CUDA graph.
/// Source: torch.optim.SparseAdam (PyTorch 2.11).
class SparseAdam : public Adam {
 public:
  /// Throws c10::ValueError if options are out of range; the message names all of them.
  explicit SparseAdam(const SparseAdamOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;

 protected:
  const char* type() const override { return "sparse_adam"; }
  void reserve(const ParamGroup& group) override;
  void apply(const FusedArguments& arguments) override;

 private:
  void update_rows(const FusedArguments& arguments, size_t i) const;
  at::Tensor negative_step_size(const FusedArguments& arguments, size_t i) const;
};

/// Options of Muon. PyTorch's names; AdamW's options are those of the other parameters.
struct MuonOptions {
  double lr = 1e-3;
  /// Decay rate of the running mean of the gradient, in [0, 1).
  double momentum = 0.95;
  /// Mix the gradient into the running mean once more (Nesterov momentum).
  bool nesterov = true;
  /// Multiply the rate by 0.2 sqrt(max(rows, columns)) instead of sqrt(max(1, rows / columns)): PyTorch's adjust_lr_fn
  /// "match_rms_adamw" and "original". With it, learning rate and weight decay of AdamW suit Muon too.
  bool match_rms_adamw = false;
  double weight_decay = 0.1;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool capturable = false;
  /// Selects the matrices of a model by their names, for groups_for(). Null: all but the weights of embeddings. Exclude
  /// the output layer here.
  std::function<bool(const std::string& name)> selects = nullptr;
};

/// Muon: makes the running mean of a matrix's gradient approximately orthogonal, by five Newton-Schulz iterations in
/// bfloat16. AdamW updates the parameters of groups without ParamGroup::orthogonalize, with the same learning rate.
///
/// State per matrix: "momentum_buffer", with its shape and dtype; half of AdamW's. The iterations use a workspace of up
/// to 12 bytes per element of the largest matrix, allocated by add_param_group.
/// Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks"; torch.optim.Muon (PyTorch 2.11).
class Muon : public AdamW {
 public:
  /// Throws c10::ValueError if options are out of range; the message names all of them.
  explicit Muon(const MuonOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;
  /// Groups "muon" (orthogonalize; the selected matrices), "decay" and "no_decay".
  std::vector<ParamGroup> groups_for(const torch::nn::Module& model) const override;

 protected:
  const char* type() const override { return "muon"; }
  std::vector<std::string> state_names(const ParamGroup& group) const override;
  void reserve(const ParamGroup& group) override;
  std::vector<std::pair<const char*, double*>> hyperparameters() override;
  std::string option_problems() const override;
  void apply(const FusedArguments& arguments) override;

 private:
  at::Tensor orthogonal(const at::Tensor& update) const;
  void update_matrix(const FusedArguments& arguments, size_t i) const;

  double momentum_;
  double nesterov_, match_rms_adamw_;  // 0 or 1, because options are saved as numbers
  std::function<bool(const std::string& name)> selects_;
  // Workspace for the largest matrix: two bfloat16 matrices, two squares of their smaller side, and a float32 matrix.
  std::array<at::Tensor, 2> matrices_, squares_;
  at::Tensor update_;
};

}  // namespace trainkit
