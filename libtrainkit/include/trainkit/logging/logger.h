#pragma once
/// Records of a run, the sinks that store them, and a writer thread between the training step and the sinks.

#include <ATen/core/Tensor.h>
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

struct MonitorReport;

/// One logged event: measurements after `step` optimizer steps.
struct LogRecord {
  /// Optimizer steps completed at the time of measurement.
  int64_t step = 0;
  /// Epochs completed, including the fraction of the current one.
  double epoch = 0;
  /// "train", "val" or "test".
  std::string split = "train";
  /// Named values in display order: "loss", "grad_norm", "samples_per_second", "tokens_per_second", the values of
  /// Monitor::append_values, and your own metrics. NaN and infinity are allowed.
  std::vector<std::pair<std::string, double>> values = {};
  /// Learning rate of each parameter group.
  std::vector<double> lr = {};
  /// Bytes allocated by LibTorch's allocator on each GPU, in rank order.
  std::vector<int64_t> gpu_memory_bytes = {};
  /// Utilisation of each of these GPUs from 0 to 1, as reported by the driver. -1 for a GPU without a value; empty if
  /// no driver reports one.
  std::vector<double> gpu_utilisation = {};

  /// Returns the value named `name`, or nullptr.
  const double* find(std::string_view name) const;
};

/// Text that belongs to a step, for example a generated sample or a confusion matrix in Markdown.
struct LogText {
  int64_t step = 0;
  std::string tag = {};
  std::string text = {};
};

/// A picture of a step. Logger::image makes it.
struct LogImage {
  int64_t step = 0;
  std::string tag = {};
  /// (height, width, 3) uint8 on the CPU.
  at::Tensor pixels = {};
  /// The same as the bytes of a PNG file. Empty: not compressed yet; RunLogger does it in its writer thread.
  std::string png = {};
};

/// The distribution of values at a step. Logger::histogram makes it.
struct LogHistogram {
  int64_t step = 0;
  std::string tag = {};
  /// Of the finite values.
  double min = 0, max = 0, sum = 0, sum_of_squares = 0;
  /// Numbers of finite values in ranges of equal width from min to max. One range if all are equal, none without any.
  std::vector<int64_t> counts = {};
  /// Number of NaN and infinite values.
  int64_t non_finite = 0;
};

/// Planned length of a run, for displays. 0 means unknown.
struct RunPlan {
  int64_t first_step = 0;
  int64_t total_steps = 0;
  /// Only if the number of epochs ends the run.
  double total_epochs = 0;
  /// Time limit from now on.
  double max_seconds = 0;
};

/// A sink for records: JsonlLogger, TensorBoardLogger, WandbLogger, ConsoleProgress, or your own.
///
/// Called by one thread at a time. log() neither fails nor throws: a sink keeps a write error and returns it from
/// flush().
class Logger {
 public:
  virtual ~Logger() = default;

  /// Announces the start or the resumption of a run. Only displays need it.
  virtual void begin(const RunPlan& plan);
  virtual void log(const LogRecord& record) = 0;
  virtual void log_text(const LogText& text);
  virtual void log_image(const LogImage& image);
  virtual void log_histogram(const LogHistogram& histogram);

  /// Logs a picture: (C, H, W) or (H, W), uint8, or floating point from 0 to 1 (other values are clamped, NaN is 0); C
  /// is 1 or 3. Copies it to the host first, which waits for its device; all else happens outside this thread. Throws
  /// c10::ValueError for another shape or dtype.
  ///
  ///   logger.image("val/samples", step, picture);
  void image(std::string_view tag, int64_t step, const at::Tensor& picture);
  /// Logs the distribution of a tensor's values, of any shape and dtype, in 64 ranges. Counts on the tensor's device
  /// and waits for it once.
  ///
  ///   logger.histogram("weights/" + name, step, parameter);
  void histogram(std::string_view tag, int64_t step, const at::Tensor& values);

  /// Shows a line of text to the user. Files ignore it.
  virtual void print(std::string_view line);
  /// Shows a row of a live table, whose first row is its heading. The default prints it.
  virtual void show_row(std::string_view row);
  /// Reports what the monitor knows so far, every few seconds. Only run.json needs it.
  virtual void log_monitor(const MonitorReport& report);
  /// Reports the current step, about ten times per second, for displays that move between records.
  virtual void tick(int64_t step);

  /// Writes out all records and returns the error of any record that could not be written.
  virtual absl::Status flush() = 0;

  /// Removes every record of a step after `step`, records of split "test" at `step`, and a torn last record. Call it on
  /// resume before the first log(), so that no step is logged twice.
  ///
  /// The test records go because the test follows the run's last checkpoint, so a run resumed from that checkpoint
  /// tests again.
  virtual absl::Status rewind(int64_t step);

  /// Flushes the sink for the last time. Nothing is logged afterwards.
  virtual absl::Status close();

  /// Whether a failure of this sink is only worth a warning (a screen, a network service).
  virtual bool optional() const;
};

/// Policy for a training record when the queue is full.
enum class WhenFull {
  kDrop,  ///< Drops the record. dropped() counts it; one warning is printed.
  kWait   ///< Waits for the writer. No record is lost, but a slow disk delays the step.
};

struct RunLoggerOptions {
  /// Capacity of the queue in records, at least 2. Memory: about 500 bytes per record.
  size_t queue_capacity = 4096;
  WhenFull when_full = WhenFull::kDrop;
  /// Wake-up interval of the writer thread. Between two wake-ups log() makes no system call.
  std::chrono::milliseconds drain_every{100};
  /// Flush interval of the sinks: the most log data that a power cut can lose, and the delay until an error is noticed.
  std::chrono::milliseconds flush_every{5'000};
};

/// Passes records to all sinks from its own writer thread.
///
///   RunLogger logger;
///   logger.add(JsonlLogger::open(dir + "/metrics.jsonl").value());
///   logger.log({.step = 10, .values = {{"loss", 2.31}}, .lr = {1e-3}});
///   ...
///   absl::Status status = logger.flush();   // before a checkpoint: records up to this step are on disk
///
/// log(), log_text(), log_image(), log_histogram(), print() and show_row() copy into a bounded queue under a lock;
/// tick() stores one atomic. Each call takes well below a microsecond, without a system call and, after warm-up,
/// without an allocation. A sink that stalls or fails does not delay the step. The other sinks continue as soon as its
/// call returns. If the queue is full, training records follow `when_full`. Other splits, texts, pictures, histograms
/// and lines are rare and always kept.
///
/// A sink's error is printed once, as a warning on the sinks that can print, and returned once by flush(). close()
/// returns the first error again. Errors of sinks that are optional() are only printed. Every method may be called from
/// any thread.
class RunLogger final : public Logger {
 public:
  explicit RunLogger(RunLoggerOptions options = {});
  /// Writes the queued records, closes the sinks and joins the thread. Errors are lost: call close() first.
  ~RunLogger() override;

  /// Adds a sink. It receives only records logged after this call.
  void add(std::unique_ptr<Logger> sink);

  void begin(const RunPlan& plan) override;
  void log(const LogRecord& record) override;
  void log_text(const LogText& text) override;
  void log_image(const LogImage& image) override;
  void log_histogram(const LogHistogram& histogram) override;
  void print(std::string_view line) override;
  void show_row(std::string_view row) override;
  void log_monitor(const MonitorReport& report) override;
  /// Stores the step with one relaxed atomic store.
  void tick(int64_t step) override;

  /// Blocks until the sinks have written and flushed everything logged before. Meant for checkpoints.
  absl::Status flush() override;
  absl::Status rewind(int64_t step) override;
  /// Stops the writer, closes the sinks and returns the first error of the run. Later records are ignored.
  absl::Status close() override;

  /// Training records dropped so far because the queue was full.
  int64_t dropped() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
