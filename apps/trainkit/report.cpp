// trainkit report: a page about one run, or about several runs next to each other.
#include "report/report.h"

#include <fmt/format.h>

#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/report/summary.h"

namespace trainkit::tool {
namespace {

absl::Status write_output(const std::string& path, const std::string& text) {
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), path, text));
  print(fmt::format("wrote {} ({})\n", escape_text(path, 4096), format_size(static_cast<int64_t>(text.size()))));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> report_command(const Arguments& given) {
  ConfigParser parser(
      {.name = "trainkit report",
       .version = library_versions()["trainkit"],
       .description =
           "Writes one HTML file about a run: outcome, curves, throughput, time, settings, machine and results. The "
           "file\nneeds no network and no other file. Several runs, or a folder of runs, give overlaid curves and a "
           "table of what\ndiffered. Each run writes its own report.html when it ends.",
       .examples = {"trainkit report runs/hsi", "trainkit report runs/a runs/b --out comparison.html",
                    "trainkit report runs --csv runs.csv"},
       .words = "RUN [RUN...]"});
  std::string out, csv;
  parser.add("out", &out,
             {.help = "File to write. Default: RUN/report.html; report.html for several runs.",
              .group = "Output",
              .path = PathKind::kOutput,
              .metavar = "FILE"});
  parser.add("csv", &csv,
             {.help = "Also write a table with one row per run: outcome, scores, settings that differ.",
              .group = "Output",
              .path = PathKind::kOutput,
              .metavar = "FILE"});
  Arguments arguments = given;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> folders, parser.take_words(arguments.flags));
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted || folders.empty()) return 0;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> runs, trainkit::detail::find_all_runs(folders));
  if (out.empty()) out = runs.size() == 1 ? runs[0] + "/report.html" : "report.html";
  TRAINKIT_RETURN_IF_ERROR(check_replaced("--out", out, {trainkit::detail::report_begin()}, "a report"));
  TRAINKIT_RETURN_IF_ERROR(check_replaced(
      "--csv", csv, {"run,program,outcome,", "run,outcome,steps,", "run,outcome,seconds,"}, "a report as csv"));
  TRAINKIT_ASSIGN_OR_RETURN(const std::string page, trainkit::detail::render_report(runs));
  TRAINKIT_RETURN_IF_ERROR(write_output(out, page));
  if (csv.empty()) return 0;
  TRAINKIT_ASSIGN_OR_RETURN(const std::string table, trainkit::detail::report_csv(runs));
  TRAINKIT_RETURN_IF_ERROR(write_output(csv, table));
  return 0;
}

}  // namespace trainkit::tool
