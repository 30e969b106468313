#pragma once
/// What several ranks print at once, as whole lines that say whose they are.

#include <functional>
#include <string>
#include <string_view>

namespace trainkit::tool {

/// One stream of one rank. Bytes go in as they come, lines come out whole, each with `prefix`:
///
///   RankOutput output("[rank 0] ", [](const std::string& line) { ... });   // line ends with '\n'
///   output.feed("half a li", now);
///   output.feed("ne\n", now);        // "[rank 0] half a line\n"
///
/// A progress bar redraws its line with '\r': of what it draws, one line a second is let through, and the last one
/// before a line end. A line of more than 64 KiB is cut into pieces.
class RankOutput {
 public:
  using Sink = std::function<void(const std::string& line)>;
  static constexpr double kRedrawSeconds = 1.0;
  static constexpr size_t kMaxLine = 64 * 1024;

  RankOutput(std::string prefix, Sink sink) : prefix_(std::move(prefix)), sink_(std::move(sink)) {}

  /// `now` in seconds of any steady clock.
  void feed(std::string_view bytes, double now);
  /// The stream has ended: what is left is a line too.
  void end();

 private:
  void line(std::string_view text) { sink_(prefix_ + std::string(text) + "\n"); }
  void redraw(double now);

  std::string prefix_;
  Sink sink_;
  /// The line as far as it is known.
  std::string text_;
  /// A '\r' came after text_: the next byte but '\n' starts the line anew.
  bool returned_ = false;
  /// The line so far was so long that its beginning is out already.
  bool cut_ = false;
  double last_redraw_ = -kRedrawSeconds;
};

}  // namespace trainkit::tool
