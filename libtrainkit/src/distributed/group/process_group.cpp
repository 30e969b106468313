#include "trainkit/distributed/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <absl/status/statusor.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>
#ifdef TRAINKIT_WITH_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "core/machine/sigpipe.h"
#include "distributed/group/peer_watch.h"
#include "distributed/group/process_group_impl.h"
#include "distributed/group/rendezvous.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using Clock = std::chrono::steady_clock;

/// Response time limit of a live rank. A survivor reports within a second.
constexpr std::chrono::milliseconds kPatience{500};
/// Smaller tensors of a broadcast are copied to a buffer of this size; others need no memory.
constexpr size_t kBroadcastBytes = 1 << 20;

/// Shortens a message of Gloo or NCCL and removes the position in their sources.
std::string short_reason(std::string_view message) {
  for (const auto& [phrase, reason] : {std::pair{"Connection closed by peer", "connection closed"},
                                       {"Connection reset by peer", "connection reset"},
                                       {"Broken pipe", "connection closed"},
                                       {"Timed out", "no answer within the timeout"},
                                       {"Application timeout", "no answer within the timeout"},
                                       {"Wait timeout", "no answer within the timeout"}}) {
    if (message.find(phrase) != std::string_view::npos) return reason;
  }
  if (message.starts_with('[')) message.remove_prefix(std::min(message.find(']') + 1, message.size()));
  message = message.substr(0, message.find('\n'));
  message.remove_prefix(std::min(message.find_first_not_of(' '), message.size()));
  return std::string(message.substr(0, 160));
}

/// Silences c10d's warnings, which print backtraces to stderr when a rank is lost; our errors contain the same
/// information. Setting TORCH_CPP_LOG_LEVEL keeps them.
void silence_c10d_warnings() {
  static std::once_flag once;  // ranks may be threads of one process
  std::call_once(once, [] {
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, 3);
  });
}

/// Disables the reactions of NCCL's watchdog. It would abort the process before our error (of a lost rank, or of a
/// device that has failed), or delay it by a minute to dump the ranks' last collectives. Each step's agreement goes
/// through Gloo, which detects and reports a lost rank (see ~Impl), and the next call to the device reports its error.
/// Variables that are already set keep their values.
[[maybe_unused]] void silence_nccl_watchdog() {
  static std::once_flag once;
  std::call_once(once, [] {
    setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
    setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", /*overwrite=*/0);
    setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
    setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1", /*overwrite=*/0);
  });
}

/// Joins fields with a NUL byte after each part. Names and values contain no NUL bytes.
std::string packed(const std::vector<DigestField>& fields) {
  std::string bytes;
  for (const DigestField& field : fields) bytes.append(field.name).append(1, '\0').append(field.value).append(1, '\0');
  return bytes;
}

std::vector<DigestField> unpacked(const std::string& bytes) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end; (end = bytes.find('\0', begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(bytes.substr(begin, end - begin));
  }
  std::vector<DigestField> fields;
  for (size_t i = 0; i + 1 < parts.size(); i += 2) fields.push_back({parts[i], parts[i + 1]});
  return fields;
}

/// Returns the first field that differs as {name, values with ranks, value of rank 0}; nullopt if all ranks agree.
std::optional<std::array<std::string, 3>> first_difference(const std::vector<std::vector<DigestField>>& all) {
  const auto value_of = [](const std::vector<DigestField>& fields, const std::string& name) -> std::string {
    const auto found =
        std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.name == name; });
    return found == fields.end() ? "nothing" : found->value;
  };
  std::vector<std::string> names;
  for (const auto& fields : all) {
    if (&fields != &all.front() && packed(fields) == packed(all.front())) continue;
    for (const DigestField& field : fields) {
      if (std::find(names.begin(), names.end(), field.name) == names.end()) names.push_back(field.name);
    }
  }
  for (const std::string& name : names) {
    const std::string expected = value_of(all.front(), name);
    std::map<std::string, std::vector<int64_t>> others;
    for (size_t rank = 1; rank < all.size(); ++rank) {
      const std::string value = value_of(all[rank], name);
      if (value != expected) others[value].push_back(static_cast<int64_t>(rank));
    }
    if (others.empty()) continue;
    std::string got;
    for (const auto& [value, ranks] : others)
      got += (got.empty() ? "" : ", ") + value + " on " + detail::rank_list(ranks, /*at_most=*/8);
    return {{name, got, "'" + expected + "' as on rank 0"}};
  }
  return std::nullopt;
}

}  // namespace

void ProcessGroup::Impl::start_watch() {
  if (!watch_ && world_size > 1)
    watch_ = std::make_unique<detail::PeerWatch>(make_gloo("watch"), (rank + 1) % world_size);
}

absl::Status ProcessGroup::Impl::check(std::string_view what, Clock::time_point started) {
  const char* const message = watch_ && watch_->has_ended()              ? "connection closed"
                              : failure_detector_->has_verdict()         ? "another rank noticed it"
                              : Clock::now() - started > options.timeout ? "no answer within the timeout"
                                                                         : nullptr;
  return message ? failure(what, started, message) : absl::OkStatus();
}

// Note [Backends of a process group]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The store connects the ranks first. On it are built, in an order that is the same on all ranks: the failure detector
// (it must answer from the beginning), shared memory (each rank publishes its handle and reads those of the others),
// Gloo, and NCCL on GPUs.
//
// NCCL's timeout is 60 s longer than Gloo's. The host-side collectives of each step thus fail first and name the lost
// rank. NCCL cannot name it, and NCCL's kernels of a lost peer spin on the device until ncclCommAbort; ~Impl therefore
// aborts NCCL. Without this the destructor would wait for kernels that never end.

ProcessGroup::Impl::Impl(const LaunchEnvironment& launch, ProcessGroupOptions options_,
                         c10::intrusive_ptr<c10d::Store> store)
    : rank(launch.rank), world_size(launch.world_size), options(std::move(options_)), store_(std::move(store)) {
  failure_detector_ = std::make_unique<detail::FailureDetector>(store_, rank, world_size);
}

absl::Status ProcessGroup::Impl::connect(const std::string& address) {
  const auto started = Clock::now();
  try {
    address_ = address;
    make_backends();
    return absl::OkStatus();
  } catch (const c10::ValueError&) {
    throw;
  } catch (const std::exception& error) {
    // Another rank has met us, maybe only to say why it ends (notify_ranks() in program.cpp), and has left again.
    return failure("connecting", started, error.what());
  }
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::Impl::make_gloo(const std::string& prefix) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(address_)};
  return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(prefix, store_),
                                                     static_cast<int>(rank), static_cast<int>(world_size), gloo);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::Impl::make_side_group() {
  // Keys of another side group would connect this one to sockets of that one.
  return make_gloo("side/" + std::to_string(exchanges++));
}

void ProcessGroup::Impl::make_backends() {
  shared_memory_ = detail::SharedMemory::open(*store_, rank, world_size, options.shared_memory, options.timeout);
  const int size = static_cast<int>(world_size);
  gloo_ = make_gloo("gloo");
  c10d_ = c10::make_intrusive<c10d::ProcessGroup>(store_, static_cast<int>(rank), size);
  c10d_->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo_);
  c10d_->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  if (!options.device.is_cuda()) return;
#ifdef TRAINKIT_WITH_NCCL
  silence_nccl_watchdog();
  // Ranks that replay a collective meet others that start it eagerly; registration of buffers would need all of them.
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout + std::chrono::seconds(60);
  nccl_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", store_),
                                                      static_cast<int>(rank), size, nccl);
  nccl_->setBoundDeviceId(options.device);
  c10d_->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, nccl_);
  c10d_->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
#else
  TORCH_CHECK_VALUE(false, "trainkit was built without NCCL: ranks cannot train on GPUs");
#endif
}

ProcessGroup::Impl::~Impl() {
  watch_.reset();
  // See Note [Backends of a process group]. ~ProcessGroupNCCL would abort too, but it must not throw.
  if (!nccl_) return;
  try {
    nccl_->abort();
  } catch (const c10::Error&) {
    // The device has failed: nothing runs on it any longer.
  }
}

c10d::Backend& ProcessGroup::Impl::backend(at::DeviceType type) const {
  TORCH_CHECK(type == at::kCPU || nccl_, "this process group has no backend for tensors on ", type);
  return type == at::kCPU ? *gloo_ : *nccl_;
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::Impl::all_reduce(const at::Tensor& tensor) {
  if (shared_memory_ && detail::SharedMemory::supports(tensor)) return shared_memory_->all_reduce(tensor);
  std::vector<at::Tensor> tensors{tensor};
  return backend(tensor.device().type()).allreduce(tensors);
}

/// This rank's part of a tensor with one part per rank.
at::Tensor ProcessGroup::Impl::own_part(const at::Tensor& tensor) const {
  const int64_t part = tensor.numel() / world_size;
  return tensor.narrow(0, rank * part, part);
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::Impl::reduce_scatter(const at::Tensor& tensor) {
  if (shared_memory_ && detail::SharedMemory::supports(tensor)) return shared_memory_->reduce_scatter(tensor);
  at::Tensor part = own_part(tensor), whole = tensor;
  return backend(tensor.device().type())._reduce_scatter_base(part, whole);
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::Impl::all_gather(const at::Tensor& tensor) {
  if (shared_memory_ && tensor.is_cpu()) return shared_memory_->all_gather(tensor);
  at::Tensor part = own_part(tensor), whole = tensor;
  return backend(tensor.device().type())._allgather_base(whole, part);
}

void ProcessGroup::Impl::at(std::string_view what) {
  failure_detector_->set_position("step " + std::to_string(step) + " in " + std::string(what));
}

absl::Status ProcessGroup::Impl::wait(const c10::intrusive_ptr<c10d::Work>& work, std::string_view what,
                                      Clock::time_point started) {
  try {
    work->wait();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return failure(what, started, error.what());
  }
}

absl::Status ProcessGroup::Impl::failure(std::string_view what, Clock::time_point started, std::string_view message) {
  if (is_capturing_) return absl::InternalError(std::string(message));
  if (broken_) return *broken_;
  char after[32];
  snprintf(after, sizeof(after), "%.2f s", std::chrono::duration<double>(Clock::now() - started).count());
  const std::string verdict = failure_detector_->verdict(kPatience);
  broken_ = detail::distributed_error("dist.peer", "",
                                      verdict + " at step " + std::to_string(step) + " in " + std::string(what) +
                                          " after " + after + ": " + short_reason(message));
  failure_detector_->leave("it lost its connection to another rank");
  return *broken_;
}

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProcessGroup::~ProcessGroup() = default;

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::create(const LaunchEnvironment& launch,
                                                                   const ProcessGroupOptions& options) try {
  // libuv, which serves the store from here on, does not use MSG_NOSIGNAL. Python ignores SIGPIPE; a C++ program would
  // be killed by it.
  const detail::SigpipeBlocked blocked;
  TORCH_CHECK_VALUE(launch.world_size >= 1 && launch.rank >= 0 && launch.rank < launch.world_size,
                    "rank must be in 0..world_size - 1, got ", launch.rank, " of ", launch.world_size);
  TORCH_CHECK_VALUE(options.timeout.count() > 0, "timeout must be > 0, got ", options.timeout.count(), " ms");
  silence_c10d_warnings();
  const auto deadline = Clock::now() + options.timeout;
  TRAINKIT_ASSIGN_OR_RETURN(const std::string address, detail::local_address(options.bind));
  TRAINKIT_ASSIGN_OR_RETURN(auto store, detail::open_store(launch, options.bind, deadline, options.timeout));
  TRAINKIT_RETURN_IF_ERROR(detail::join(*store, launch, deadline, options.timeout));
  store->setTimeout(options.timeout);
  auto impl = std::make_unique<Impl>(launch, options, std::move(store));
  TRAINKIT_RETURN_IF_ERROR(impl->connect(address));
  return std::shared_ptr<ProcessGroup>(new ProcessGroup(std::move(impl)));
} catch (const c10::ValueError&) {
  return status_from_current_exception();
} catch (...) {
  return detail::distributed_error("dist.join", "",
                                   "the ranks could not connect to one another: " +
                                       short_reason(std::string(status_from_current_exception().message())));
}

int64_t ProcessGroup::rank() const { return impl_->rank; }
int64_t ProcessGroup::world_size() const { return impl_->world_size; }
const ProcessGroupOptions& ProcessGroup::options() const { return impl_->options; }

absl::Status ProcessGroup::all_reduce(const at::Tensor& tensor, std::string_view what) {
  const auto started = Clock::now();
  impl_->at(what);
  return impl_->wait(impl_->all_reduce(tensor), what, started);
}

absl::Status ProcessGroup::all_reduce_max(const at::Tensor& tensor, std::string_view what) {
  const auto started = Clock::now();
  impl_->at(what);
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  return impl_->wait(impl_->backend(tensor.device().type()).allreduce(tensors, options), what, started);
}

absl::Status ProcessGroup::broadcast(const std::vector<at::Tensor>& tensors, int64_t root, std::string_view what) {
  const auto started = Clock::now();
  impl_->at(what);
  try {
    const c10::intrusive_ptr<c10d::ProcessGroup> group = impl_->c10d();
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> small;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.nbytes() < kBroadcastBytes || !tensor.is_non_overlapping_and_dense()) {
        small.push_back(tensor);
        continue;
      }
      std::vector<at::Tensor> flat{tensor.as_strided({tensor.numel()}, {1})};
      works.push_back(group->broadcast(flat, options));
    }
    if (!small.empty()) c10d::broadcast_coalesced(group, small, kBroadcastBytes, static_cast<int>(root));
    for (const auto& work : works) work->wait();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return impl_->failure(what, started, error.what());
  }
}

absl::Status ProcessGroup::barrier(std::string_view what) {
  const auto started = Clock::now();
  impl_->at(what);
  return impl_->wait(impl_->backend(at::kCPU).barrier(), what, started);
}

absl::StatusOr<std::string> ProcessGroup::broadcast_text(std::string text, int64_t root, std::string_view what) {
  const auto started = Clock::now();
  const std::string key = "text/" + std::to_string(impl_->exchanges++);
  try {
    if (rank() == root) impl_->store().set(key, text);
    TRAINKIT_RETURN_IF_ERROR(barrier(what));
    return rank() == root ? text : impl_->store().get_to_str(key);
  } catch (const std::exception& error) {
    return impl_->failure(what, started, error.what());
  }
}

absl::Status ProcessGroup::compare_digest(const std::vector<DigestField>& fields) {
  constexpr std::string_view kWhat = "comparing the ranks' settings";
  const auto started = Clock::now();
  const std::string key = "digest/" + std::to_string(impl_->exchanges++) + "/";
  try {
    c10d::Store& store = impl_->store();
    store.set(key + std::to_string(rank()), packed(fields));
    TRAINKIT_RETURN_IF_ERROR(barrier(kWhat));
    if (rank() == 0) {
      std::vector<std::vector<DigestField>> all;
      for (int64_t other = 0; other < world_size(); ++other) {
        all.push_back(unpacked(store.get_to_str(key + std::to_string(other))));
      }
      const auto difference = first_difference(all);
      store.set(key + "verdict",
                difference ? packed({{(*difference)[0], (*difference)[1]}, {"", (*difference)[2]}}) : std::string());
    }
    TRAINKIT_RETURN_IF_ERROR(barrier(kWhat));
    const std::vector<DigestField> verdict = unpacked(store.get_to_str(key + "verdict"));
    if (verdict.size() != 2) return absl::OkStatus();
    return detail::distributed_error("dist.digest", verdict[0].name, "differs between ranks", verdict[0].value,
                                     verdict[1].value, "start every rank with the same program, flags and data");
  } catch (const std::exception& error) {
    return impl_->failure(kWhat, started, error.what());
  }
}

void ProcessGroup::set_step(int64_t step) { impl_->step = step; }
void ProcessGroup::leave(std::string_view reason) { impl_->failure_detector().leave(reason); }
bool ProcessGroup::usable() const { return !impl_->failure_detector().has_left(); }

at::Tensor detail::exchange_on_host(c10d::Backend& side, const at::Tensor& own) {
  at::Tensor all = at::empty({side.getSize(), own.numel()}, own.options());
  std::vector<at::Tensor> inputs{own};
  std::vector<std::vector<at::Tensor>> outputs{all.unbind()};
  try {
    side.allgather(outputs, inputs)->wait();
  } catch (const std::exception&) {
    throw_status(distributed_error("dist.peer", "", "a rank was lost while the ranks wrote a checkpoint"));
  }
  return all;
}

}  // namespace trainkit
