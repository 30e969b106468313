#pragma once
/// Model, data and loss of a program.

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "spec.h"
#include "trainkit/data/batch.h"
#include "trainkit/data/dataset.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"
#include "trainkit/nn/exported_model.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/player.h"

namespace trainkit::differential {

constexpr int64_t kFeatures = 6;  ///< of a vector; a sequence is 3 x 8, an image 2 x 6 x 6
constexpr int64_t kTokens = 5;    ///< per row
constexpr int64_t kVocabulary = 7;
constexpr int64_t kClasses = 4;  ///< outputs of the model without a tied head

at::ScalarType dtype_of(const Spec& spec);  ///< of the model's weights

/// Numbers of a standard normal distribution: a function of the key, the same on every platform up to rounding.
at::Tensor normal(const std::vector<int64_t>& shape, uint64_t key, at::ScalarType dtype = at::kDouble);

/// The layers one after the other, the mean over positions, then the linear layer "head". Layer i is called "l<i>".
class Net : public torch::nn::Module {
 public:
  explicit Net(const Spec& spec);
  /// Scores (N, outputs) of x; `m` (N) selects the rows of branches.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& m) {
    return exported_ ? exported_->forward({x, m}) : head(features(x, m));
  }
  /// Input (N, width) of the head, and its scores.
  at::Tensor features(const at::Tensor& x, const at::Tensor& m);
  at::Tensor head(const at::Tensor& features) { return head_(features); }
  void train(bool on = true) override;
  /// Module of layer i, which may be shared; null without one.
  const std::shared_ptr<torch::nn::Module>& layer(size_t i) const { return modules_[i]; }

 private:
  std::shared_ptr<torch::nn::Module> add(const Spec& spec, size_t i);
  void use_exported(const Spec& spec);

  using Call = std::function<at::Tensor(const at::Tensor&)>;
  std::vector<Call> calls_;
  std::vector<bool> is_branch_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<int64_t> shape_;  // of a row, while the layers are made
  std::function<at::Tensor(const at::Tensor&)> head_;
  bool is_tokens_;
  std::shared_ptr<ExportedModelImpl> exported_;  // instead of all of these
};

/// The model of a program with its first weights and modes.
std::shared_ptr<Net> make_net(const Spec& spec);
int64_t outputs_of(const Spec& spec);

/// Fields "x", "y", "w" (row weight) and "m" (1 in rows of branches), in the dtype of the model.
std::vector<std::pair<std::string, at::Tensor>> columns(const Spec& spec, int64_t rows, uint64_t key);
/// Rows that the data set shows, without random augmentation.
std::vector<std::pair<std::string, at::Tensor>> outer_columns(const Spec& spec);
std::vector<std::pair<std::string, at::Tensor>> evaluation_columns(const Spec& spec);
std::shared_ptr<const Dataset> make_dataset(const Spec& spec);
std::shared_ptr<const Sampler> make_sampler(const Spec& spec);
/// Loader of the training for one of `ranks` ranks, with a batch of `batch_size` rows on it.
std::unique_ptr<Prefetcher> make_loader(const Spec& spec, int64_t batch_size, int64_t rank = 0, int64_t ranks = 1);
/// Loader of the evaluation; its rows are in order.
std::unique_ptr<Prefetcher> make_validation(const Spec& spec, int64_t rank = 0, int64_t ranks = 1);

/// Watches the calls of a loss function in training; called on the thread of the replica.
using OnCall = std::function<void(torch::nn::Module& model, const Batch& batch)>;
/// The loss of a program, or of one of its players. `kept`, if not null, receives the labels that the function keeps.
LossFunction make_loss(const Spec& spec, std::vector<at::Tensor>* kept = nullptr, OnCall on_call = nullptr);
/// Computes the features that the players share, detached or with their graph.
SharedFunction make_shared(bool detached);

}  // namespace trainkit::differential
