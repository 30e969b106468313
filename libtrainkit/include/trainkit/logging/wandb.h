#pragma once
/// Weights & Biases, through its official Python client in a process of its own.

#include <absl/status/statusor.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "trainkit/logging/logger.h"

namespace trainkit {

struct WandbOptions {
  /// The run's folder: the client keeps its files in `<dir>/wandb`, what it prints in `<dir>/wandb/client.log`, and the
  /// run's id in `<dir>/wandb/run_id`.
  std::string dir = {};
  std::string project = "trainkit";
  /// Shown as the run's name; W&B invents one if empty.
  std::string name = {};
  /// Settings of the run. Values whose name ends in key, token, secret or password are sent as "***".
  std::map<std::string, std::string> config = {};
  /// Go on with the run whose id is in `dir`, if there is one.
  bool resume = false;
  /// "online", "offline" or "disabled"; empty: WANDB_MODE, else online.
  std::string mode = {};
  /// The interpreter; empty: TRAINKIT_PYTHON, else python3 on the PATH.
  std::string python = {};
  /// How long close() waits for the client to send what it still has. Then the client goes on alone.
  std::chrono::milliseconds finish_timeout{30'000};
};

/// Sends records to W&B: the same tags as TensorBoardLogger's.
///
/// W&B publishes no stable client for C++, so the `wandb` package runs as a child process (posix_spawn, no fork of this
/// address space) that is fed lines of JSON over a socket. The child has a process group of its own, so that Ctrl+C
/// lets it finish; if this process is killed, the child sees the end of the socket and closes the run. No call but
/// create() and close() waits for it: up to 4 MiB of records wait in memory while it starts or stalls, later ones are
/// left out.
///
/// Credentials are the client's own business (WANDB_API_KEY, `wandb login`): they pass through the environment, and
/// never through an argument, a record or a log of ours.
///
/// W&B cannot take a step back: after a rewind, steps that it has are ignored by it, which is right for a resumed run,
/// whose repeated steps are the same.
///
/// optional(): a client that fails in the middle is one warning and does not end the run.
class WandbLogger final : public Logger {
 public:
  /// Starts the client and waits until it is known that it can work, not until it is connected (about 0.1 s). Exit code
  /// 2:
  ///   the interpreter or the wandb package is not there (hint: pip install wandb)
  ///   online without credentials                       (hint: wandb login, or WANDB_MODE=offline)
  /// Exit code 6: `dir` cannot be written.
  static absl::StatusOr<std::unique_ptr<WandbLogger>> create(const WandbOptions& options);
  /// As close().
  ~WandbLogger() override;

  void log(const LogRecord& record) override;
  void log_text(const LogText& text) override;
  void tick(int64_t step) override;
  /// The client's failure, if it has told of one. Does not wait.
  absl::Status flush() override;
  absl::Status close() override;
  bool optional() const override;

 private:
  class Impl;
  explicit WandbLogger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
