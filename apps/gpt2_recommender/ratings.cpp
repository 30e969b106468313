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
                    .expected = "u.data, ratings.dat or one .inter",
                    .hint = "to write examples of each format: trainkit-gpt2rec --make_demo_data DIR"},
                   absl::StatusCode::kNotFound);
}

/// Returns the path of the only .inter file of a folder, or `path` itself if it is one.
absl::StatusOr<std::string> find_inter(const std::string& path) {
  if (path.ends_with(".inter")) return path;
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".inter") found.push_back(at->path().filename().string());
  }
  if (error) return bad_folder(path, "cannot be read", error.message());
  if (found.empty()) return bad_folder(path, "no ratings file in this folder", "");
  std::sort(found.begin(), found.end());
  if (found.size() > 1) {
    return bad_folder(path, "several .inter files: name one of them", fmt::format("{}", fmt::join(found, ", ")));
  }
  return path + "/" + found.front();
}

}  // namespace

const std::vector<std::string>& ratings_formats() {
  static const std::vector<std::string> names = {"auto", "ml-1m", "ml-100k", "recbole"};
  return names;
}

absl::StatusOr<Ratings> read_ratings(const std::string& path, const std::string& format) {
  const bool is_auto = format == "auto" && !path.ends_with(".inter");
  if (format == "ml-100k" || (is_auto && fs::exists(path + "/u.data"))) return detail::read_movielens_100k(path);
  if (format == "ml-1m" || (is_auto && fs::exists(path + "/ratings.dat"))) return detail::read_movielens_1m(path);
  TRAINKIT_ASSIGN_OR_RETURN(const std::string inter, find_inter(path));
  return detail::read_recbole(inter);
}

}  // namespace trainkit::rec
