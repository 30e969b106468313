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

absl::StatusOr<std::vector<Column>> parse_header(const LineFile& file, std::string_view text) {
  std::vector<std::string_view> fields;
  split_fields(text, "\t", fields);
  std::vector<Column> columns;
  for (const std::string_view field : fields) {
    const size_t colon = field.rfind(':');
    const std::string_view name = field.substr(0, colon), type = colon == field.npos ? "" : field.substr(colon + 1);
    if (name.empty() || (type != "token" && type != "token_seq" && type != "float" && type != "float_seq")) {
      return file.bad(1, "", "not a header column", field, "name:token, :token_seq, :float or :float_seq",
                      "columns are separated by tabs");
    }
    const bool again = std::any_of(columns.begin(), columns.end(), [&](const Column& c) { return c.name == name; });
    if (again) return file.bad(1, std::string(name), "duplicate column");
    columns.push_back({std::string(name), std::string(type)});
  }
  return columns;
}

std::optional<size_t> find_column(const std::vector<Column>& columns, std::string_view name) {
  const auto at = std::find_if(columns.begin(), columns.end(), [&](const Column& c) { return c.name == name; });
  return at == columns.end() ? std::nullopt : std::optional(static_cast<size_t>(at - columns.begin()));
}

/// Returns the index of a required column, or an error that lists the columns.
absl::StatusOr<size_t> need_column(const LineFile& file, const std::vector<Column>& columns, const std::string& name) {
  if (const auto at = find_column(columns, name)) return *at;
  std::vector<std::string> names;
  for (const Column& column : columns) names.push_back(column.name);
  const std::string nearest = nearest_name(name, names);
  return file.bad(1, name, "no such column", fmt::format("{}", fmt::join(names, ", ")), name + ":token",
                  nearest.empty() ? "" : fmt::format("{} is not {}", nearest, name));
}

using RowVisitor =
    std::function<absl::Status(int64_t line, std::string_view text, const std::vector<std::string_view>& fields)>;

/// Calls `visit` for every line after the header. Checks that it has as many fields as the header.
absl::Status for_each_row(const LineFile& file, size_t columns, const RowVisitor& visit) {
  std::vector<std::string_view> fields;
  std::string_view header;
  return file.for_each([&](int64_t line, std::string_view text) -> absl::Status {
    if (line == 1) {
      header = text;
      return absl::OkStatus();
    }
    if (text == header) return repeated_header(file, line, text);
    split_fields(text, "\t", fields);
    TRAINKIT_RETURN_IF_ERROR(
        check_fields(file, line, text, fields.size(), columns, "the columns of the header, separated by tabs"));
    return visit(line, text, fields);
  });
}

absl::StatusOr<std::vector<Column>> read_header(const LineFile& file) {
  absl::StatusOr<std::vector<Column>> columns = std::vector<Column>{};
  TRAINKIT_RETURN_IF_ERROR(file.for_each([&](int64_t line, std::string_view text) {
    if (line == 1) columns = parse_header(file, text);
    return absl::OkStatus();
  }));
  return columns;
}

/// Describes a row as text: "Toy Story, release_year 1995, Animation Children's Comedy". Puts the column name before
/// the value, except for titles and genres.
std::string describe_row(const LineFile& file, const std::vector<Column>& columns, size_t id,
                         const std::vector<std::string_view>& fields) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i == id || fields[i].empty() || columns[i].type == "float_seq") continue;
    const bool plain = columns[i].name.ends_with("title") || columns[i].name == "class" || columns[i].name == "genre";
    parts.push_back(plain ? file.to_utf8(fields[i]) : fmt::format("{} {}", columns[i].name, file.to_utf8(fields[i])));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

absl::StatusOr<std::optional<EntityTable>> read_side(const fs::path& path, const char* kind, const char* noun) {
  if (!fs::exists(path)) return std::nullopt;
  TRAINKIT_ASSIGN_OR_RETURN(const LineFile file, LineFile::open(path.string(), kind));
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<Column> columns, read_header(file));
  TRAINKIT_ASSIGN_OR_RETURN(const size_t id, need_column(file, columns, fmt::format("{}_id", noun)));
  EntityTable table(noun, path.string());
  TRAINKIT_RETURN_IF_ERROR(
      for_each_row(file, columns.size(),
                   [&](int64_t line, std::string_view, const std::vector<std::string_view>& fields) -> absl::Status {
                     if (fields[id].empty()) return file.bad(line, columns[id].name, "empty");
                     return table.add(file, line, file.to_utf8(fields[id]), describe_row(file, columns, id, fields));
                   }));
  return table;
}

const EntityTable* pointer(const std::optional<EntityTable>& table) { return table ? &*table : nullptr; }

}  // namespace

absl::StatusOr<Ratings> read_recbole(const std::string& inter_path, bool may_repeat) {
  const fs::path path = inter_path;
  TRAINKIT_ASSIGN_OR_RETURN(const auto users, read_side(fs::path(path).replace_extension(".user"), "users", "user"));
  TRAINKIT_ASSIGN_OR_RETURN(const auto items, read_side(fs::path(path).replace_extension(".item"), "items", "item"));
  TRAINKIT_ASSIGN_OR_RETURN(const LineFile file, LineFile::open(inter_path, "ratings"));
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<Column> columns, read_header(file));
  TRAINKIT_ASSIGN_OR_RETURN(const size_t user, need_column(file, columns, "user_id"));
  TRAINKIT_ASSIGN_OR_RETURN(const size_t item, need_column(file, columns, "item_id"));
  const auto rating = find_column(columns, "rating"), timestamp = find_column(columns, "timestamp");
  RatingsBuilder builder(pointer(users), pointer(items), may_repeat);
  builder.use(file);
  TRAINKIT_RETURN_IF_ERROR(
      for_each_row(file, columns.size(),
                   [&](int64_t line, std::string_view, const std::vector<std::string_view>& fields) -> absl::Status {
                     for (const size_t id : {user, item}) {
                       if (fields[id].empty()) return file.bad(line, columns[id].name, "empty");
                     }
                     double value = 1;
                     if (rating && !parse_number(fields[*rating], value)) {
                       return file.bad(line, "rating", "not a number", fields[*rating], "a finite number");
                     }
                     ParsedTime time;
                     if (timestamp) {
                       TRAINKIT_ASSIGN_OR_RETURN(time, rating_time(file, line, fields[*timestamp]));
                     }
                     return builder.add(line, file.to_utf8(fields[user]), file.to_utf8(fields[item]), value, time);
                   }));
  TRAINKIT_ASSIGN_OR_RETURN(Ratings ratings, std::move(builder).finish("recbole"));
  ratings.has_values = rating.has_value();
  ratings.has_times = timestamp.has_value();
  return ratings;
}

}  // namespace trainkit::rec::detail
