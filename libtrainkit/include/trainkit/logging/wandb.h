#pragma once
/// Logs to Weights & Biases through its official Python client, which runs in a separate process.

#include <absl/status/statusor.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "trainkit/logging/logger.h"

namespace trainkit {

struct WandbOptions {
  /// Output folder of the run. The client keeps its files in `<dir>/wandb`, its output in `<dir>/wandb/client.log`, and
  /// the run id in `<dir>/wandb/run_id`.
  std::string dir = {};
  std::string project = "trainkit";
  /// Display name of the run. W&B chooses one if empty.
  std::string name = {};
  /// Settings of the run. Values of names that end in key, token, secret or password are sent as "***".
  std::map<std::string, std::string> config = {};
  /// Resume the run whose id is in `dir`, if there is one.
  bool resume = false;
  /// "online", "offline" or "disabled". Default if empty: WANDB_MODE, else "online".
  std::string mode = {};
  /// Python interpreter. Default if empty: TRAINKIT_PYTHON, else python3 from PATH.
  std::string python = {};
  /// Longest time that close() waits for the client to upload. After it the client continues in the background.
  std::chrono::milliseconds finish_timeout{30'000};
};

/// Sends records to W&B, with the same tags as TensorBoardLogger.
///
/// W&B has no stable C++ client, so the `wandb` package runs as a child process and receives JSON lines over a socket.
/// The child is started with posix_spawn, which does not copy this address space. It has its own process group, so
/// Ctrl+C does not interrupt it. If this process is killed, the child sees the end of the socket and closes the run.
///
/// Only create() and close() wait for the child. While it starts or stalls, up to 4 MiB of records are kept in memory;
/// later ones are dropped.
///
/// Credentials are handled by the client (WANDB_API_KEY, `wandb login`). They pass through the environment, never
/// through an argument, a record or a log of this library.
///
/// W&B cannot rewind: after a rewind it ignores the steps it already has. That is correct for a resumed run, whose
/// repeated steps are identical.
///
/// optional(): a client that fails during training causes one warning and does not end the run.
class WandbLogger final : public Logger {
 public:
  /// Starts the client and waits until it is able to run (about 0.1 s), not until it is connected. Exit code 2:
  ///   the interpreter or the wandb package is missing (hint: pip install wandb)
  ///   online without credentials                      (hint: wandb login, or WANDB_MODE=offline)
  /// Exit code 6: `dir` is not writable.
  static absl::StatusOr<std::unique_ptr<WandbLogger>> create(const WandbOptions& options);
  /// Calls close() and ignores its error.
  ~WandbLogger() override;

  void log(const LogRecord& record) override;
  void log_text(const LogText& text) override;
  void tick(int64_t step) override;
  /// Returns the error reported by the client, if any. Does not wait.
  absl::Status flush() override;
  absl::Status close() override;
  bool optional() const override;

 private:
  class Impl;
  explicit WandbLogger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
