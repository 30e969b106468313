#pragma once
/// TensorBoard event files, written without Python and without TensorFlow.

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "trainkit/logging/logger.h"

namespace trainkit {

/// Writes scalars and texts to a folder that `tensorboard --logdir` opens.
///
/// A record's value "loss" of split "train" has the tag "train/loss"; the learning rates are "train/lr" (with more
/// groups than one "train/lr/0", "train/lr/1", ...), the epoch is "train/epoch", memory is "train/gpu_memory_bytes/0".
/// A text has the tag it is given. Tags are escaped (escape_text in core/error.h). Scalars are single precision, as
/// TensorBoard's are.
///
/// The file is `events.out.tfevents.<seconds>.<host>.<pid>.trainkit`, opened at the first record, of a name that sorts
/// behind the folder's others. Each event is one write, framed as a TFRecord:
///
///   uint64 length | uint32 masked CRC-32C of the length | data | uint32 masked CRC-32C of the data (little-endian)
///   mask(c) = (c >> 15 | c << 17) + 0xa282ead8;   data: a serialised tensorflow.Event
///
/// so after a kill at any moment a reader sees every event that was complete.
/// Source: tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto (TensorFlow 2).
class TensorBoardLogger final : public Logger {
 public:
  /// Creates the folder if need be; one folder is one run. Exit code 6 if that fails.
  static absl::StatusOr<std::unique_ptr<TensorBoardLogger>> open(const std::string& folder);
  ~TensorBoardLogger() override;

  void log(const LogRecord& record) override;
  /// Shown under TEXT, where Markdown is rendered.
  void log_text(const LogText& text) override;
  /// Also synchronises the file with the disk. A full disk: see JsonlLogger.
  absl::Status flush() override;

  /// Cuts every file that this library wrote into the folder before its first event that is torn or of a later step,
  /// and removes a file that is left without events. The next file begins with TensorFlow's restart mark, on which a
  /// TensorBoard that is running forgets the same steps. rewind(-1) removes the files.
  absl::Status rewind(int64_t step) override;

 private:
  class Impl;
  explicit TensorBoardLogger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
