#pragma once
/// Splits the output of ranks into whole lines, each prefixed with its rank.

#include <functional>
#include <string>
#include <string_view>

namespace trainkit::tool {

/// Splits one stream of one rank into lines. Takes bytes as they arrive and passes whole lines with `prefix` to `sink`:
///
///   RankOutput output("[rank 0] ", [](const std::string& line) { ... });   // line ends with '\n'
///   output.feed("half a li", now);
///   output.feed("ne\n", now);        // "[rank 0] half a line\n"
///
/// A progress bar redraws its line with '\r'. Of these versions one per second passes, and the last one before a
/// newline. A line longer than kMaxLine is cut into pieces. Not thread-safe.
class RankOutput {
 public:
  using Sink = std::function<void(const std::string& line)>;
  /// Shortest time between two redrawn lines that pass.
  static constexpr double kRedrawSeconds = 1.0;
  /// Longest line in bytes.
  static constexpr size_t kMaxLine = size_t{64} << 10;

  RankOutput(std::string prefix, Sink sink) : prefix_(std::move(prefix)), sink_(std::move(sink)) {}

  /// Takes bytes of the stream. `now` is the time of a steady clock in seconds.
  void feed(std::string_view bytes, double now);
  /// Passes the unfinished last line. Call it at the end of the stream.
  void end();

 private:
  void line(std::string_view text) { sink_(prefix_ + std::string(text) + "\n"); }
  void redraw(double now);

  std::string prefix_;
  Sink sink_;
  /// Current line so far.
  std::string text_;
  /// Whether '\r' came after text_. Any next byte except '\n' starts the line again.
  bool returned_ = false;
  /// Whether the beginning of this line was passed already because it exceeded kMaxLine.
  bool cut_ = false;
  double last_redraw_ = -kRedrawSeconds;
};

}  // namespace trainkit::tool
