#pragma once
/// loss.svg: the curve of a run, for people who would rather look than read.

#include <absl/status/status.h>

#include <string>
#include <string_view>
#include <vector>

#include "trainkit/logging/logger.h"

namespace trainkit {

/// An SVG picture, 800 x 450, of the value `metric` over the steps: a line for each split, with its last value in the
/// legend, and for evaluations the best one too and where it was. Long training curves are averaged to a point per
/// pixel; values that are not finite leave a gap and a mark at the foot of the axis.
///
/// With another `x_label` the records are not those of a run: `step` is what the label says, and the legend shows the
/// last values alone.
std::string plot_svg(const std::vector<LogRecord>& records, std::string_view metric = "loss",
                     std::string_view x_label = "step");

/// Text inside of an SVG picture: escape_text(text, max_bytes), with what is markup written as entities.
std::string svg_text(std::string_view text, size_t max_bytes = 40);

/// Draws `<output_dir>/loss.svg` from `<output_dir>/metrics.jsonl`, as a whole or not at all. Exit code 6; kNotFound if
/// there is no metrics.jsonl.
absl::Status write_loss_plot(const std::string& output_dir);

}  // namespace trainkit
