#pragma once
/// What a run records, and the one writer that brings it to every place without holding up the step.

#include <absl/status/status.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainkit {

/// One event of a run: what was known after `step` optimizer steps.
struct LogRecord {
  /// Optimizer steps done when this was measured.
  int64_t step = 0;
  /// Epochs done, a fraction within one.
  double epoch = 0;
  /// "train", "val" or "test".
  std::string split = "train";
  /// Named values in the order in which they are shown: "loss", "grad_norm", "samples_per_second", "tokens_per_second",
  /// those of Monitor::append_values and metrics of one's own. Not a number and infinity are values too.
  std::vector<std::pair<std::string, double>> values = {};
  /// Learning rate of each parameter group.
  std::vector<double> lr = {};
  /// Bytes that the allocator holds on each GPU, of all ranks in their order.
  std::vector<int64_t> gpu_memory_bytes = {};
  /// How busy each of these GPUs was, 0 to 1, as its driver says; -1 where it does not. Empty if none does.
  std::vector<double> gpu_utilisation = {};

  /// The value called `name`, or nullptr.
  const double* find(std::string_view name) const;
};

/// Text that belongs to a step: a sample that the model wrote, a confusion matrix in Markdown.
struct LogText {
  int64_t step = 0;
  std::string tag = {};
  std::string text = {};
};

/// How long a run will be, for displays. 0 where it is not known.
struct RunPlan {
  int64_t first_step = 0;
  int64_t total_steps = 0;
  double total_epochs = 0;
};

/// A place that records go to: JsonlLogger, TensorBoardLogger, WandbLogger, ConsoleProgress, or one of your own.
///
/// One thread at a time calls it. What cannot be written is kept as an error and returned by flush(); log() itself
/// neither fails nor throws.
class Logger {
 public:
  virtual ~Logger() = default;

  /// The run starts, or goes on after a resume. Only displays need it.
  virtual void begin(const RunPlan& plan);
  virtual void log(const LogRecord& record) = 0;
  virtual void log_text(const LogText& text);
  /// A line for the person who watches. Files ignore it.
  virtual void print(std::string_view line);
  /// The step that training has reached, about ten times a second, for displays that move between records.
  virtual void tick(int64_t step);

  /// Brings all that was logged to its place and returns the failure that kept something from getting there.
  virtual absl::Status flush() = 0;

  /// Forgets every record of a step after `step`, those of the split "test" at `step` (a test follows a run's last
  /// checkpoint, and whoever goes on from that takes it again), and a last record that a kill left torn. Call it on
  /// resume, before the first log(), so that no step stands twice.
  virtual absl::Status rewind(int64_t step);

  /// flush(), and the last thing done: nothing is logged afterwards.
  virtual absl::Status close();

  /// True for a sink whose failure is worth a warning and no more (a screen, a service on the network).
  virtual bool optional() const;
};

/// What log() does with a training record that finds the queue full.
enum class WhenFull {
  kDrop,  ///< Leaves it out: counted by dropped(), and one warning.
  kWait   ///< Waits for the writer: the record is whole, the step pays for a slow disk.
};

struct RunLoggerOptions {
  /// Records that wait for the writer; at least 2. Memory is about 500 bytes each.
  size_t queue_capacity = 4096;
  WhenFull when_full = WhenFull::kDrop;
  /// How often the writer wakes up. Between two wake-ups log() takes no system call.
  std::chrono::milliseconds drain_every{100};
  /// How often the writer flushes the sinks: what a power cut can cost, and how soon a failure is noticed.
  std::chrono::milliseconds flush_every{5'000};
};

/// Hands records to all sinks from a thread of its own.
///
///   RunLogger logger;
///   logger.add(JsonlLogger::open(dir + "/metrics.jsonl").value());
///   logger.log({.step = 10, .values = {{"loss", 2.31}}, .lr = {1e-3}});
///   ...
///   absl::Status status = logger.flush();   // before a checkpoint: what it will not repeat is on disk
///
/// log(), log_text(), print() and tick() copy into a bounded queue under a lock: well below a microsecond, no
/// allocation once warm, no system call. A sink that stalls or fails holds up neither the step nor, once it has
/// returned, the other sinks. With a full queue training records follow `when_full`; other splits, texts and lines are
/// rare and always kept.
///
/// A sink's failure is printed once as a warning on the sinks that can print, and returned once by flush(); the first
/// one is returned again by close(). Failures of sinks that are optional() are only printed. Records, flush and close
/// may come from any thread.
class RunLogger final : public Logger {
 public:
  explicit RunLogger(RunLoggerOptions options = {});
  /// Writes what is queued, closes the sinks and ends the thread; errors are lost, so call close() first.
  ~RunLogger() override;

  /// Adds a sink; records logged before are not shown to it.
  void add(std::unique_ptr<Logger> sink);

  void begin(const RunPlan& plan) override;
  void log(const LogRecord& record) override;
  void log_text(const LogText& text) override;
  void print(std::string_view line) override;
  /// One relaxed store.
  void tick(int64_t step) override;

  /// Waits until the sinks have all that was logged before. Takes the caller's time: it is meant for checkpoints.
  absl::Status flush() override;
  absl::Status rewind(int64_t step) override;
  /// The first failure of the run. Afterwards the logger ignores records.
  absl::Status close() override;

  /// Training records that a full queue has cost so far.
  int64_t dropped() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
