// The pictures and histograms of a run: its folder media/.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "logging/media.h"
#include "report/report_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"

namespace trainkit::detail {
namespace {

/// Pictures in a page: of one file, and of all files. A tag shows its newest ones.
constexpr int64_t kMostMediaBytes = int64_t{300} << 10, kMostAllMedia = int64_t{1000} << 10;
constexpr size_t kMostOfTag = 4, kMostTags = 24;

std::string media_figure(const std::string& folder, const std::string& tag, int64_t step, int64_t& bytes_left) {
  const std::string file = media_file_name(tag, step);
  const auto bytes = Fs::posix().read_file(folder + "/" + file, kMostMediaBytes);
  const std::string caption = fmt::format("{}, step {}", html(tag), step);
  if (!bytes.ok() || static_cast<int64_t>(bytes->size()) > bytes_left) {
    return fmt::format("<figure><figcaption>{}: see media/{}</figcaption></figure>\n", caption, html(file));
  }
  bytes_left -= static_cast<int64_t>(bytes->size());
  return fmt::format(
      "<figure><img alt=\"{0}\" src=\"data:image/png;base64,{1}\"><figcaption>{0}</figcaption></figure>\n", caption,
      base64(*bytes));
}

std::string pictures_of(const std::string& folder) {
  std::map<std::string, std::vector<int64_t>> steps;
  std::error_code none;
  for (std::filesystem::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    const MediaName name = read_media_name(entry->path().filename().string());
    if (name.step >= 0) steps[name.tag].push_back(name.step);
  }
  std::string out;
  int64_t bytes_left = kMostAllMedia;
  size_t tags = 0;
  for (auto& [tag, of_tag] : steps) {
    if (++tags > kMostTags) break;
    std::sort(of_tag.begin(), of_tag.end(), std::greater<>());
    of_tag.resize(std::min(of_tag.size(), kMostOfTag));
    for (const int64_t step : of_tag) out += media_figure(folder, tag, step, bytes_left);
  }
  const std::string more =
      steps.size() > kMostTags ? fmt::format("<p>{} more names: see media/.</p>\n", steps.size() - kMostTags) : "";
  return out.empty() ? "" : "<div class=\"pictures\">\n" + out + "</div>\n" + more;
}

/// A chart of the first and the newest histogram of a tag.
std::string histogram_chart(const std::string& tag, const std::vector<const LogHistogram*>& of_tag) {
  Chart chart{.title = tag, .x_label = "value", .x_format = ValueFormat::kNumber, .from_zero = true};
  for (const LogHistogram* h : {of_tag.front(), of_tag.back()}) {
    if (h == of_tag.front() && of_tag.size() > 1 && of_tag.back() == h) continue;
    ChartSeries line{
        fmt::format("step {}", h->step), {}, ChartSeries::Kind::kPoints, static_cast<int>(chart.series.size())};
    const double width = (h->max - h->min) / static_cast<double>(h->counts.size());
    for (size_t i = 0; i < h->counts.size(); ++i) {
      line.points.push_back({h->min + (static_cast<double>(i) + 0.5) * width, static_cast<double>(h->counts[i])});
    }
    if (!h->counts.empty()) chart.series.push_back(std::move(line));
    if (h->non_finite > 0)
      chart.note +=
          fmt::format("{}step {}: {} values are not finite", chart.note.empty() ? "" : "; ", h->step, h->non_finite);
    if (of_tag.size() == 1) break;
  }
  return draw_chart(chart);
}

std::string histograms_of(const std::string& folder) {
  const std::vector<LogHistogram> all = read_histograms(folder + "/" + kHistogramFile);
  std::map<std::string, std::vector<const LogHistogram*>> by_tag;
  for (const LogHistogram& h : all) by_tag[h.tag].push_back(&h);
  std::string out;
  size_t tags = 0;
  for (const auto& [tag, of_tag] : by_tag) {
    if (++tags > kMostTags) break;
    out += histogram_chart(tag, of_tag);
  }
  return out.empty() ? "" : "<div class=\"charts\">\n" + out + "</div>\n";
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t j) { return j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u; };
    const unsigned group = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (unsigned letter = 0; letter < 4; ++letter) {
      out += i + letter > bytes.size() ? '=' : kLetters[group >> (18 - 6 * letter) & 63];
    }
  }
  return out;
}

std::string run_media(const RunData& run) {
  const std::string folder = run.folder + "/" + kMediaFolder;
  return section("Pictures", pictures_of(folder)) + section("Histograms", histograms_of(folder));
}

}  // namespace trainkit::detail
