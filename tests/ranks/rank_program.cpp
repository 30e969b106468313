// A small trainer built on the library as a user would, whose code (data set, model, loss, schedule, logger) fails at a
// named moment. The tests of lost ranks start it.
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "train/loop_util.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"

namespace trainkit::test {
namespace {

/// --name value of the command line.
std::map<std::string, std::string> flags;

std::string flag(const std::string& name, const std::string& otherwise = "") {
  const auto found = flags.find(name);
  return found == flags.end() ? otherwise : found->second;
}
int64_t number(const std::string& name, int64_t otherwise) {
  return flags.contains(name) ? std::stoll(flags[name]) : otherwise;
}

int64_t my_rank = 0;

/// Passes moment `name`. If --at names it (<moment>:<number of earlier passes>:<action>) and --victim includes this
/// rank ("1", or "123" for several ranks), performs the action. Returns true if the caller should set its values to
/// NaN, or report a full disk.
bool moment(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, int64_t> passed;
  int64_t count = 0;
  {
    const std::lock_guard lock(mutex);
    count = passed[name]++;
  }
  if (!flags.contains("at") || flag("victim", "1").find(std::to_string(my_rank)) == std::string::npos) return false;
  const std::string at = flag("at");
  const size_t first = at.find(':'), second = at.find(':', first + 1);
  const std::string action = at.substr(second + 1);
  if (at.substr(0, first) != name) return false;
  if (action == "slow") {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return false;
  }
  const int64_t when = std::stoll(at.substr(first + 1, second - first - 1));
  // These actions repeat: a row that cannot be read is retried alone, a step without memory in parts.
  const bool lasts = action == "throw" || action == "oom" || action == "full";
  if (lasts ? count < when : count != when) return false;
  // The test reads the time of the failure.
  std::ofstream(flag("folder") + "/harm") << std::chrono::steady_clock::now().time_since_epoch().count() << std::endl;
  if (action == "kill") raise(SIGKILL);
  if (action == "stop") raise(SIGSTOP);
  if (action == "segv") {
    ::signal(SIGSEGV, SIG_DFL);  // a sanitizer installs a handler
    raise(SIGSEGV);
  }
  if (action == "abort") raise(SIGABRT);
  if (action == "term") raise(SIGTERM);
  if (action == "int") raise(SIGINT);
  if (action == "usr1") raise(SIGUSR1);
  if (action == "exit") _exit(0);
  if (action == "throw") throw std::runtime_error("the fault that the test asked for");
  if (action.starts_with("oom"))
    TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory: the fault that the test asked for");
  return action == "nan" || action.starts_with("full");
}

/// TinyNet's data with rows that may be slow, bad or fatal.
class HarmfulDataset final : public Dataset {
 public:
  explicit HarmfulDataset(std::shared_ptr<const Dataset> inner) : inner_(std::move(inner)) {}
  int64_t size() const override { return inner_->size(); }
  const std::vector<FieldSpec>& fields() const override { return inner_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    moment("read");
    if (key.index >= size() - number("bad", 0)) throw std::runtime_error("a row that cannot be read");
    inner_->get(key, out, at);
  }

 private:
  std::shared_ptr<const Dataset> inner_;
};

class HarmfulSchedule final : public LRSchedule {
 public:
  double factor(int64_t) const override { return moment("step"), 1.0; }
};

/// Writes losses to a file of this rank; its flush precedes a checkpoint.
class HarmfulLogger final : public Logger {
 public:
  explicit HarmfulLogger(const std::string& path) : file_(path) {}
  void log(const LogRecord& record) override {
    file_ << fmt::format("{} {} {:.17g}\n", record.split, record.step, *record.find("loss"));
  }
  absl::Status flush() override {
    moment("save");
    file_.flush();
    return absl::OkStatus();
  }
  absl::Status rewind(int64_t) override { return absl::OkStatus(); }
  void print(std::string_view line) override {
    std::ofstream(flag("folder") + "/printed." + std::to_string(my_rank), std::ios::app) << line << "\n";
  }

 private:
  std::ofstream file_;
};

/// Settings in which a rank may differ, for the comparison of ranks.
TinyNet make_model() {
  moment("model");
  TinyNet model(0.0);
  if (flag("odd") == "shape") model->replace_module("out", model->out = torch::nn::Linear(16, 5));
  if (flag("odd") == "name") model->register_module("another", torch::nn::Linear(2, 2));
  if (flag("odd") == "dtype") model->to(torch::kFloat64);
  if (flag("odd") == "frozen") model->hidden->weight.set_requires_grad(false);
  return model;
}

absl::StatusOr<int> run(ProgramState& program) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto launch, read_launch_environment());
  if (launch) my_rank = launch->rank;
  const std::string odd = flag("odd");
  moment("start");
  DeviceReplicatorOptions placing;
  if (launch) {
    TRAINKIT_ASSIGN_OR_RETURN(
        program.group, ProcessGroup::create(*launch, {.timeout = std::chrono::milliseconds(number("timeout", 20000)),
                                                      .bind = flag("bind", "127.0.0.1"),
                                                      .shared_memory = number("shared_memory", 1) != 0}));
    placing.process_group = program.group;
  }
  if (flag("shard") == "optimizer") placing.sharding = Sharding::kOptimizer;
  if (flag("shard") == "gradients") placing.sharding = Sharding::kGradients;
  moment("joined");
  if (program.group) {
    TRAINKIT_RETURN_IF_ERROR(program.group->compare_digest({{"library", odd == "library" ? "0.0.1" : "0.1.0"}}));
  }
  const int64_t rows = number("rows", 104), batch = number("batch", 4);
  const auto dataset = std::make_shared<HarmfulDataset>(tiny_dataset(odd == "rows" ? rows + 4 : rows));
  const int64_t ranks = program.group ? program.group->world_size() : 1;
  const auto share = [&](auto order) {
    return DistributedSampler(order, {.rank = my_rank, .world_size = ranks, .tail = UnevenTail::kPad});
  };
  TRAINKIT_ASSIGN_OR_RETURN(
      const auto loader,
      Prefetcher::create(dataset, share(RandomSampler(dataset->size(), {.seed = odd == "seed" ? 4U : 3U})),
                         {.batch_size = odd == "batch" ? batch + 1 : batch,
                          .num_workers = static_cast<int>(number("workers", 1)),
                          .persistent_workers = true,
                          .on_error = flags.contains("bad") ? OnError::kSkip : OnError::kFail}));
  TRAINKIT_ASSIGN_OR_RETURN(const auto validation,
                            Prefetcher::create(tiny_dataset(37), share(SequentialSampler(37)), {.batch_size = 8}));
  torch::manual_seed(11);
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create(make_model, placing));
  TrainerOptions options{.max_epochs = 0,
                         .max_steps = odd == "steps" ? 7 : number("steps", 40),
                         .precision = odd == "precision" ? Precision::kBf16 : Precision::kFp32,
                         .grad_accum_steps = odd == "accumulation" ? 3 : number("accum", 2),
                         .grad_clip = odd == "clip" ? 2.0 : 1.0,
                         .schedule = std::make_shared<HarmfulSchedule>(),
                         .log_every = number("log_every", 1),
                         .eval_every = odd == "evaluation" ? 11 : number("eval_every", 10),
                         .save_every = number("save_every", 10),
                         .output_dir = flag("output_dir", flag("folder") + "/run"),
                         .continue_on_save_error = number("continue", 0) != 0,
                         .resume = flag("resume"),
                         .handle_signals = true};
  if (options.save_every == 0) options.output_dir.clear();
  TRAINKIT_ASSIGN_OR_RETURN(auto trainer, Trainer::create(*devices, AdamW({.lr = 1e-2}), options));
  HarmfulLogger logger(flag("folder") + "/losses." + std::to_string(my_rank));
  std::ofstream rows_read(flag("folder") + "/rows." + std::to_string(my_rank));
  const auto loss = [&](TinyNet& net, const Batch& rows_of_step) {
    const auto own = static_cast<size_t>(rows_of_step.size() - rows_of_step.padding_rows());
    for (const int64_t row : rows_of_step.row_indices().first(own)) rows_read << row << " ";
    rows_read << std::endl;
    const bool poison = moment("forward");
    at::Tensor value = tiny_loss(net, rows_of_step);
    if (poison) value = value * NAN;
    if (value.requires_grad()) {
      value.register_hook([](const at::Tensor& gradient) { return moment("backward"), gradient; });
    }
    return value;
  };
  const auto validation_loss = [](TinyNet& net, const Batch& rows_of_step) {
    moment("evaluation");
    return tiny_loss(net, rows_of_step);
  };
  TRAINKIT_ASSIGN_OR_RETURN(
      const TrainerResult result,
      trainer.fit(
          *loader, loss,
          {.validation = validation.get(), .validation_loss = make_loss_function(validation_loss), .logger = &logger}));
  moment("end");
  fmt::print("step {} loss {:.9g} {}\n", result.steps, result.loss, to_string(result.reason));
  return result.signal == 0 ? 0 : 128 + result.signal;
}

}  // namespace
}  // namespace trainkit::test

// These replace the functions of the C library, so that a rank can fail in the middle of a save.
extern "C" ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  if (!trainkit::test::moment("write")) return syscall(SYS_pwrite64, descriptor, data, size, offset);
  errno = ENOSPC;
  return -1;
}

extern "C" int fsync(int descriptor) {
  trainkit::test::moment("sync");
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

int main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) trainkit::test::flags[std::string(argv[i]).substr(2)] = argv[i + 1];
  return trainkit::run_program([](trainkit::ProgramState& program) { return trainkit::test::run(program); });
}
