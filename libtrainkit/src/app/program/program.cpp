#include <c10/util/Exception.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "core/files/working_folder.h"
#include "report/report.h"
#include "report/run_file.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/report/summary.h"

namespace trainkit {
namespace {

// Note [Deleted working folder]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// oneMKL, a part of LibTorch, calls getcwd() when LibTorch is loaded, before main, and ends the process if that fails:
// the folder in which the program was started has been deleted. leave_deleted_folder() runs before (.preinit_array is
// the first of all) and moves the process to kNoFolder. No relative path exists there. ConfigParser refuses one that
// was given, and report() adds the reason to the error of any other.

/// See Note [Deleted working folder].
void leave_deleted_folder(int, char**, char**) {
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof folder) != nullptr || errno != ENOENT) return;
  if (chdir(detail::kNoFolder) != 0) (void)!chdir("/");
}

__attribute__((section(".preinit_array"), used)) void (*const kLeaveDeletedFolder)(int, char**,
                                                                                   char**) = leave_deleted_folder;

/// Adds what the user does to an error whose cause may be that no relative path exists.
absl::Status with_lost_folder(const absl::Status& status) {
  auto error = error_of(status);
  if (!error || !detail::is_working_folder_lost()) return status;
  error->hint = detail::kLostFolderHint;
  return to_status(*error, status.code());
}

/// Time that a rank which fails before the ranks are connected waits for them, to tell them why.
constexpr std::chrono::seconds kFarewellTimeout{10};

std::string line_of(const absl::Status& status) {
  std::string text = error_line(status);
  return text.substr(0, text.find('\n'));
}

/// Tells the other ranks, which wait for this one, why it ends.
void notify_ranks(std::shared_ptr<ProcessGroup>& group, const LaunchEnvironment& launch, const absl::Status& status) {
  if (!group) {
    if (exit_code(status) == ExitCode::kDistributed) return;  // the ranks could not connect
    auto met = ProcessGroup::create(launch, {.timeout = kFarewellTimeout});
    if (!met.ok()) return;  // no other rank is there
    group = *std::move(met);
  }
  group->leave(line_of(status));
}

/// Writes the message that torchrun shows in its summary, in the format of
/// torch/distributed/elastic/multiprocessing/errors.
void notify_launcher(const std::string& path, const absl::Status& status) {
  const nlohmann::json message = {{"message", line_of(status)}, {"timestamp", std::to_string(std::time(nullptr))}};
  // The error is on stderr already; a failure to write this file is ignored.
  (void)write_file_atomically(Fs::posix(), path,
                              message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// Reports an error on stderr, to the launcher, to the other ranks and in error.json. Returns the exit code.
int report(ProgramState& program, const absl::Status& ended) {
  const absl::Status status = with_lost_folder(ended);
  const auto environment = read_launch_environment();
  const LaunchEnvironment launch = environment.ok() && *environment ? **environment : LaunchEnvironment{};
  const bool names_rank = launch.world_size > 1 && launch.launcher != Launcher::kTrainkit;  // which names it itself
  const std::string rank = names_rank ? "[rank " + std::to_string(launch.rank) + "] " : "";
  std::fflush(stdout);
  std::fputs((rank + error_text(status)).c_str(), stderr);
  std::fflush(stderr);
  if (!launch.error_file.empty()) notify_launcher(launch.error_file, status);
  if (launch.world_size > 1) notify_ranks(program.group, launch, status);
  if (!program.output_dir.empty()) {
    // The error is on stderr already; a failure to write error.json (a full disk) is ignored.
    (void)write_error(program.output_dir, status);
    const RunSummary summary{.exit_reason = "error", .exit_code = static_cast<int>(exit_code(status))};
    (void)detail::end_session(program.output_dir, summary, {});
    // On a full disk, leave the rest to the run that resumes.
    if (exit_code(status) != ExitCode::kStorage) (void)detail::write_report(program.output_dir);
  }
  return static_cast<int>(exit_code(status));
}

// Note [Failed devices]
// ~~~~~~~~~~~~~~~~~~~~~
// After an error of a CUDA device every later call of the runtime fails. LibTorch's destructors throw then, often while
// another exception unwinds the stack, and C++ calls std::terminate. Without a handler the process would abort without
// an error line and with the wrong exit code. end_for_device() is that handler:
// - If the current exception is a device error, it reports it once and ends with _Exit, which runs no destructors. If
//   report() has already run, it only uses its exit code.
// - Several threads may terminate at once. The first one reports; the others sleep until the process ends.
// - If report() itself terminates (`is_nested` on the same thread), or for any other exception, the previous handler
//   runs.

/// Passes LibTorch's warnings on, but for one after a device has failed: since 2.15 a block of page-locked memory that
/// is freed then warns, with a stack trace. The error says the same.
class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    constexpr std::string_view kOfFailedDevice = "Failed to record an event while freeing a pinned host block";
    if (!warning.msg().starts_with(kOfFailedDevice)) previous_->process(warning);
  }

 private:
  c10::WarningHandler* previous_ = c10::WarningUtils::get_warning_handler();
};

/// State of the running program for end_for_device(). See Note [Failed devices].
struct Running {
  std::atomic<ProgramState*> program = nullptr;
  std::atomic<int> exit_code = -1;  // of an error that is already reported
  std::terminate_handler previous_handler = nullptr;
};

Running& running() {
  static auto* const made = new Running;
  return *made;
}

[[noreturn]] void end_for_device() {
  static std::atomic<bool> is_ending = false;
  thread_local bool in_handler = false;
  const bool is_nested = std::exchange(in_handler, true);
  if (is_ending.exchange(true) && !is_nested) {
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));  // another thread ends the process
  }
  const absl::Status status = std::current_exception() ? status_from_current_exception() : absl::OkStatus();
  if (!is_nested && exit_code(status) == ExitCode::kDevice) {
    const int reported = running().exit_code;
    ProgramState empty_program, *program = running().program.exchange(nullptr);
    std::_Exit(reported >= 0 ? reported : report(program ? *program : empty_program, status));
  }
  if (running().previous_handler) running().previous_handler();
  std::abort();
}

/// Ignores SIGUSR1, which asks a training loop to save, while no loop runs, and SIGPIPE: a reader that ends, as in
/// `| head`, does not end the run. Uses a handler instead of SIG_IGN, because child processes would inherit SIG_IGN.
void ignore_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  sigaction(SIGPIPE, &action, nullptr);
}

/// Returns an error if the output could not be written, to a full disk for example. A reader that has ended is none.
absl::Status flush_output() {
  errno = 0;
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!failed || errno != ENOSPC) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.full",
                    .where = "standard output",
                    .problem = "cannot write: " + std::string(std::strerror(errno))});
}

}  // namespace

int run_program(const std::function<absl::StatusOr<int>(ProgramState& program)>& body) {
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding `ulimit -f` becomes a write error
  ignore_signals();
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard filter(&warnings);
  ProgramState program;
  running().program = &program;
  if (std::get_terminate() != end_for_device) running().previous_handler = std::set_terminate(end_for_device);
  const absl::StatusOr<int> result = [&]() -> absl::StatusOr<int> {
    try {
      TRAINKIT_RETURN_IF_ERROR(check_environment());
      return body(program);
    } catch (...) {
      return status_from_current_exception();
    }
  }();
  running().program = nullptr;
  const absl::Status printed = flush_output();
  if (result.ok() && printed.ok()) return *result;
  if (result.ok()) return *result != 0 ? *result : running().exit_code = report(program, printed);
  return running().exit_code = report(program, result.status());
}

void print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace trainkit
