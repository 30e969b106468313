#pragma once
/// What the person who watches a run sees: a bar on a terminal, plain lines elsewhere.

#include <cstdio>
#include <functional>
#include <memory>

#include "trainkit/logging/logger.h"

namespace trainkit {

struct ProgressOptions {
  enum class Style {
    kAuto,  ///< A bar if the stream is a terminal that can move its cursor (TERM is set and not "dumb"), else lines.
    kBar,
    kLines
  };
  Style style = Style::kAuto;
  /// Columns of the bar; 0 asks the terminal before each drawing, so that the bar follows the window.
  int width = 0;
  /// Seconds from any start, for tests; the steady clock if empty.
  std::function<double()> clock = {};
};

/// Shows records on a stream that the program hands over. On a terminal one line is redrawn, at most ten times a
/// second:
///
///    37% ━━━━━━━━━━──────────────── 740/2000 [0:41<1:10] epoch 1.85/5 loss 2.1034 lr 0.000955 12.3k tokens/s
///
/// elsewhere every training record is a line:
///
///   step 740/2000 | epoch 1.85/5 | loss 2.1034 | lr 0.000955 | 12.3k tokens/s | left 1:10
///
/// Evaluations, printed lines and warnings stay above the bar. A narrow terminal loses the bar first, then fields from
/// the right. The time left follows the speed of the last half minute. A share of time that the step waited for data is
/// shown from 10 % on ("data wait 43%").
///
/// Text is escaped and secrets are masked (format_text in format.h). If the stream is closed or its reader gone (EPIPE,
/// for which no SIGPIPE is raised), the display is silent from then on; it is optional() and never ends a run.
class ConsoleProgress final : public Logger {
 public:
  /// `stream` stays the caller's and must outlive this; it is flushed before each drawing.
  explicit ConsoleProgress(std::FILE* stream, ProgressOptions options = {});
  /// Leaves the last bar standing on a line of its own.
  ~ConsoleProgress() override;

  void begin(const RunPlan& plan) override;
  void log(const LogRecord& record) override;
  /// The text, under its tag.
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
