#include "app/results/result_page.h"

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"

namespace trainkit {

using Json = nlohmann::ordered_json;

void ResultPage::add_tile(const std::string& value, const std::string& name, const std::string& note) {
  tiles_.push_back({{"value", value}, {"name", name}, {"note", note}});
}

void ResultPage::add_section(const std::string& title) {
  sections_.push_back({{"title", title}, {"blocks", Json::array()}});
}

Json& ResultPage::block(const char* type) {
  if (sections_.empty()) add_section("Results");
  Json& blocks = sections_.back()["blocks"];
  if (blocks.empty() || blocks.back()["type"] != type) blocks.push_back({{"type", type}, {"items", Json::array()}});
  return blocks.back();
}

void ResultPage::add_note(const std::string& text) {
  if (sections_.empty()) add_section("Results");
  sections_.back()["blocks"].push_back({{"type", "note"}, {"text", text}});
}

void ResultPage::add_table(const std::string& caption, const std::vector<std::string>& columns,
                           const std::vector<std::vector<Json>>& rows) {
  if (sections_.empty()) add_section("Results");
  Json lines = Json::array();
  for (const std::vector<Json>& row : rows) lines.push_back(Json(row));
  sections_.back()["blocks"].push_back(
      {{"type", "table"}, {"caption", caption}, {"columns", columns}, {"rows", std::move(lines)}});
}

void ResultPage::add_matrix(const std::string& caption, const std::vector<std::string>& labels,
                            const at::Tensor& counts) {
  if (sections_.empty()) add_section("Results");
  Json rows = Json::array();
  for (int64_t k = 0; k < counts.size(0); ++k) {
    const at::Tensor row = counts[k].contiguous();
    rows.push_back(std::vector<int64_t>(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()));
  }
  sections_.back()["blocks"].push_back(
      {{"type", "matrix"}, {"caption", caption}, {"labels", labels}, {"counts", std::move(rows)}});
}

void ResultPage::add_chart(const std::string& title, const std::string& x_label,
                           const std::vector<std::pair<std::string, std::vector<std::pair<double, double>>>>& lines) {
  if (sections_.empty()) add_section("Results");
  Json series = Json::array();
  for (const auto& [name, points] : lines) series.push_back({{"name", name}, {"points", points}});
  sections_.back()["blocks"].push_back(
      {{"type", "chart"}, {"title", title}, {"x_label", x_label}, {"series", std::move(series)}});
}

void ResultPage::add_picture(const std::string& file, const std::string& caption, const std::string& alt) {
  block("pictures")["items"].push_back({{"file", file}, {"caption", caption}, {"alt", alt}});
}

void ResultPage::add_legend(const std::vector<std::pair<std::string, std::string>>& names_and_colors) {
  Json& items = block("legend")["items"];
  for (const auto& [name, color] : names_and_colors) items.push_back({{"name", name}, {"color", color}});
}

void ResultPage::add_text(const std::string& title, const std::string& text) {
  block("texts")["items"].push_back({{"title", title}, {"text", text}});
}

void ResultPage::add_classes(const std::vector<std::string>& labels, const at::Tensor& counts,
                             const ClassificationScores& scores, const std::string& rows) {
  std::vector<std::vector<Json>> lines;
  for (size_t k = 0; k < scores.classes.size(); ++k) {
    const ClassScore& score = scores.classes[k];
    lines.push_back({labels[k], score.rows, score.recall, score.precision, score.f1});
  }
  add_table("Each class", {"class", rows, "recall", "precision", "F1"}, lines);
  add_matrix("Confusion matrix", labels, counts);
}

absl::Status ResultPage::write(const std::string& folder) const {
  const Json page = {{"tiles", tiles_}, {"sections", sections_}};
  return write_file_atomically(Fs::posix(), folder + "/report.json",
                               page.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string tested_weights_note(int64_t best_step) {
  return best_step >= 0 ? fmt::format("Weights of step {}, the best in validation.", best_step) : "Last weights.";
}

}  // namespace trainkit
