#include "trainkit/report/result_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trainkit/core/fs.h"

namespace trainkit {

struct ResultPage::Impl {
  using Json = nlohmann::ordered_json;
  Json tiles = Json::array(), sections = Json::array();

  /// Returns the blocks of the last section.
  Json& blocks() {
    if (sections.empty()) sections.push_back({{"title", "Results"}, {"blocks", Json::array()}});
    return sections.back()["blocks"];
  }
  /// Returns the items of the last block if it is of this type, else of a new one.
  Json& items(const char* type) {
    Json& all = blocks();
    if (all.empty() || all.back()["type"] != type) all.push_back({{"type", type}, {"items", Json::array()}});
    return all.back()["items"];
  }
};

ResultPage::ResultPage() : impl_(std::make_unique<Impl>()) {}
ResultPage::~ResultPage() = default;
ResultPage::ResultPage(ResultPage&&) noexcept = default;
ResultPage& ResultPage::operator=(ResultPage&&) noexcept = default;

void ResultPage::add_tile(const std::string& value, const std::string& name, const std::string& note) {
  impl_->tiles.push_back({{"value", value}, {"name", name}, {"note", note}});
}

void ResultPage::add_section(const std::string& title) {
  impl_->sections.push_back({{"title", title}, {"blocks", Impl::Json::array()}});
}

void ResultPage::add_note(const std::string& text) { impl_->blocks().push_back({{"type", "note"}, {"text", text}}); }

void ResultPage::add_table(const std::string& caption, const std::vector<std::string>& columns,
                           const std::vector<std::vector<Cell>>& rows) {
  Impl::Json lines = Impl::Json::array();
  for (const std::vector<Cell>& row : rows) {
    Impl::Json& line = lines.emplace_back(Impl::Json::array());
    for (const Cell& cell : row) std::visit([&](const auto& value) { line.push_back(value); }, cell);
  }
  impl_->blocks().push_back(
      {{"type", "table"}, {"caption", caption}, {"columns", columns}, {"rows", std::move(lines)}});
}

void ResultPage::add_matrix(const std::string& caption, const std::vector<std::string>& labels,
                            const at::Tensor& counts) {
  Impl::Json rows = Impl::Json::array();
  for (int64_t k = 0; k < counts.size(0); ++k) {
    const at::Tensor row = counts[k].contiguous();
    rows.push_back(std::vector<int64_t>(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()));
  }
  impl_->blocks().push_back(
      {{"type", "matrix"}, {"caption", caption}, {"labels", labels}, {"counts", std::move(rows)}});
}

void ResultPage::add_chart(const std::string& title, const std::string& x_label, const std::vector<Line>& lines) {
  Impl::Json series = Impl::Json::array();
  for (const auto& [name, points] : lines) series.push_back({{"name", name}, {"points", points}});
  impl_->blocks().push_back({{"type", "chart"}, {"title", title}, {"x_label", x_label}, {"series", std::move(series)}});
}

void ResultPage::add_picture(const std::string& file, const std::string& caption, const std::string& alt) {
  impl_->items("pictures").push_back({{"file", file}, {"caption", caption}, {"alt", alt}});
}

void ResultPage::add_legend(const std::vector<std::pair<std::string, std::string>>& names_and_colors) {
  Impl::Json& items = impl_->items("legend");
  for (const auto& [name, color] : names_and_colors) items.push_back({{"name", name}, {"color", color}});
}

void ResultPage::add_text(const std::string& title, const std::string& text) {
  impl_->items("texts").push_back({{"title", title}, {"text", text}});
}

absl::Status ResultPage::write(const std::string& folder) const {
  const Impl::Json page = {{"tiles", impl_->tiles}, {"sections", impl_->sections}};
  return write_file_atomically(Fs::posix(), folder + "/report.json",
                               page.dump(1, ' ', false, Impl::Json::error_handler_t::replace) + "\n");
}

std::string tested_weights_note(int64_t best_step) {
  return best_step >= 0 ? fmt::format("Weights of step {}, the best in validation.", best_step) : "Last weights.";
}

}  // namespace trainkit
