#include <fmt/format.h>

#include <filesystem>

#include "trainkit/app/app.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/onnx/onnx.h"

namespace trainkit {
namespace {

absl::Status check_output(const TrainedRun& run) {
  const std::string& out = run.words.front();
  if (!out.ends_with(".onnx")) return bad_word(out, "unknown file extension", ".onnx");
  return run.check_output(out);
}

absl::StatusOr<int> run_export(TrainedRun& run, const std::string& program,
                               const std::function<absl::StatusOr<OnnxModel>(TrainedRun&)>& make) {
  TRAINKIT_RETURN_IF_ERROR(check_output(run));
  run.predictor.devices = {at::kCPU};
  run.predictor.precision = Precision::kFp32;
  TRAINKIT_ASSIGN_OR_RETURN(OnnxModel model, make(run));
  model.metadata.insert({"program", program});
  if (run.weights.step >= 0) model.metadata.insert({"step", std::to_string(run.weights.step)});
  const std::string& out = run.words.front();
  TRAINKIT_RETURN_IF_ERROR(export_onnx(out, model));
  print_line(fmt::format("wrote {} ({})", out, format_size(static_cast<int64_t>(std::filesystem::file_size(out)))));
  return 0;
}

}  // namespace

AppCommand export_command(App& app, std::function<absl::StatusOr<OnnxModel>(TrainedRun& run)> make,
                          std::function<void(ConfigParser& parser)> add_flags, std::vector<std::string> flags) {
  const std::string program = app.info().name;
  flags.push_back("overwrite");
  const auto add_all = [add_flags = std::move(add_flags)](ConfigParser& parser) {
    parser.set_help("overwrite", "Replace OUT.onnx if it exists.");
    if (add_flags) add_flags(parser);
  };
  return command_on_run(
      app, {.name = "export",
            .summary = "Writes a trained model as an ONNX file.",
            .words = "RUN OUT.onnx",
            .examples = {program + " export runs/one model.onnx",
                         program + " export runs/one/checkpoints/step-00000400 model.onnx --overwrite"},
            .flags = std::move(flags),
            .add_flags = add_all,
            .one_device = true,
            .on_cpu = true,
            .body = [program, make = std::move(make)](TrainedRun& run) { return run_export(run, program, make); }});
}

}  // namespace trainkit
