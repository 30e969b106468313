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
    fs::current_path(dir.path());  // and the data is here, not in the folder that the runs name
    const std::map<std::string, std::vector<std::string>> data = {{"transformer", {"--input", "corpus.txt"}},
                                                                  {"gpt2rec", {"--data_dir", "ratings.csv"}}};
    for (const auto& [trainer, flags] : data) {
      INFO(version.path().filename() << ", " << trainer);
      std::vector<std::string> arguments = {"--output_dir", trainer, "--resume", "latest", "--max_steps", "6"};
      arguments.insert(arguments.end(), flags.begin(), flags.end());
      const Ended ended = run_to_end("trainkit-" + trainer, arguments, dir.path());
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
