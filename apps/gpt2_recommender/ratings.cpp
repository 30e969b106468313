#include "gpt2_recommender/ratings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "gpt2_recommender/rows_by_user.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/folder_files.h"

namespace trainkit::rec {
namespace {

namespace fs = std::filesystem;

absl::Status bad_folder(const std::string& where, const std::string& problem, const std::string& got) {
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.missing",
                    .where = where,
                    .problem = problem,
                    .got = got,
                    .expected = "u.data, ratings.dat, one .inter, .csv, .tsv or .jsonl",
                    .hint = "to write examples of each format: trainkit-gpt2rec --make_demo_data DIR"},
                   absl::StatusCode::kNotFound);
}

/// Extensions of tables.
const std::set<std::string> kTables = {".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz"};

/// Returns the files of a folder with one of these extensions.
absl::StatusOr<FolderFiles> files_of(const std::string& folder, const std::set<std::string>& kinds) {
  std::error_code error;
  FolderFiles found = list_files(folder, kinds, error);
  if (error) return bad_folder(folder, "cannot be read", error.message());
  return found;
}

/// Returns the path of the only file of these kinds, or `path` itself if it is a file. `note` gets what the folder has
/// besides.
absl::StatusOr<std::string> find_file(const std::string& path, const std::set<std::string>& kinds, std::string& note) {
  if (fs::is_regular_file(path) || path.ends_with(".inter")) return path;
  TRAINKIT_ASSIGN_OR_RETURN(FolderFiles found, files_of(path, kinds));
  const auto chosen = [&](const std::string& name) {
    std::erase(found.names, name);
    found.left_out.insert(found.left_out.begin(), found.names.begin(), found.names.end());
    const std::string stem = fs::path(name).stem().string();  // NAME.item and NAME.user are read with NAME.inter
    std::erase_if(found.left_out, [&](const std::string& entry) {
      return name.ends_with(".inter") && (entry.starts_with(stem + ".item (") || entry.starts_with(stem + ".user ("));
    });
    note = left_out_note(found.left_out);
    return path + "/" + name;
  };
  for (const char* usual : {"ratings.csv", "interactions.csv", "ratings.csv.gz", "interactions.csv.gz"}) {
    if (std::find(found.names.begin(), found.names.end(), usual) != found.names.end()) return chosen(usual);
  }
  if (found.names.empty()) return bad_folder(path, "no ratings file in this folder", left_out_note(found.left_out));
  if (found.names.size() > 1) {
    return bad_folder(path, fmt::format("several files {}: name one of them", fmt::join(kinds, ", ")),
                      fmt::format("{}", fmt::join(found.names, ", ")));
  }
  return chosen(std::string(found.names.front()));
}

/// Returns whether `path` is a table, or a folder whose only data are tables.
absl::StatusOr<bool> is_table(const std::string& path) {
  if (path.ends_with(".inter")) return false;
  if (fs::is_regular_file(path)) return true;
  TRAINKIT_ASSIGN_OR_RETURN(const FolderFiles recbole, files_of(path, {".inter"}));
  TRAINKIT_ASSIGN_OR_RETURN(const FolderFiles tables, files_of(path, kTables));
  return recbole.names.empty() && !tables.names.empty();
}

/// Returns an error that names the first option of tables that differs from its default.
absl::Status check_no_table_option(const RatingsOptions& options) {
  const TableColumns& table = options.table;
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
                      .expected = "a .csv, .tsv or .jsonl, or --data_format table"});
  }
  return absl::OkStatus();
}

}  // namespace

void for_each_repeat(const Ratings& ratings, double min_rating,
                     absl::FunctionRef<void(int64_t row, int64_t first)> visit) {
  const auto at = [&](int64_t row) -> const Rating& { return ratings.rows[static_cast<size_t>(row)]; };
  RowsByUser by_user(
      std::ssize(ratings.rows), ratings.users.size(), [&](int64_t row) { return at(row).user; },
      [&](int64_t row) { return !(at(row).value < min_rating); });
  struct Seen {
    int64_t user = -1, row = 0;
  };
  std::vector<Seen> last(ratings.items.size());  // user who has chosen the item last
  for (size_t user = 0; user < by_user.num_users(); ++user) {
    for (const int64_t row : by_user.of(user)) {
      Seen& seen = last[static_cast<size_t>(at(row).item)];
      if (seen.user == static_cast<int64_t>(user)) {
        visit(row, seen.row);
      } else {
        seen = {static_cast<int64_t>(user), row};
      }
    }
  }
}

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
  std::string note;
  const auto with_note = [&](absl::StatusOr<Ratings> ratings) {
    if (ratings.ok() && !note.empty()) ratings->notes.push_back(path + ": " + note);
    return ratings;
  };
  if (format == "table") {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string table, find_file(path, kTables, note));
    return with_note(detail::read_tables(table, options));
  }
  TRAINKIT_RETURN_IF_ERROR(check_no_table_option(options));
  const bool may_repeat = options.may_repeat.value_or(false);
  if (format == "ml-100k") return detail::read_movielens_100k(path, may_repeat);
  if (format == "ml-1m") return detail::read_movielens_1m(path, may_repeat);
  TRAINKIT_ASSIGN_OR_RETURN(const std::string inter, find_file(path, {".inter"}, note));
  return with_note(detail::read_recbole(inter, may_repeat));
}

}  // namespace trainkit::rec
