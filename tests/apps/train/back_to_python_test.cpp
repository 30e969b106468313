// From Python to a run of trainkit-train and back: trainkit export writes what load_state_dict(strict=True) accepts.
#include <filesystem>

#include "apps/runs.h"
#include "reference_util.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/nn/exported_model.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

Ended tool(const TempDir& dir, const std::vector<std::string>& words) {
  return run_to_end("trainkit", words, dir.path().string());
}

/// The first output of the model with the weights of `path`; "": with those of the export.
at::Tensor output_with(const TempDir& dir, const std::string& path, const at::Tensor& x) {
  ExportedModel model = ExportedModel::load(dir / "tied.tkm").value();
  if (!path.empty()) REQUIRE(load_weights(*model, path).status() == absl::OkStatus());
  model->eval();
  const torch::NoGradGuard no_grad;
  return model->forward(x);
}

}  // namespace

TEST_CASE("A trained model goes back into Python, tied weights under both names", "[apps][train]") {
  if (!python_has("torch safetensors")) TRAINKIT_SKIP("no Python with torch");
  const TempDir dir;
  run_reference("exported_model.py", dir.path().string() + " 1 tied");
  const SafetensorsFile file = SafetensorsFile::open(dir / "tied.safetensors").value();
  const at::Tensor x = file.tensor("x").value();
  std::filesystem::create_directories(dir / "data");
  REQUIRE(write_npy(dir / "data/x.npy", x.repeat({4, 1})).ok());
  REQUIRE(write_npy(dir / "data/y.npy", file.tensor("y").value().repeat({4, 1})).ok());
  const Ended trained =
      run_to_end("trainkit-train",
                 {"--model", dir / "tied.tkm", "--data_dir", dir / "data", "--output_dir", dir / "run", "--device",
                  "cpu", "--batch_size", "8", "--max_steps", "4", "--lr", "0.01"},
                 dir.path().string());
  INFO(trained.errors);
  REQUIRE(trained.code == 0);
  // A run, a checkpoint, a file without its run.
  REQUIRE(tool(dir, {"export", dir / "run", dir / "run.pt"}).code == 0);
  REQUIRE(tool(dir, {"export", dir / "run/checkpoints/latest", dir / "latest.safetensors"}).code == 0);
  std::filesystem::copy_file(dir / "run/best.safetensors", dir / "alone.safetensors");
  const Ended alone = tool(dir, {"export", dir / "alone.safetensors", dir / "alone.pt", "--model", dir / "tied.tkm"});
  INFO(alone.errors);
  REQUIRE(alone.code == 0);
  for (const char* name : {"run.pt", "latest.safetensors", "alone.pt"}) {
    CAPTURE(name);
    const std::string loaded =
        run_reference("exported_model.py", "load " + dir.path().string() + " tied " + (dir / name));
    CHECK_THAT(loaded, Contains("loaded"));
    const at::Tensor output = SafetensorsFile::open(dir / "output.safetensors").value().tensor("output").value();
    CHECK(output.allclose(output_with(dir, dir / name, x), 1e-4, 1e-5));
    CHECK_FALSE(output.allclose(output_with(dir, "", x), 1e-2, 1e-3));
  }
  std::filesystem::remove(dir / "tied.tkm");
  CHECK_THAT(tool(dir, {"export", dir / "run", dir / "again.pt"}).output,
             Contains("tied.tkm does not exist") && Contains("--model"));
}
