#pragma once
/// Encodes the fields of TensorFlow's Event used here in protobuf's wire format, and the record framing of event files.
/// Encoded by hand: it takes 60 lines, and a second protobuf would clash with the one inside LibTorch.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "trainkit/logging/logger.h"

namespace trainkit::detail {

/// Computes CRC-32C (Castagnoli), as in RFC 3720.
uint32_t crc32c(std::string_view bytes);

/// Frames `data` as a TFRecord: length, masked CRC of the length, data, masked CRC of the data.
std::string frame_record(std::string_view data);

/// Returns the data of the record at `offset` and moves `offset` past it. Returns nullopt and keeps `offset` at the end
/// of `bytes` and for a record that is torn or has a wrong CRC.
std::optional<std::string_view> next_record(std::string_view bytes, size_t& offset);

/// Builds a tensorflow.Event.
class EventBuilder {
 public:
  EventBuilder(double wall_time, int64_t step);
  /// Sets Event.file_version, which the first event of every file has.
  void file_version();
  /// Sets Event.session_log with status START: readers drop their events of this step and later ones.
  void session_start();
  /// Adds a Summary.Value with simple_value.
  void scalar(std::string_view tag, float value);
  /// Adds a Summary.Value with a string tensor of shape [1] for the text plugin.
  void text(std::string_view tag, std::string_view text);
  /// Adds a Summary.Value with the bytes of a PNG file.
  void image(std::string_view tag, int64_t height, int64_t width, std::string_view png);
  /// Adds a Summary.Value with a HistogramProto: `counts` of ranges of equal width from min to max.
  void histogram(std::string_view tag, const LogHistogram& histogram);
  /// Adds the hyperparameters of a run, for the plugin hparams. Texts that are a number or a boolean become one; "null"
  /// is left out.
  void hparams_start(const std::map<std::string, std::string>& settings, double wall_time);
  /// Marks the run as finished, for the plugin hparams.
  void hparams_end(double wall_time);
  /// Adds the charts of the tab Custom Scalars: loss, scores and throughput, each over all splits.
  void chart_layout();
  /// Returns the serialised Event.
  std::string finish() const;

 private:
  void hparams(std::string_view tag, std::string_view content);
  std::string event_;
  std::string summary_;
};

/// Returns Event.step of a serialised Event, or 0 if it has none. nullopt if `event` is not in protobuf's wire format.
std::optional<int64_t> event_step(std::string_view event);

/// Whether a serialised Event has a session_log, as written by session_start().
bool event_is_session(std::string_view event);

/// Whether a serialised Event describes the run, as written by hparams_start(), hparams_end() and chart_layout(). It
/// belongs to no step.
bool event_is_description(std::string_view event);

/// Whether a serialised Event has a value of `split`: a tag equal to it, or starting with it and a slash.
bool event_is_of(std::string_view event, std::string_view split);

}  // namespace trainkit::detail
