// The trainer's own part of a report: results/report.json (docs/formats/run.md#resultsreportjson).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "report/report_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::ordered_json;

/// Pictures in a page: of one file, and of all files.
constexpr int64_t kMostPictureBytes = int64_t{600} << 10, kMostAllBytes = int64_t{1000} << 10;
constexpr size_t kMostRows = 200, kMostMatrix = 64, kMostTextBytes = 20'000;

std::string heading(const Json& block, const char* key = "caption") {
  const std::string text = text_at(block, key);
  return text.empty() ? "" : fmt::format("<h3>{}</h3>\n", html(text));
}

std::string share_cell(double share) {
  return std::isfinite(share) ? fmt::format("<span class=\"meter\"><i style=\"width:{:.1f}%\"></i></span>{:.2f}%",
                                            100 * std::clamp(share, 0.0, 1.0), 100 * share)
                              : "";
}

std::string result_cell(const Json& value) {
  if (value.is_string()) return html(value.get<std::string>());
  if (value.is_number_integer()) return std::to_string(value.get<int64_t>());
  return value.is_number() ? share_cell(value.get<double>()) : "";
}

std::string table_block(const Json& block) {
  const Json &columns = value_at(block, "columns"), &lines = value_at(block, "rows");
  if (!columns.is_array() || !lines.is_array()) return "";
  std::vector<std::string> heads;
  for (const Json& column : columns) heads.push_back(result_cell(column));
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> numeric;
  for (const Json& line : lines) {
    if (!line.is_array() || line.size() != heads.size() || rows.size() == kMostRows) continue;
    auto& row = rows.emplace_back();
    for (size_t i = 0; i < line.size(); ++i) {
      row.push_back(result_cell(line[i]));
      const bool is_new = std::find(numeric.begin(), numeric.end(), i) == numeric.end();
      if (line[i].is_number() && is_new) numeric.push_back(i);
    }
  }
  const std::string more = lines.size() > rows.size() ? fmt::format("<p>The first {} rows.</p>\n", rows.size()) : "";
  const std::string label = text_at(block, "caption");
  return heading(block) + table(label.empty() ? "Results" : label, heads, rows, numeric) + more;
}

/// A confusion matrix: one row per true label.
std::string matrix_block(const Json& block) {
  const Json &labels = value_at(block, "labels"), &counts = value_at(block, "counts");
  if (!labels.is_array() || !counts.is_array() || counts.size() != labels.size() || labels.size() > kMostMatrix) {
    return "";
  }
  std::string head = "<th scope=\"col\">true, predicted</th>", body;
  for (const Json& label : labels) head += fmt::format("<th scope=\"col\"><span>{}</span></th>", result_cell(label));
  for (size_t k = 0; k < counts.size(); ++k) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", result_cell(labels[k]));
    double sum = 0;
    if (!counts[k].is_array()) return "";
    for (const Json& count : counts[k]) sum += count.is_number() ? count.get<double>() : 0;
    for (size_t j = 0; j < counts[k].size(); ++j) {
      const double count = counts[k][j].is_number() ? counts[k][j].get<double>() : 0;
      const double share = sum > 0 ? std::clamp(count / sum, 0.0, 1.0) : 0;
      // At most 45 % of the colour, so that the number stays readable.
      body += fmt::format("<td class=\"{}\" style=\"--shade:{:.1f}%\">{:.0f}</td>", j == k ? "hit" : "miss",
                          count > 0 ? 4 + 41 * share : 0.0, count);
    }
    body += "</tr>\n";
  }
  return heading(block) +
         fmt::format(
             "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Confusion matrix\"><table "
             "class=\"matrix\"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>\n"
             "<p class=\"note\">One row per true label. The shade is the share of the row.</p>\n",
             head, body);
}

std::string pictures_block(const RunData& run, const Json& block, int64_t& bytes_left) {
  const Json& items = value_at(block, "items");
  if (!items.is_array()) return "";
  std::string out;
  for (const Json& item : items) {
    const std::string file = text_at(item, "file");
    const bool is_png = file.ends_with(".png"), is_inside = file.find('/') == file.npos && file != "..";
    if (!is_png || !is_inside) continue;
    const auto bytes = Fs::posix().read_file(run.folder + "/results/" + file, kMostPictureBytes);
    const bool fits = bytes.ok() && static_cast<int64_t>(bytes->size()) <= bytes_left;
    const std::string caption = html(text_at(item, "caption"));
    if (!fits) {
      out += fmt::format("<figure><figcaption>{}: see results/{}</figcaption></figure>", caption, html(file));
      continue;
    }
    bytes_left -= static_cast<int64_t>(bytes->size());
    out +=
        fmt::format("<figure><img alt=\"{}\" src=\"data:image/png;base64,{}\"><figcaption>{}</figcaption></figure>\n",
                    html(text_at(item, "alt")), base64(*bytes), caption);
  }
  return out.empty() ? "" : heading(block) + "<div class=\"pictures\">\n" + out + "</div>\n";
}

std::string texts_block(const Json& block) {
  const Json& items = value_at(block, "items");
  if (!items.is_array()) return "";
  std::string out;
  for (const Json& item : items) {
    std::string text = text_at(item, "text");
    if (text.size() > kMostTextBytes) text.resize(kMostTextBytes);
    const std::string title = text_at(item, "title");
    out += fmt::format("<h4>{}</h4><pre class=\"sample\" tabindex=\"0\" aria-label=\"{}\">{}</pre>\n", html(title),
                       html(title.empty() ? "Text" : title), html(text));
  }
  return out.empty() ? "" : heading(block) + out;
}

std::string legend_block(const Json& block) {
  const Json& items = value_at(block, "items");
  if (!items.is_array()) return "";
  std::string out;
  for (const Json& item : items) {
    const std::string color = text_at(item, "color");  // "#rrggbb"
    const bool is_color =
        color.size() == 7 && color[0] == '#' && color.find_first_not_of("0123456789abcdef", 1) == std::string::npos;
    if (is_color) {
      out += fmt::format("<span class=\"key\"><i class=\"swatch\" style=\"background:{}\"></i>{}</span>", color,
                         html(text_at(item, "name")));
    }
  }
  return out.empty() ? "" : "<p class=\"legend\">" + out + "</p>\n";
}

/// A line chart of shares over shares.
std::string chart_block(const Json& block) {
  Chart chart{.title = text_at(block, "title"),
              .x_label = text_at(block, "x_label"),
              .x_format = ValueFormat::kShare,
              .y_format = ValueFormat::kShare,
              .from_zero = true};
  const Json& series = value_at(block, "series");
  if (!series.is_array()) return "";
  for (const Json& each : series) {
    const Json& points = value_at(each, "points");
    ChartSeries line{text_at(each, "name"), {}, ChartSeries::Kind::kPoints, static_cast<int>(chart.series.size())};
    for (size_t i = 0; points.is_array() && i < points.size(); ++i) {
      const Json& point = points[i];
      const bool valid = point.is_array() && point.size() == 2 && point[0].is_number() && point[1].is_number();
      if (valid) line.points.push_back({point[0].get<double>(), point[1].get<double>()});
    }
    chart.series.push_back(std::move(line));
  }
  const std::string drawn = draw_chart(chart);
  return drawn.empty() ? "" : "<div class=\"charts\">\n" + drawn + "</div>\n";
}

std::string block_html(const RunData& run, const Json& block, int64_t& bytes_left) {
  const std::string type = text_at(block, "type");
  if (type == "table") return table_block(block);
  if (type == "matrix") return matrix_block(block);
  if (type == "chart") return chart_block(block);
  if (type == "pictures") return pictures_block(run, block, bytes_left);
  if (type == "texts") return texts_block(block);
  if (type == "legend") return legend_block(block);
  if (type == "note") return fmt::format("<p>{}</p>\n", html(text_at(block, "text")));
  return "";  // of a later version
}

}  // namespace

std::string result_tiles(const RunData& run) {
  const Json& tiles = value_at(run.results, "tiles");
  std::string out;
  if (!tiles.is_array()) return out;
  for (const Json& each : tiles) out += tile(text_at(each, "value"), text_at(each, "name"), text_at(each, "note"));
  return out;
}

std::string run_results(const RunData& run) {
  const Json& sections = value_at(run.results, "sections");
  std::string out;
  if (!sections.is_array()) return out;
  int64_t bytes_left = kMostAllBytes;
  for (const Json& each : sections) {
    std::string content;
    const Json& blocks = value_at(each, "blocks");
    if (!blocks.is_array()) continue;
    for (const Json& block : blocks) content += block_html(run, block, bytes_left);
    out += section(text_at(each, "title"), content);
  }
  return out;
}

}  // namespace trainkit::detail
