#include <fmt/format.h>

#include <algorithm>

#include "report/markup.h"
#include "tasks/classification_results.h"
#include "trainkit/core/error.h"

namespace trainkit::detail {

std::string draw_confusion(const at::Tensor& counts, const std::vector<std::string>& labels) {
  constexpr int kCell = 56, kLetter = 8, kLongest = 120;
  size_t longest = 13;  // letters that fit into the least margins
  for (const std::string& label : labels) longest = std::max(longest, std::min<size_t>(label.size(), kLongest));
  const int left = 16 + kLetter * static_cast<int>(longest), top = 23 + kLetter * static_cast<int>(longest) * 2 / 3;
  const int classes = static_cast<int>(labels.size()), side = kCell * classes;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"20\" text-anchor=\"middle\">predicted</text>\n"
      "<text x=\"8\" y=\"20\">true</text>\n",
      left + side + top, top + side + 20, left + side / 2);
  for (int k = 0; k < classes; ++k) {
    const std::string name = escape_markup(escape_text(labels[static_cast<size_t>(k)], kLongest));
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", left - 8, top + k * kCell + 33, name);
    svg += fmt::format("<text transform=\"translate({},{}) rotate(-40)\">{}</text>\n", left + k * kCell + 24, top - 8,
                       name);
    const at::Tensor row = counts[k];
    const auto total = static_cast<double>(std::max<int64_t>(row.sum().item<int64_t>(), 1));
    for (int j = 0; j < classes; ++j) {
      const auto count = row[j].item<int64_t>();
      const double share = static_cast<double>(count) / total;
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#1f5fa8\" fill-opacity=\"{:.3f}\" "
          "stroke=\"#ccc\"><title>{} of {:.0f}</title></rect>\n",
          left + j * kCell, top + k * kCell, kCell, kCell, share, count, total);
      svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n",
                         left + j * kCell + kCell / 2, top + k * kCell + 33, share > 0.5 ? "white" : "black", count);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace trainkit::detail
