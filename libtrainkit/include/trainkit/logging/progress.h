#pragma once
/// Shows progress to the user: a bar on a terminal, plain lines elsewhere.

#include <cstdio>
#include <functional>
#include <memory>

#include "trainkit/logging/logger.h"

namespace trainkit {

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
/// Evaluations, printed lines and warnings stay above the bar. On a narrow terminal the bar is omitted first, then
/// fields from the right. The remaining time follows the speed of the last half minute. The data wait is shown from 10
/// % on ("data wait 43%").
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
  void tick(int64_t step) override;
  absl::Status flush() override;
  absl::Status close() override;
  bool optional() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
