#pragma once
/// The few fields of TensorFlow's Event that we write, in protobuf's wire format, and the record framing of event
/// files. Encoded by hand: it is 60 lines, and LibTorch carries a protobuf of its own with which a second one would
/// clash.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainkit::detail {

/// CRC-32C (Castagnoli), as in RFC 3720.
uint32_t crc32c(std::string_view bytes);

/// `data` as a TFRecord: length, masked CRC of the length, data, masked CRC of the data.
std::string frame_record(std::string_view data);

/// The data of the record that starts at `offset`, which moves behind it. nullopt (and offset as it was) at the end of
/// `bytes` and for a record that is torn or whose CRC is wrong.
std::optional<std::string_view> next_record(std::string_view bytes, size_t& offset);

/// A tensorflow.Event being built.
class EventBuilder {
 public:
  EventBuilder(double wall_time, int64_t step);
  /// Event.file_version; the first event of every file.
  void file_version();
  /// Event.session_log with status START: readers forget what they have of this step and later ones.
  void session_start();
  /// Summary.Value with simple_value.
  void scalar(std::string_view tag, float value);
  /// Summary.Value with a string tensor of shape [1] for the text plugin.
  void text(std::string_view tag, std::string_view text);
  /// The serialised Event.
  std::string finish() const;

 private:
  std::string event_;
  std::string summary_;
};

/// Event.step of a serialised Event; 0 if it has none. nullopt if `event` is not in protobuf's wire format.
std::optional<int64_t> event_step(std::string_view event);

/// Whether a serialised Event has a session_log, as session_start() makes it.
bool event_is_session(std::string_view event);

/// Whether a serialised Event has a value of `split`: its tag is that, or begins with it and a slash.
bool event_is_of(std::string_view event, std::string_view split);

}  // namespace trainkit::detail
