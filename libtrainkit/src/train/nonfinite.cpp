#include "nonfinite.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/isposinf.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace trainkit::detail {
namespace {

/// Returns "nan", "inf", or nullptr. Minus infinity is allowed, since masks contain it.
const char* problem_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0 || !tensor.is_floating_point() || tensor.is_sparse()) return nullptr;
  const at::Tensor values = tensor.detach();
  if (at::isnan(values).any().item<bool>()) return "nan";
  return at::isposinf(values).any().item<bool>() ? "inf" : nullptr;
}

// Note [Search for the first non-finite value]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Callbacks see every operation: inputs at its start, outputs at its end. Three kinds of values must not be reported:
// - Uninitialised memory. aten::empty and its relatives return memory with arbitrary contents. unwritten_ remembers
//   their storages by weak pointer until an operation that computes returns them, so that an address which the
//   allocator reuses is not confused with the old storage.
// - Views. They compute nothing, and kernels take views of memory that they have not written yet.
// - Outputs passed as inputs. In-place and out= operations receive the tensor that they overwrite.
// Checking runs operations itself; DisableRecordFunctionGuard keeps them from calling the callbacks again. If a
// callback runs out of memory, an operation was missed and a later finding may not be the first one, so the search
// gives up.
// Autograd's threads inherit the thread-local callback. One of them may still be in a callback when `run` has thrown;
// it holds a shared_ptr to the Search, which current_search no longer names.

/// State of one search, shared by its callbacks. See Note [Search for the first non-finite value].
class Search {
 public:
  explicit Search(const torch::nn::Module& module) {
    for (const auto& parameter : module.named_parameters()) {
      const std::string& name = parameter.key();
      const size_t dot = name.rfind('.');
      const std::string owner = dot == std::string::npos ? "the model" : fmt::format("'{}'", name.substr(0, dot));
      owners_.emplace(parameter.value().const_data_ptr(), owner);
      if (found_.empty() && problem_of(parameter.value())) {
        found_ = fmt::format("{} of {} is not finite", name.substr(dot == std::string::npos ? 0 : dot + 1), owner);
      }
    }
  }

  /// Checks the inputs, which are only available at the start of an operation. An input that no operation returned
  /// comes from the batch or is a constant.
  void begin(const at::RecordFunction& operation) {
    const std::lock_guard lock(mutex_);
    if (done()) return;
    const at::DisableRecordFunctionGuard no_recursion;
    const c10::AutoGradMode no_grad(false);
    const bool computes = !is_view(operation) && !writes_over(operation);
    bool takes_parameter = false;
    const char* problem = nullptr;
    for (const c10::IValue& input : operation.inputs()) {
      if (!input.isTensor() || !input.toTensor().defined() || !input.toTensor().has_storage()) continue;
      const auto owner = owners_.find(input.toTensor().storage().data());
      if (owner != owners_.end()) {
        last_owner_ = owner->second;
        takes_parameter = true;
      } else if (!problem && computes && !is_unwritten(input.toTensor())) {
        problem = problem_of(input.toTensor());
      }
    }
    if (problem) report(operation, "took", problem, takes_parameter);
  }

  /// Checks the outputs, which are only available at the end of an operation.
  void end(const at::RecordFunction& operation) {
    const std::lock_guard lock(mutex_);
    if (done() || is_view(operation)) return;
    const at::DisableRecordFunctionGuard no_recursion;
    const c10::AutoGradMode no_grad(false);
    for (const c10::IValue& output : operation.outputs()) {
      if (!output.isTensor() || !output.toTensor().defined() || !output.toTensor().has_storage()) continue;
      const c10::Storage& storage = output.toTensor().storage();
      if (gives_raw_memory(operation)) {
        unwritten_.insert_or_assign(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
        continue;
      }
      unwritten_.erase(storage.unsafeGetStorageImpl());
      if (const char* problem = problem_of(output.toTensor())) report(operation, "returned", problem, false);
    }
  }

  /// Ends the search: an operation could not be checked for lack of memory, so a later finding may not be the first.
  void give_up() {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
  }

  std::string found() {
    const std::lock_guard lock(mutex_);
    return found_;
  }

 private:
  bool done() const { return given_up_ || !found_.empty(); }

  /// Returns whether the operation allocates uninitialised memory.
  static bool gives_raw_memory(const at::RecordFunction& operation) {
    const std::string_view name = operation.name();
    return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") || name.starts_with("aten::resize") ||
           name.starts_with("aten::set_");
  }
  /// Returns whether the operation returns a view of an input and computes nothing.
  static bool is_view(const at::RecordFunction& operation) {
    const auto schema = operation.operator_schema();
    return schema && std::any_of(schema->returns().begin(), schema->returns().end(), [](const c10::Argument& result) {
             return result.alias_info() && !result.alias_info()->isWrite();
           });
  }
  bool is_unwritten(const at::Tensor& tensor) {
    const auto found = unwritten_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == unwritten_.end()) return false;
    if (!found->second.expired()) return true;
    unwritten_.erase(found);  // another storage has its address now
    return false;
  }
  /// Returns whether the operation takes the tensor that it overwrites as an input.
  static bool writes_over(const at::RecordFunction& operation) {
    const std::string_view name = operation.name();
    return gives_raw_memory(operation) || name.ends_with("_") || name.ends_with("out") || name.find("as_strided") < 32;
  }

  void report(const at::RecordFunction& operation, const char* verb, const char* problem, bool takes_parameter) {
    const bool known = !last_owner_.empty();
    found_ =
        fmt::format("{} {}{} {}{}", operation.name(), known && !takes_parameter ? "after " + last_owner_ + " " : "",
                    verb, problem, known && takes_parameter ? ", in " + last_owner_ : "");
  }

  std::mutex mutex_;
  std::unordered_map<const void*, std::string> owners_;  // by the address of a parameter's data
  /// Storages that no operation has written to yet.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> unwritten_;
  std::string last_owner_, found_;
  bool given_up_ = false;
};

std::mutex one_search_at_a_time;

/// The search that callbacks report to; shared, see Note [Search for the first non-finite value].
std::mutex current_mutex;
std::shared_ptr<Search> current_search;

void set_current(std::shared_ptr<Search> search) {
  const std::lock_guard lock(current_mutex);
  current_search = std::move(search);
}

std::shared_ptr<Search> get_current() {
  const std::lock_guard lock(current_mutex);
  return current_search;
}

/// Runs a callback and catches its exceptions, which LibTorch would print and ignore.
void run_callback(void (Search::*method)(const at::RecordFunction&), const at::RecordFunction& operation) {
  const std::shared_ptr<Search> search = get_current();
  if (!search) return;
  try {
    ((*search).*method)(operation);
  } catch (const std::exception&) {
    search->give_up();
  }
}

/// Checks the operations of this thread, and of autograd's threads that work for it, during its lifetime.
class Watch {
 public:
  explicit Watch(std::shared_ptr<Search> search) {
    set_current(std::move(search));
    handle_ = at::addThreadLocalCallback(  // autograd's threads inherit it with this thread's state
        at::RecordFunctionCallback(
            [](const at::RecordFunction& operation) -> std::unique_ptr<at::ObserverContext> {
              run_callback(&Search::begin, operation);
              return nullptr;
            },
            [](const at::RecordFunction& operation, at::ObserverContext*) { run_callback(&Search::end, operation); })
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~Watch() {
    at::removeCallback(handle_);
    set_current(nullptr);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace

std::string first_nonfinite(const torch::nn::Module& module, const std::function<void()>& run) {
  const std::lock_guard lock(one_search_at_a_time);
  const auto search = std::make_shared<Search>(module);
  if (std::string found = search->found(); !found.empty()) return found;
  {
    const Watch watch(search);
    run();
  }
  return search->found();
}

}  // namespace trainkit::detail
