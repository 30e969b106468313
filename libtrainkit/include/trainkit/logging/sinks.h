#pragma once
/// The sinks of records: metrics.jsonl, media/, TensorBoard, Weights & Biases, and progress on the screen.

#include <absl/status/statusor.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/logging/logger.h"

namespace trainkit {

// ---- Writes and reads metrics.jsonl: the metrics of a run, one JSON object per line.

/// Appends one line per record:
///
///   {"step":20,"epoch":0.25,"split":"train","loss":2.31,"grad_norm":0.71,"samples_per_second":812.4,
///    "data_wait_fraction":0.02,"lr":[0.001],"gpu_memory_bytes":[1073741824],"time":1795486102.417}
///
/// Order: step, epoch, split, the record's values in their order, then lr, gpu_memory_bytes and gpu_utilisation if
/// present, then time: the Unix time in seconds of the write, up to 0.1 s after the measurement. read_jsonl returns it
/// as the value "time". Numbers have the fewest digits that read back to the same double.
///
/// JSON has no NaN and no infinity: they are the strings "NaN", "Infinity" and "-Infinity", as in protobuf's JSON
/// mapping. Python's float() and JavaScript's Number() read them. A value named like one of the seven fixed fields gets
/// the suffix "_". If two values have the same name, the first is written.
///
/// Each line is one write to a file opened with O_APPEND, so a killed process leaves whole lines. A power cut can tear
/// the last one. flush() also synchronises the file with the disk (fdatasync). A full disk (exit code 6) leaves no
/// partial line. The refused lines are written as soon as there is space again.
class JsonlLogger final : public Logger {
 public:
  /// Opens `path` for appending and creates it if necessary. Exit code 6 if it is not writable.
  static absl::StatusOr<std::unique_ptr<JsonlLogger>> open(const std::string& path);
  ~JsonlLogger() override;

  void log(const LogRecord& record) override;
  absl::Status flush() override;
  /// Truncates the file before the first line that is torn or belongs to a step after `step`. rewind(-1) empties it.
  /// Reads from the end: of a file of more than 16 MiB only the part from a record of `step` or earlier on.
  absl::Status rewind(int64_t step) override;

 private:
  class Impl;
  explicit JsonlLogger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns the JSON line of a record, without the line end.
std::string to_json(const LogRecord& record);

/// Reads the records of a metrics.jsonl in order, up to the first line that is torn or not a record. Skips unknown
/// fields that are not numbers. kNotFound if the file does not exist; exit code 6 for other errors.
absl::StatusOr<std::vector<LogRecord>> read_jsonl(const std::string& path);

// ---- Writes the pictures and histograms of a run to its folder media/.

/// Writes each picture to `<folder>/<tag>.step-<number>.png`, replacing one of the same tag and step, and appends each
/// histogram to `<folder>/histograms.jsonl`:
///
///   {"step":20,"tag":"weights/fc","min":-0.5,"max":0.5,"sum":0.1,"sum_of_squares":9.7,"counts":[1,0,5]}
///
/// A file appears whole or not at all. The folder is created with the first of them.
class MediaLogger final : public Logger {
 public:
  explicit MediaLogger(const std::string& folder);
  ~MediaLogger() override;

  void log(const LogRecord& record) override;
  void log_image(const LogImage& image) override;
  void log_histogram(const LogHistogram& histogram) override;
  absl::Status flush() override;
  /// Deletes the pictures of steps after `step`, and those tagged "test/..." at `step`, and truncates the histograms
  /// likewise. Other files stay.
  absl::Status rewind(int64_t step) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// ---- Writes TensorBoard event files without Python and without TensorFlow.

/// Writes scalars and texts to a folder that `tensorboard --logdir` opens.
///
/// Tags: value "loss" of split "train" is "train/loss". The learning rate is "train/lr", or "train/lr/0", "train/lr/1",
/// ... if there are several groups. The epoch is "train/epoch". GPUs have "train/gpu_memory_bytes/0" and
/// "train/gpu_utilisation/0". A text keeps its own tag. Tags are escaped (escape_text in core/error.h). Scalars are
/// single precision, as in TensorBoard.
///
/// The file is `events.out.tfevents.<seconds>.<host>.<pid>.trainkit`, with `.run-<id>` before `.trainkit` for a run
/// with an id. It is opened at the first record, with a name that sorts after the other files of the folder. Each event
/// is one write, framed as a TFRecord:
///
///   uint64 length | uint32 masked CRC-32C of the length | data | uint32 masked CRC-32C of the data (little-endian)
///   mask(c) = (c >> 15 | c << 17) + 0xa282ead8;   data: a serialised tensorflow.Event
///
/// So after a kill at any moment a reader sees every complete event.
/// Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto (TensorFlow 2).
class TensorBoardLogger final : public Logger {
 public:
  /// Creates the folder if necessary; TensorBoard shows one folder as one run. With the `settings` of the run,
  /// TensorBoard lists them as its hyperparameters (tab HPARAMS), and the tab CUSTOM SCALARS has one chart each for
  /// loss, scores and throughput. A folder that other runs may use needs a `run_id` of 16 hexadecimal digits: rewind()
  /// then changes the files with this id alone. Exit code 6 if the folder cannot be created.
  static absl::StatusOr<std::unique_ptr<TensorBoardLogger>> open(
      const std::string& folder, const std::map<std::string, std::string>& settings = {},
      const std::string& run_id = {});
  ~TensorBoardLogger() override;

  void log(const LogRecord& record) override;
  /// Writes a text. TensorBoard shows it under TEXT and renders Markdown.
  void log_text(const LogText& text) override;
  /// Writes a picture (IMAGES), and a histogram (HISTOGRAMS, DISTRIBUTIONS).
  void log_image(const LogImage& image) override;
  void log_histogram(const LogHistogram& histogram) override;
  /// Writes out all events and synchronises the file with the disk. For a full disk see JsonlLogger.
  absl::Status flush() override;
  /// Marks the run as finished in HPARAMS, then flush().
  absl::Status close() override;

  /// Truncates every file of this run (of the same `run_id`; without one, every file that this library wrote to the
  /// folder for a run without an id) before its first event that is torn or belongs to a step after `step`. Removes
  /// files without events. The next file begins with TensorFlow's restart mark, so that a running TensorBoard drops the
  /// same steps. rewind(-1) removes the files.
  absl::Status rewind(int64_t step) override;

 private:
  class Impl;
  explicit TensorBoardLogger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// ---- Logs to Weights & Biases through its official Python client, which runs in a separate process.

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
  /// Returns the error of create(), without the one of `dir`: starts the client, which ends before it connects. Writes
  /// nothing.
  static absl::Status check(const WandbOptions& options);
  /// Calls close() and ignores its error.
  ~WandbLogger() override;

  void log(const LogRecord& record) override;
  void log_text(const LogText& text) override;
  /// Sends the path of the picture in `<dir>/media`, which MediaLogger has written before. Without the Pillow package
  /// the client shows it as HTML.
  void log_image(const LogImage& image) override;
  void log_histogram(const LogHistogram& histogram) override;
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

// ---- Shows progress to the user: a bar on a terminal, plain lines elsewhere.

struct ProgressOptions {
  enum class Style {
    kAuto,  ///< A bar on a terminal that can move its cursor (TERM is set and not "dumb"), otherwise lines.
    kBar,
    kLines
  };
  Style style = Style::kAuto;
  /// Width of the bar in columns. 0 asks the terminal before each drawing, so the bar follows the window size.
  int width = 0;
  /// Clock in seconds with any origin, for tests. The steady clock if empty.
  std::function<double()> clock = {};
};

/// Shows records on a stream provided by the program. On a terminal it redraws one line, at most ten times per second:
///
///    37% ━━━━━━━━━━──────────────── 740/2000 [0:41<1:10] epoch 1.85/5 loss 2.1034 lr 0.000955 12.3k tokens/s
///
/// Elsewhere it prints one line per training record:
///
///   step 740/2000 | epoch 1.85/5 | loss 2.1034 | lr 0.000955 | 12.3k tokens/s | left 1:10
///
/// Both name the limit that will end the run: a total of steps and epochs, or the time that remains of max_time
/// ("[0:41<0:19 of max_time]"). Evaluations, printed lines and warnings stay above the bar. The rows of a live table
/// are redrawn in place above the bar: its heading and the last rows. Elsewhere they are plain lines, and so are texts,
/// whose Markdown tables become aligned columns. On a narrow terminal the bar is omitted first, then fields from the
/// right. The remaining time follows the speed of the last half minute. The data wait is shown from 10 % on ("data wait
/// 43%"). A value of an evaluation whose name has a dot ("recall.Corn") is a detail: it is in the files only.
///
/// Escapes text and masks secrets (format_text in format.h). If the stream is closed or its reader has exited (EPIPE,
/// without raising SIGPIPE), the display stays silent. It is optional() and never ends a run.
class ConsoleProgress final : public Logger {
 public:
  /// Does not take ownership of `stream`, which must outlive this object. Flushes it before each drawing.
  explicit ConsoleProgress(std::FILE* stream, ProgressOptions options = {});
  /// Ends the last bar with a line end, so that it stays visible.
  ~ConsoleProgress() override;

  void begin(const RunPlan& plan) override;
  void log(const LogRecord& record) override;
  /// Prints the text below its tag.
  void log_text(const LogText& text) override;
  void print(std::string_view line) override;
  void show_row(std::string_view row) override;
  void tick(int64_t step) override;
  absl::Status flush() override;
  absl::Status close() override;
  bool optional() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
