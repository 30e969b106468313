#include "train/run/foreign_draws.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "distributed/replicas/replica_random.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Whether the operation draws from the default generator: its generator argument is missing.
bool draws_from_default(const at::RecordFunction& operation) {
  const auto inputs = operation.inputs();
  const auto is_none = [](const c10::IValue& value) { return value.isNone(); };
  if (std::none_of(inputs.begin(), inputs.end(), is_none)) return false;  // the schema is copied
  const auto schema = operation.operator_schema();
  if (!schema) return false;
  for (size_t i = 0; i < inputs.size() && i < schema->arguments().size(); ++i) {
    if (inputs[i].isNone() && schema->arguments()[i].name() == "generator") return true;
  }
  return false;
}

}  // namespace

/// The objects that live, with the callback that LibTorch calls for each operation while there is one.
class ForeignDraws::All {
 public:
  static All& instance() {
    static All all;
    return all;
  }

  std::mutex mutex;

  void add(ForeignDraws* draws) {
    const std::lock_guard lock(mutex);
    if (draws_.empty()) {
      handle_ = at::addGlobalCallback(
          at::RecordFunctionCallback(&note).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    }
    draws_.push_back(draws);
  }
  void remove(ForeignDraws* draws) {
    const std::lock_guard lock(mutex);
    std::erase(draws_, draws);
    if (draws_.empty()) at::removeCallback(handle_);
  }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& operation) {
    if (!draws_from_default(operation) || draws_from_replica() || torch::autograd::get_current_graph_task_id() != -1) {
      return nullptr;
    }
    All& all = instance();
    const std::lock_guard lock(all.mutex);
    const auto steps_here = [](const ForeignDraws* draws) {
      return draws->thread_ == at::RecordFunction::currentThreadId();
    };
    if (std::any_of(all.draws_.begin(), all.draws_.end(), steps_here)) return nullptr;
    for (ForeignDraws* draws : all.draws_) {
      if (draws->operation_.empty()) draws->operation_ = operation.name();
    }
    return nullptr;
  }

  std::vector<ForeignDraws*> draws_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

ForeignDraws::ForeignDraws() : thread_(at::RecordFunction::currentThreadId()) { All::instance().add(this); }
ForeignDraws::~ForeignDraws() { All::instance().remove(this); }

void ForeignDraws::step_here() {
  const std::lock_guard lock(All::instance().mutex);
  thread_ = at::RecordFunction::currentThreadId();
}

absl::Status ForeignDraws::status() const {
  const std::lock_guard lock(All::instance().mutex);
  if (operation_.empty()) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "train.session",
                    .problem = "a thread that the run does not use has drawn from LibTorch's default generator",
                    .got = operation_,
                    .hint = "a resumed run would differ: give that thread an at::Generator of its own"});
}

}  // namespace trainkit
