#pragma once
/// Writes TensorBoard event files without Python and without TensorFlow.

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "trainkit/logging/logger.h"

namespace trainkit {

/// Writes scalars and texts to a folder that `tensorboard --logdir` opens.
///
/// Tags: value "loss" of split "train" is "train/loss". The learning rate is "train/lr", or "train/lr/0", "train/lr/1",
/// ... if there are several groups. The epoch is "train/epoch". GPUs have "train/gpu_memory_bytes/0" and
/// "train/gpu_utilisation/0". A text keeps its own tag. Tags are escaped (escape_text in core/error.h). Scalars are
/// single precision, as in TensorBoard.
///
/// The file is `events.out.tfevents.<seconds>.<host>.<pid>.trainkit`. It is opened at the first record, with a name
/// that sorts after the other files of the folder. Each event is one write, framed as a TFRecord:
///
///   uint64 length | uint32 masked CRC-32C of the length | data | uint32 masked CRC-32C of the data (little-endian)
///   mask(c) = (c >> 15 | c << 17) + 0xa282ead8;   data: a serialised tensorflow.Event
///
/// So after a kill at any moment a reader sees every complete event.
/// Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto (TensorFlow 2).
class TensorBoardLogger final : public Logger {
 public:
  /// Creates the folder if necessary; one folder is one run. Exit code 6 if that fails.
  static absl::StatusOr<std::unique_ptr<TensorBoardLogger>> open(const std::string& folder);
  ~TensorBoardLogger() override;

  void log(const LogRecord& record) override;
  /// Writes a text. TensorBoard shows it under TEXT and renders Markdown.
  void log_text(const LogText& text) override;
  /// Writes out all events and synchronises the file with the disk. For a full disk see JsonlLogger.
  absl::Status flush() override;

  /// Truncates every file that this library wrote to the folder before its first event that is torn or belongs to a
  /// step after `step`. Removes files without events. The next file begins with TensorFlow's restart mark, so that a
  /// running TensorBoard drops the same steps. rewind(-1) removes the files.
  absl::Status rewind(int64_t step) override;

 private:
  class Impl;
  explicit TensorBoardLogger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
