#pragma once
/// Draws loss.svg, the loss curve of a run.

#include <absl/status/status.h>

#include <string>
#include <string_view>
#include <vector>

#include "trainkit/logging/logger.h"

namespace trainkit {

/// Draws the value `metric` over the steps as an SVG of 800 x 450 pixels, with one line per split.
///
/// The legend shows the last value of each line and, for evaluations, the best value and its step. Long training curves
/// are averaged to one point per pixel. A non-finite value leaves a gap in the line and a mark at the bottom of the
/// axis.
///
/// With another `x_label` the records need not come from a run: `step` is the quantity that the label names, and the
/// legend shows only the last values.
std::string plot_svg(const std::vector<LogRecord>& records, std::string_view metric = "loss",
                     std::string_view x_label = "step");

/// Escapes text for an SVG: escape_text(text, max_bytes), with markup characters as entities.
std::string svg_text(std::string_view text, size_t max_bytes = 40);

/// Draws `<output_dir>/loss.svg` from `<output_dir>/metrics.jsonl`. The file is replaced atomically. Exit code 6 if it
/// cannot be written; kNotFound if there is no metrics.jsonl.
absl::Status write_loss_plot(const std::string& output_dir);

}  // namespace trainkit
