#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "trainkit/app/app.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit {
namespace {

/// Returns a line of comma-separated fields.
std::string csv_line(const std::string& first, const std::vector<std::string>& more) {
  std::string line = csv_field(first);
  for (const std::string& field : more) line += "," + csv_field(field);
  return line + "\n";
}

absl::StatusOr<int> run_predict(TrainedRun& run, const std::string& words, const std::string& out,
                                const std::function<absl::StatusOr<RowsToPredict>(TrainedRun&)>& make) {
  if (run.words.empty()) return bad_word(words, "not given");
  if (!out.empty()) TRAINKIT_RETURN_IF_ERROR(run.check_output(out));
  run.predictor.loader.on_error = OnError::kSkip;
  TRAINKIT_ASSIGN_OR_RETURN(const RowsToPredict rows, make(run));
  const std::string word = rows.task->row_word();
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor, run.load(rows.make_model, word + "s"));
  std::vector<std::string> lines(static_cast<size_t>(rows.dataset->size()));
  const auto name = [&](int64_t row) { return rows.row_name ? rows.row_name(row) : std::to_string(row); };
  const auto take = [&](const Batch& batch, const at::Tensor& predictions) {
    for (int64_t i = 0; i < batch.size(); ++i) {
      const int64_t row = batch.row_indices()[static_cast<size_t>(i)];
      lines[static_cast<size_t>(row)] = csv_line(name(row), rows.task->prediction_fields(predictions, i));
    }
    return absl::OkStatus();
  };
  const auto forward = [&](torch::nn::Module& model, const Batch& batch) {
    return rows.task->prediction(rows.task->outputs()(model, batch));
  };
  TRAINKIT_ASSIGN_OR_RETURN(const auto bad, predictor.run(rows.dataset, forward, take));
  // Predictions on the screen are alone on stdout, so that they can be piped.
  const auto note = [&](const std::string& line) { std::fputs((line + "\n").c_str(), out.empty() ? stderr : stdout); };
  const std::vector<std::string> columns = rows.task->prediction_columns();
  std::string text = csv_line(word, columns);
  for (const BadSample& sample : bad) {
    lines[static_cast<size_t>(sample.index)] = csv_line(name(sample.index), std::vector<std::string>(columns.size()));
    note(fmt::format("{} {} left empty: {}", word, name(sample.index), sample.cause));
  }
  for (const std::string& line : lines) text += line;
  for (const std::string& line : rows.notes) note(line);
  if (out.empty()) {
    print_line(text.substr(0, text.size() - 1));
    return 0;
  }
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), out, text));
  print_line(fmt::format("wrote {} ({} {}s)", out, lines.size(), word));
  return 0;
}

}  // namespace

AppCommand predict_command(App& app, std::function<absl::StatusOr<RowsToPredict>(TrainedRun& run)> make,
                           const std::string& words) {
  const std::string program = app.info().name;
  const auto out = std::make_shared<std::string>();
  const auto add_flags = [out](ConfigParser& parser) {
    parser.set_help("overwrite", "Replace the file of --out if it exists.");
    parser.add("out", out.get(),
               {.help = "Write the predictions to this csv file, not on the screen.",
                .path = PathKind::kOutput,
                .metavar = "FILE",
                .flag_only = true});
  };
  return command_on_run(app, {.name = "predict",
                              .summary = "Predicts rows with a trained run.",
                              .words = "RUN " + words,
                              .examples = {program + " predict runs/one " + words + " --out predictions.csv"},
                              .flags = {"out", "overwrite"},
                              .add_flags = add_flags,
                              .body = [words, out, make = std::move(make)](TrainedRun& run) {
                                return run_predict(run, words, *out, make);
                              }});
}

}  // namespace trainkit
