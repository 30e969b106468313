#include "data/datasets/remembered_rows.h"

#include <absl/status/statusor.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trainkit/core/fs.h"

namespace trainkit::detail {

using Json = nlohmann::ordered_json;

void RememberedRows::get(const RowKey& key, const BatchView& out, int64_t at) const {
  {
    const std::lock_guard lock(mutex_);
    const auto known = bad_.find(key.index);
    if (known != bad_.end()) throw absl::BadStatusOrAccess(known->second);
  }
  try {
    rows_->get(key, out, at);
  } catch (const absl::BadStatusOrAccess& e) {
    const auto error = error_of(e.status());
    if (is_lasting_ && error && is_lasting_(*error)) {
      const std::lock_guard lock(mutex_);
      bad_.emplace(key.index, e.status());
    }
    throw;
  }
}

int64_t RememberedRows::bad() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(bad_);
}

std::string RememberedRows::to_json(const std::string& origin) const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> indices;
  for (const auto& [index, status] : bad_) indices.push_back(index);
  std::sort(indices.begin(), indices.end());
  Json rows = Json::array();
  for (const int64_t index : indices) {
    Json row = Json::parse(error_json(bad_.at(index)));
    row["row"] = index;
    row["code"] = bad_.at(index).raw_code();
    rows.push_back(std::move(row));
  }
  return Json{{"origin", Digest::of(origin)}, {"rows", std::move(rows)}}.dump(1) + "\n";
}

void RememberedRows::read_json(const std::string& text, const std::string& origin) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("origin", Json()) != Json(Digest::of(origin)) || !json.contains("rows")) return;
  const std::lock_guard lock(mutex_);
  for (const Json& row : json["rows"]) {
    const auto text_of = [&](const char* name) {
      return row.contains(name) && row[name].is_string() ? row[name].get<std::string>() : std::string();
    };
    const auto number_of = [&](const char* name) {
      return row.contains(name) && row[name].is_number_integer() ? row[name].get<int64_t>() : -1;
    };
    const Error error{.exit_code = ExitCode::kData,
                      .id = text_of("id"),
                      .where = text_of("where"),
                      .field = text_of("field"),
                      .problem = text_of("problem"),
                      .got = text_of("got"),
                      .expected = text_of("expected"),
                      .hint = text_of("hint")};
    const int64_t index = number_of("row"), code = number_of("code");
    if (!is_lasting_ || !is_lasting_(error) || index < 0 || index >= size() || code < 1 || code > 16) continue;
    bad_.emplace(index, to_status(error, static_cast<absl::StatusCode>(code)));
  }
}

}  // namespace trainkit::detail
