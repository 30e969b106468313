// Reads RecBole's atomic files. Source: https://recbole.io/docs/user_guide/data/atomic_files.html (RecBole 1.2.1).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "gpt2_recommender/entity_table.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::rec::detail {
namespace {

namespace fs = std::filesystem;

struct Column {
  std::string name, type;
};

absl::StatusOr<std::unique_ptr<TableReader>> open(const std::string& path, const char* kind) {
  return TableReader::open(path, published_table(kind, "\t"));
}

absl::StatusOr<std::vector<Column>> parse_header(const TableReader& file) {
  std::vector<Column> columns;
  for (const std::string& field : file.columns()) {
    const size_t colon = field.rfind(':');
    const std::string name = field.substr(0, colon), type = colon == field.npos ? "" : field.substr(colon + 1);
    if (name.empty() || (type != "token" && type != "token_seq" && type != "float" && type != "float_seq")) {
      return file.bad_row("", "not a header column", field, "name:token, :token_seq, :float or :float_seq",
                          "columns are separated by tabs");
    }
    const bool again = std::any_of(columns.begin(), columns.end(), [&](const Column& c) { return c.name == name; });
    if (again) return file.bad_row(name, "duplicate column");
    columns.push_back({name, type});
  }
  return columns;
}

std::optional<size_t> find_column(const std::vector<Column>& columns, std::string_view name) {
  const auto at = std::find_if(columns.begin(), columns.end(), [&](const Column& c) { return c.name == name; });
  return at == columns.end() ? std::nullopt : std::optional(static_cast<size_t>(at - columns.begin()));
}

/// Returns the index of a required column, or an error that lists the columns.
absl::StatusOr<size_t> need_column(const TableReader& file, const std::vector<Column>& columns,
                                   const std::string& name) {
  if (const auto at = find_column(columns, name)) return *at;
  std::vector<std::string> names;
  names.reserve(columns.size());
  for (const Column& column : columns) names.push_back(column.name);
  const std::string nearest = nearest_name(name, names);
  return file.bad_row(name, "no such column", fmt::format("{}", fmt::join(names, ", ")), name + ":token",
                      nearest.empty() ? "" : fmt::format("{} is not {}", nearest, name));
}

/// Describes a row as text: "Toy Story, release_year 1995, Animation Children's Comedy". Puts the column name before
/// the value, except for titles and genres.
std::string describe_row(const TableReader& row, const std::vector<Column>& columns, size_t id) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i == id || row.text(i).empty() || columns[i].type == "float_seq") continue;
    const bool plain = columns[i].name.ends_with("title") || columns[i].name == "class" || columns[i].name == "genre";
    parts.push_back(plain ? std::string(row.text(i)) : fmt::format("{} {}", columns[i].name, row.text(i)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

absl::StatusOr<std::optional<EntityTable>> read_side(const fs::path& path, const char* kind, const char* noun) {
  if (!fs::exists(path)) return std::nullopt;
  TRAINKIT_ASSIGN_OR_RETURN(const auto row, open(path.string(), kind));
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<Column> columns, parse_header(*row));
  TRAINKIT_ASSIGN_OR_RETURN(const size_t id, need_column(*row, columns, fmt::format("{}_id", noun)));
  EntityTable table(noun, path.string());
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(const bool more, row->next());
    if (!more) return table;
    if (row->text(id).empty()) return row->bad_row(columns[id].name, "empty");
    TRAINKIT_RETURN_IF_ERROR(table.add(*row, row->text(id), describe_row(*row, columns, id)));
  }
}

const EntityTable* pointer(const std::optional<EntityTable>& table) { return table ? &*table : nullptr; }

}  // namespace

absl::StatusOr<Ratings> read_recbole(const std::string& inter_path, bool may_repeat) {
  const fs::path path = inter_path;
  TRAINKIT_ASSIGN_OR_RETURN(const auto users, read_side(fs::path(path).replace_extension(".user"), "users", "user"));
  TRAINKIT_ASSIGN_OR_RETURN(const auto items, read_side(fs::path(path).replace_extension(".item"), "items", "item"));
  TRAINKIT_ASSIGN_OR_RETURN(const auto row, open(inter_path, "ratings"));
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<Column> columns, parse_header(*row));
  TRAINKIT_ASSIGN_OR_RETURN(const size_t user, need_column(*row, columns, "user_id"));
  TRAINKIT_ASSIGN_OR_RETURN(const size_t item, need_column(*row, columns, "item_id"));
  const auto rating = find_column(columns, "rating"), timestamp = find_column(columns, "timestamp");
  RatingsBuilder builder(pointer(users), pointer(items), may_repeat);
  builder.use(*row);
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(const bool more, row->next());
    if (!more) break;
    for (const size_t id : {user, item}) {
      if (row->text(id).empty()) return row->bad_row(columns[id].name, "empty");
    }
    double value = 1;
    if (rating && !parse_number(row->text(*rating), value)) {
      return row->bad_row("rating", "not a number", row->text(*rating), "a finite number");
    }
    ParsedTime time;
    if (timestamp) {
      TRAINKIT_ASSIGN_OR_RETURN(time, rating_time(*row, *timestamp));
    }
    TRAINKIT_RETURN_IF_ERROR(builder.add(row->text(user), row->text(item), value, time));
  }
  TRAINKIT_ASSIGN_OR_RETURN(Ratings ratings, std::move(builder).finish("recbole"));
  ratings.has_values = rating.has_value();
  ratings.has_times = timestamp.has_value();
  return ratings;
}

}  // namespace trainkit::rec::detail
