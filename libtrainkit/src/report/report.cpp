#include "report/report.h"

#include <fmt/format.h>

#include "report/report_parts.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit::detail {
namespace {

constexpr char kBegin[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src "
    "'unsafe-inline'; script-src 'nonce-";

struct Page {
  std::string title, body;
};

absl::StatusOr<std::vector<RunData>> load_runs(const std::vector<std::string>& folders) {
  std::vector<RunData> runs;
  for (const std::string& folder : folders) {
    TRAINKIT_ASSIGN_OR_RETURN(runs.emplace_back(), load_run(folder));
  }
  return runs;
}

Page page_of(const std::vector<RunData>& runs) {
  if (runs.size() != 1) return Page{fmt::format("{} runs", runs.size()), comparison_page(runs)};
  const RunData& run = runs[0];
  return Page{run.name, run_head(run) + run_tiles(run) + run_advice(run) + run_charts(run) + run_results(run) +
                            run_media(run) + run_time(run) + run_stalls(run) + run_settings(run) + run_repeat(run) +
                            run_machine(run)};
}

/// Wraps a body into a page. Scripts run only with a nonce that follows from all of the content, so that no text of a
/// run can name it.
std::string document(const Page& page, const std::string& body_url) {
  const std::string nonce = Digest::of(page.title + page.body);
  return kBegin + fmt::format(
                      "{0}'; connect-src {1}\">\n"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{2}</title>\n"
                      "<link rel=\"icon\" href=\"data:,\">\n<style>{3}</style></head>\n"
                      "<body{4}>\n<main>\n{5}</main>\n<script nonce=\"{0}\">{6}</script>\n</body></html>\n",
                      nonce, body_url.empty() ? "'none'" : "'self'", html(page.title), kReportStyle,
                      body_url.empty() ? "" : fmt::format(" data-live=\"{}\"", html(body_url)), page.body,
                      kReportScript);
}

}  // namespace

std::string report_begin() { return kBegin; }

absl::StatusOr<std::string> render_report(const std::vector<std::string>& runs) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<RunData> loaded, load_runs(runs));
  return document(page_of(loaded), "");
}

struct LiveReport::Runs {
  std::vector<RunData> runs;
  absl::Status update() {
    for (RunData& run : runs) TRAINKIT_RETURN_IF_ERROR(update_run(run));
    return absl::OkStatus();
  }
};

LiveReport::LiveReport(const std::vector<std::string>& runs) : runs_(std::make_unique<Runs>()) {
  for (const std::string& folder : runs) runs_->runs.push_back({.folder = folder});
}

LiveReport::~LiveReport() = default;

absl::StatusOr<std::string> LiveReport::body() {
  TRAINKIT_RETURN_IF_ERROR(runs_->update());
  return page_of(runs_->runs).body;
}

absl::StatusOr<std::string> LiveReport::page(const std::string& body_url) {
  TRAINKIT_RETURN_IF_ERROR(runs_->update());
  return document(page_of(runs_->runs), body_url);
}

absl::StatusOr<std::string> report_csv(const std::vector<std::string>& folders) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<RunData> runs, load_runs(folders));
  const Comparison compared = compare(runs);
  std::string text = "run";
  for (const auto* rows : {&compared.outcome, &compared.settings}) {
    for (const ComparedRow& row : *rows) text += "," + csv_field(row.name);
  }
  text += "\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    text += csv_field(compared.names[i]);
    for (const auto* rows : {&compared.outcome, &compared.settings}) {
      for (const ComparedRow& row : *rows) text.append(1, ',').append(csv_field(row.values[i]));
    }
    text += "\n";
  }
  return text;
}

absl::Status write_report(const std::string& output_dir) noexcept {
  try {
    TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> runs, find_runs(output_dir));
    TRAINKIT_ASSIGN_OR_RETURN(const std::string page, render_report(runs));
    return write_file_atomically(Fs::posix(), output_dir + "/report.html", page);
  } catch (...) {
    return status_from_current_exception();
  }
}

}  // namespace trainkit::detail
