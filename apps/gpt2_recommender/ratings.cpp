#include "gpt2_recommender/ratings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

namespace fs = std::filesystem;

absl::Status bad_folder(const std::string& where, const std::string& problem, const std::string& got) {
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.missing",
                    .where = where,
                    .problem = problem,
                    .got = got,
                    .expected = "u.data, ratings.dat, one .inter, .csv or .tsv",
                    .hint = "to write examples of each format: trainkit-gpt2rec --make_demo_data DIR"},
                   absl::StatusCode::kNotFound);
}

/// Returns the names of a folder's files with one of these extensions, sorted.
absl::StatusOr<std::vector<std::string>> files_of(const std::string& folder, std::initializer_list<const char*> kinds) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string kind = at->path().extension().string();
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) found.push_back(at->path().filename().string());
  }
  if (error) return bad_folder(folder, "cannot be read", error.message());
  std::sort(found.begin(), found.end());
  return found;
}

/// Returns the path of the only file of these kinds, or `path` itself if it is a file.
absl::StatusOr<std::string> find_file(const std::string& path, std::initializer_list<const char*> kinds) {
  if (fs::is_regular_file(path) || path.ends_with(".inter")) return path;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> found, files_of(path, kinds));
  for (const char* usual : {"ratings.csv", "interactions.csv"}) {
    if (std::find(found.begin(), found.end(), usual) != found.end()) return path + "/" + usual;
  }
  if (found.empty()) return bad_folder(path, "no ratings file in this folder", "");
  if (found.size() > 1) {
    return bad_folder(path, fmt::format("several {} files: name one of them", fmt::join(kinds, " and ")),
                      fmt::format("{}", fmt::join(found, ", ")));
  }
  return path + "/" + found.front();
}

/// Returns whether `path` is a table, or a folder whose only data are tables.
absl::StatusOr<bool> is_table(const std::string& path) {
  if (path.ends_with(".inter")) return false;
  if (fs::is_regular_file(path)) return true;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> recbole, files_of(path, {".inter"}));
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> tables, files_of(path, {".csv", ".tsv"}));
  return recbole.empty() && !tables.empty();
}

/// Returns an error that names the first option of tables that differs from its default.
absl::Status check_no_table_option(const RatingsOptions& options) {
  const TableOptions& table = options.table;
  const std::pair<const char*, std::string> values[] = {
      {"--user_column", table.user},
      {"--item_column", table.item},
      {"--rating_column", table.rating},
      {"--time_column", table.time},
      {"--header", table.header == "auto" ? "" : table.header},
      {"--csv_delimiter", table.delimiter ? std::string(1, *table.delimiter) : ""},
      {"--validation_data", options.validation},
      {"--test_data", options.test}};
  for (const auto& [flag, value] : values) {
    if (value.empty()) continue;
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.value",
                      .where = flag,
                      .problem = "the files in --data_dir are not a table",
                      .got = value,
                      .expected = "a .csv or .tsv, or --data_format table"});
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& ratings_formats() {
  static const std::vector<std::string> names = {"auto", "ml-1m", "ml-100k", "recbole", "table"};
  return names;
}

absl::StatusOr<Ratings> read_ratings(const std::string& path, const RatingsOptions& options) {
  std::string format = options.format;
  if (format == "auto" && fs::exists(path + "/u.data")) format = "ml-100k";
  if (format == "auto" && fs::exists(path + "/ratings.dat")) format = "ml-1m";
  if (format == "auto") {
    TRAINKIT_ASSIGN_OR_RETURN(const bool table, is_table(path));
    format = table ? "table" : "recbole";
  }
  if (format == "table") {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string table, find_file(path, {".csv", ".tsv"}));
    return detail::read_tables(table, options);
  }
  TRAINKIT_RETURN_IF_ERROR(check_no_table_option(options));
  const bool may_repeat = options.may_repeat.value_or(false);
  if (format == "ml-100k") return detail::read_movielens_100k(path, may_repeat);
  if (format == "ml-1m") return detail::read_movielens_1m(path, may_repeat);
  TRAINKIT_ASSIGN_OR_RETURN(const std::string inter, find_file(path, {".inter"}));
  return detail::read_recbole(inter, may_repeat);
}

}  // namespace trainkit::rec
