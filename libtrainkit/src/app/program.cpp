#include "trainkit/app/program.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "trainkit/core/environment.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/launch_environment.h"
#include "trainkit/logging/summary.h"

namespace trainkit {
namespace {

/// How long a rank that fails before the ranks have met waits for them, to say why it will not come.
constexpr std::chrono::seconds kFarewell{10};

std::string line_of(const absl::Status& status) {
  std::string text = error_line(status);
  return text.substr(0, text.find('\n'));
}

/// The others wait for this rank, or soon will: they learn why it ends.
void notify_ranks(std::shared_ptr<ProcessGroup>& group, const LaunchEnvironment& launch, const absl::Status& status) {
  if (!group) {
    if (exit_code(status) == ExitCode::kDistributed) return;  // they could not meet
    auto met = ProcessGroup::create(launch, {.timeout = kFarewell});
    if (!met.ok()) return;  // nobody is there to be told
    group = *std::move(met);
  }
  group->leave(line_of(status));
}

/// What torchrun shows in its summary: torch/distributed/elastic/multiprocessing/errors reads this form.
void notify_launcher(const std::string& path, const absl::Status& status) {
  const nlohmann::json message = {{"message", line_of(status)}, {"timestamp", std::to_string(std::time(nullptr))}};
  // Told on stderr already: a file that cannot be written is not worth another error.
  (void)write_file_atomically(Fs::posix(), path,
                              message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// Tells an error to stderr, the launcher, the other ranks and error.json. The exit code.
int report(Program& program, const absl::Status& status) {
  const auto environment = read_launch_environment();
  const LaunchEnvironment launch = environment.ok() && *environment ? **environment : LaunchEnvironment{};
  const std::string rank = launch.world_size > 1 ? "[rank " + std::to_string(launch.rank) + "] " : "";
  std::fflush(stdout);
  std::fputs((rank + error_text(status)).c_str(), stderr);
  std::fflush(stderr);
  if (!launch.error_file.empty()) notify_launcher(launch.error_file, status);
  if (launch.world_size > 1) notify_ranks(program.group, launch, status);
  if (!program.output_dir.empty()) {
    // The error is on stderr already: that it could not be kept as well (a full disk) is not told.
    (void)write_error(program.output_dir, status);
  }
  return static_cast<int>(exit_code(status));
}

/// The program that runs, for a failed device: from then on LibTorch's destructors throw, which ends the process in the
/// midst of any unwinding.
struct Running {
  std::atomic<Program*> program = nullptr;
  std::atomic<int> exit_code = -1;  // of an error that is told already
  std::terminate_handler otherwise = nullptr;
};

Running& running() {
  static auto* const made = new Running;
  return *made;
}

[[noreturn]] void end_for_device() {
  static std::atomic<bool> is_ending = false;
  thread_local bool is_here = false;
  const bool is_again = std::exchange(is_here, true);
  if (is_ending.exchange(true) && !is_again) {
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));  // another thread ends the process
  }
  const absl::Status status = std::current_exception() ? status_from_current_exception() : absl::OkStatus();
  if (!is_again && exit_code(status) == ExitCode::kDevice) {
    const int told = running().exit_code;
    Program nothing, *program = running().program.exchange(nullptr);
    std::_Exit(told >= 0 ? told : report(program ? *program : nothing, status));
  }
  if (running().otherwise) running().otherwise();
  std::abort();
}

/// SIGUSR1 asks a training loop to save and go on. Where there is nothing to save, it is no reason to end. A handler
/// and not SIG_IGN: what is ignored would be so in programs that this one starts, too.
void outlive_save_requests() {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace

int run_program(const std::function<absl::StatusOr<int>(Program& program)>& body) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error to tell, not to die of
  outlive_save_requests();
  Program program;
  running().program = &program;
  if (std::get_terminate() != end_for_device) running().otherwise = std::set_terminate(end_for_device);
  const absl::StatusOr<int> result = [&]() -> absl::StatusOr<int> {
    try {
      TRAINKIT_RETURN_IF_ERROR(check_environment());
      return body(program);
    } catch (...) {
      return status_from_current_exception();
    }
  }();
  running().program = nullptr;
  if (result.ok()) return *result;
  return running().exit_code = report(program, result.status());
}

}  // namespace trainkit
