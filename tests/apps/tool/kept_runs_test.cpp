// Runs that earlier versions have written; see tests/kept/README.md.
#include <map>

#include "apps/runs.h"
#include "test_util.h"
#include "trainkit/io/weight_file.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

NamedTensors tensors_in(const std::string& file) { return WeightFile::open(file).value().tensors().value(); }

}  // namespace

TEST_CASE("Runs of earlier versions continue to the weights that those versions reached", "[tool][kept]") {
  int runs = 0;
  for (const auto& version : fs::directory_iterator(TRAINKIT_REFERENCE_DIR "/../kept")) {
    if (!version.is_directory()) continue;
    const TempDir dir;
    fs::copy(version.path(), dir.path(), fs::copy_options::recursive);
    const fs::path before = fs::current_path();
    fs::current_path(dir.path());  // the runs name their data and their folder from here
    for (const std::string trainer : {"transformer", "gpt2rec"}) {
      INFO(version.path().filename() << ", " << trainer);
      const Ended ended = run_to_end("trainkit-" + trainer,
                                     {"--output_dir", trainer, "--resume", "latest", "--max_steps", "6"}, dir.path());
      CAPTURE(ended.errors);
      CHECK(ended.code == 0);
      std::map<std::string, at::Tensor> now;
      for (const auto& [name, tensor] : tensors_in(trainer + "/checkpoints/step-00000006/model.safetensors"))
        now[name] = tensor;
      for (const auto& [name, tensor] : tensors_in(trainer + ".step-00000006.safetensors")) {
        INFO(name);
        REQUIRE(now.contains(name));
        CHECK(at::allclose(now.at(name), tensor, 1e-4, 1e-6));
      }
      ++runs;
    }
    fs::current_path(before);
  }
  CHECK(runs >= 2);
}
