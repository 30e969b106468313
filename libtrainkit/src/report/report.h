#pragma once
/// Renders report.html: one self-contained page about a run, or about several runs next to each other.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

namespace trainkit::detail {

/// Returns `folder` if it has the files of a run, else the folders of runs directly in it, sorted. Error of exit code 2
/// (run.none) if there is none.
absl::StatusOr<std::vector<std::string>> find_runs(const std::string& folder);
/// Returns the runs of all folders, each once.
absl::StatusOr<std::vector<std::string>> find_all_runs(const std::vector<std::string>& folders);

/// Returns how each page begins. It tells a page from other HTML files.
std::string report_begin();

/// Renders the page of one run, or of several runs with overlaid curves. The page has no link to the network, and at
/// most about 2 MB per run of any length. Errors: those of load_run.
absl::StatusOr<std::string> render_report(const std::vector<std::string>& runs);

/// A page of runs that train. Each call reads only the records that were added since the last one. Not thread-safe.
class LiveReport {
 public:
  explicit LiveReport(const std::vector<std::string>& runs);
  ~LiveReport();
  /// Renders the body of the page of render_report() alone, for a page that is open.
  absl::StatusOr<std::string> body();
  /// Returns a page that shows the body and fetches it again every two seconds from `body_url`.
  absl::StatusOr<std::string> page(const std::string& body_url);

 private:
  struct Runs;
  std::unique_ptr<Runs> runs_;
};

/// Returns a table of the runs as CSV with one row per run: outcome, scores, and the settings that differ.
absl::StatusOr<std::string> report_csv(const std::vector<std::string>& runs);

/// Writes `<output_dir>/report.html` atomically: a page of the run, or of the runs in the folder (find_runs). Errors:
/// those of load_run; exit code 6. Throws nothing.
absl::Status write_report(const std::string& output_dir) noexcept;

}  // namespace trainkit::detail
