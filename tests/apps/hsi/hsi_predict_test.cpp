// trainkit-hsi predict as a user runs it.
#include <ATen/Functions.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "apps/hsi/hsi_place.h"
#include "hsi_classification/trained_scene.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

Ended run_hsi(const HsiPlace& place, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-hsi", flags, place.dir.path().string());
}

void train_hsi(const HsiPlace& place, std::vector<std::string> more = {}) {
  const Ended ended = run_hsi(place, place.flags("run", std::move(more)));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
}

/// Writes the demo cube as ENVI with some bands, in some order.
void write_envi(const HsiPlace& place, const std::string& name, const std::vector<int64_t>& bands, double shift = 0) {
  const at::Tensor cube = values_of(load_cube(place.dir / "demo.mat").value());
  const at::Tensor chosen = cube.index_select(2, at::tensor(bands)).contiguous();
  std::ofstream(place.dir / name + ".dat", std::ios::binary)
      .write(static_cast<const char*>(chosen.const_data_ptr()), static_cast<std::streamsize>(chosen.nbytes()));
  std::ofstream header(place.dir / name + ".hdr");
  header << "ENVI\nsamples = 32\nlines = 30\nbands = " << bands.size()
         << "\ndata type = 4\ninterleave = bip\nwavelength units = Nanometers\nwavelength = {";
  for (size_t i = 0; i < bands.size(); ++i) header << (i ? ", " : "") << 400 + 10 * bands[i] + shift;
  header << "}\n";
}

std::vector<int64_t> first_bands(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

TEST_CASE("predict on the training cube gives the trainer's own map, on any number of replicas", "[apps][hsi]") {
  const HsiPlace place;
  const auto [name, more] = GENERATE(std::pair("all bands", std::vector<std::string>{}),
                                     std::pair("components", std::vector<std::string>{"--pca", "5"}),
                                     std::pair("loader", std::vector<std::string>{"--feed", "loader"}));
  INFO(name);
  train_hsi(place, more);
  const std::string before = folder_contents(place.dir / "run");
  const auto predict = [&](const std::string& out, const std::string& parallel) {
    const Ended ended = run_hsi(place, {"predict", place.dir / "run", "--cube", place.dir / "demo.mat", "--out",
                                        place.dir / out, "--parallel", parallel});
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK(ended.errors.find("the best in validation") != std::string::npos);
    CHECK(ended.output.find("class 1") != std::string::npos);
  };
  predict("one", "1");
  predict("three", "3");
  CHECK(folder_contents(place.dir / "run") == before);
  const at::Tensor trained = MatFile::open(place.dir / "run" + "/results/maps.mat")->read("classification").value();
  const at::Tensor classes = read_npy(place.dir / "one" + "/classes.npy").value();
  CHECK(classes.equal(trained.to(at::kLong)));
  const at::Tensor probabilities = read_npy(place.dir / "one" + "/probabilities.npy").value();
  CHECK(probabilities.sizes() == at::IntArrayRef({30, 32, 3}));
  CHECK(at::allclose(probabilities.sum(2), at::ones({30, 32})));
  CHECK((probabilities.argmax(2) + 1).equal(classes));
  for (const char* file : {"/classes.npy", "/probabilities.npy", "/map.png", "/legend.svg", "/classes.csv"}) {
    CHECK(read_text(place.dir / "three" + file) == read_text(place.dir / "one" + file));
  }
  // The width of a PNG is in bytes 16 to 19: 19 times 32 pixels.
  const std::string png = read_text(place.dir / "one" + "/map.png");
  const int width = static_cast<unsigned char>(png[18]) * 256 + static_cast<unsigned char>(png[19]);
  CHECK(width == 608);
}

TEST_CASE("predict uses this machine's devices, not those of the run, and flags override settings", "[apps][hsi]") {
  const HsiPlace place;
  train_hsi(place, {"--epochs", "1"});
  const std::string config = place.dir / "run" + "/config.yaml";
  std::string text = read_text(config);
  const auto set = [&](const std::string& key, const std::string& value) {
    const size_t begin = text.find("\n" + key + ": ") + 1;
    REQUIRE(begin > 1);
    text.replace(begin, text.find('\n', begin) - begin, key + ": " + value);
  };
  const auto predict = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"predict", place.dir / "run", "--cube", place.dir / "demo.mat",
                                      "--out",   place.dir / out};
    words.insert(words.end(), more.begin(), more.end());
    return run_hsi(place, words);
  };
  const Ended before = predict("before", {});
  REQUIRE(before.code == 0);
  CHECK(before.errors.find("; cpu, fp32") != std::string::npos);
  // As a run of two GPUs in fp16.
  for (const auto& [key, value] :
       {std::pair("device", "cuda"), std::pair("use_multi_gpu", "true"), std::pair("gpu_ids", "[0, 1]"),
        std::pair("precision", "fp16"), std::pair("strategy", "ddp")}) {
    set(key, value);
  }
  std::ofstream(config) << text;
  const Ended after = predict("after", {"--device", "cpu"});
  INFO(after.errors);
  REQUIRE(after.code == 0);
  CHECK(after.errors.find("; cpu, fp32") != std::string::npos);
  CHECK(read_text(place.dir / "after" + "/probabilities.npy") ==
        read_text(place.dir / "before" + "/probabilities.npy"));

  const Ended bf16 = predict("bf16", {"--device", "cpu", "--parallel", "2", "--precision", "bf16"});
  CHECK(bf16.code == 0);
  CHECK(bf16.errors.find("; 2 x cpu, bf16") != std::string::npos);
  const Ended fp16 = predict("fp16", {"--device", "cpu", "--precision", "fp16"});
  CHECK(fp16.code == 2);
  CHECK(fp16.errors.find("fp16 needs a GPU") != std::string::npos);
  const Ended other = predict("other", {"--device", "cpu", "--model", "mlp"});
  CHECK(other.code == 2);
  CHECK(other.errors.find("error[cli.unused] --model: has no effect in trainkit-hsi predict") != std::string::npos);
  CHECK_FALSE(fs::exists(place.dir / "other"));
}

TEST_CASE("Equal wavelengths need no search on the training cube, and are refused where two bands are the same",
          "[apps][hsi]") {
  const auto select = [](const std::vector<double>& trained, const std::vector<double>& wavelengths) {
    TrainedScene scene;
    scene.preprocessing.bands.mean = at::zeros({static_cast<int64_t>(trained.size())}, at::kDouble);
    scene.wavelengths = trained;
    return select_bands(4, wavelengths, scene, "c.hdr");
  };
  const auto chosen = [&](const std::vector<double>& trained, const std::vector<double>& wavelengths) {
    const auto bands = select(trained, wavelengths);
    INFO((bands.ok() ? "" : error_line(bands.status())));
    REQUIRE(bands.ok());
    return bands->bands;
  };
  const auto refused = [&](const std::vector<double>& trained, const std::vector<double>& wavelengths) {
    const auto bands = select(trained, wavelengths);
    REQUIRE_FALSE(bands.ok());
    CHECK(exit_code(bands.status()) == ExitCode::kData);
    return error_line(bands.status());
  };
  const std::vector<int64_t> all = {};
  CHECK(chosen({400, 400, 401, 401}, {400, 400, 401, 401}) == all);
  CHECK(chosen({500, 400, 400, 600}, {500, 400, 400, 600}) == all);
  CHECK(chosen({450, 450, 451, 452}, {0.45 * 1000, 0.45 * 1000, 451.00001, 452}) == all);
  CHECK(chosen({400, 401, 402, 403}, {403, 402, 401, 400}) == std::vector<int64_t>{3, 2, 1, 0});
  CHECK(chosen({401, 403}, {400, 401, 402, 403}) == std::vector<int64_t>{1, 3});
  CHECK(chosen({400, 401, 402, 403}, {}) == all);
  CHECK_THAT(select({400, 401, 402, 403}, {})->note,
             Catch::Contains("matched by number: this cube has no wavelengths"));
  CHECK_THAT(refused({400, 401, 401}, {400, 401, 401, 402}),
             Catch::Contains("bands 2 and 3 are equally near to band 2"));
  CHECK_THAT(refused({400, 401, 401.4}, {400, 401.2, 403, 404}),
             Catch::Contains("is the nearest of two bands") && Catch::Contains("bands 2 at 401 nm and 3 at 401.4 nm"));
  CHECK_THAT(refused({400, 410}, {395, 405, 500, 600}), Catch::Contains("equally near"));
}

TEST_CASE("predict on a training cube with equal wavelengths gives the trainer's own map", "[apps][hsi]") {
  const HsiPlace place;
  write_envi(place, "training", first_bands(8));
  std::string header = read_text(place.dir / "training.hdr");
  header.replace(header.find("wavelength = {"), std::string::npos,
                 "wavelength = {400, 400, 401, 401, 402, 402, 9, 9}\n");
  std::ofstream(place.dir / "training.hdr") << header;
  train_hsi(place, {"--cube", place.dir / "training.hdr", "--epochs", "1"});
  const Ended ended =
      run_hsi(place, {"predict", place.dir / "run", "--cube", place.dir / "training.hdr", "--out", place.dir / "out"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const at::Tensor trained = MatFile::open(place.dir / "run" + "/results/maps.mat")->read("classification").value();
  CHECK(read_npy(place.dir / "out" + "/classes.npy")->equal(trained.to(at::kLong)));
}

TEST_CASE("predict matches bands by wavelength where both files have them", "[apps][hsi]") {
  const HsiPlace place;
  write_envi(place, "training", first_bands(16));
  train_hsi(place, {"--cube", place.dir / "training.hdr"});
  std::vector<int64_t> reversed = first_bands(16);
  std::reverse(reversed.begin(), reversed.end());
  write_envi(place, "reversed", reversed, /*shift=*/2);
  const auto predict = [&](const std::string& cube) {
    return run_hsi(place,
                   {"predict", place.dir / "run", "--cube", place.dir / cube, "--out", place.dir / cube + ".out"});
  };
  const Ended ended = predict("reversed.hdr");
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const at::Tensor trained = MatFile::open(place.dir / "run" + "/results/maps.mat")->read("classification").value();
  CHECK(read_npy(place.dir / "reversed.hdr" + ".out/classes.npy")->equal(trained.to(at::kLong)));

  write_envi(place, "fewer", first_bands(12));
  const Ended fewer = predict("fewer.hdr");
  CHECK(fewer.code == 4);
  CHECK(fewer.errors.find("no band at 520.0 nm, band 13 of the training scene") != std::string::npos);
  CHECK_FALSE(fs::exists(place.dir / "fewer.hdr" + ".out"));
}

TEST_CASE("predict refuses bad input with one line and writes nothing", "[apps][hsi]") {
  const HsiPlace place;
  train_hsi(place, {"--epochs", "1"});
  const std::string out = place.dir / "out", cube = place.dir / "demo.mat", good = place.dir / "run";
  const HsiPlace other;
  REQUIRE(write_demo_scene(other.dir.path().string(), {.height = 20, .width = 20, .bands = 9, .classes = 3}).ok());
  fs::create_directories(place.dir / "empty");
  fs::create_directories(place.dir / "no_weights");
  fs::copy_file(good + "/config.yaml", place.dir / "no_weights" + "/config.yaml");
  fs::copy(good, place.dir / "old", fs::copy_options::recursive);
  fs::remove(place.dir / "old" + "/scene.safetensors");
  struct Case {
    std::vector<std::string> words;
    int code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{"predict"}, 2, "error[cli.word] RUN: not given"},
      {{"predict", "--cube", cube, "--out", out}, 2, "RUN: not given"},
      {{"predict", good, "--out", out}, 2, "--cube: not given"},
      {{"predict", good, "more", "words", "--cube", cube, "--out", out},
       2,
       "error[cli.word] more: unexpected argument"},
      {{"predict", good, "--cube", cube}, 2, "--out: not given"},
      {{"predict", good, "--cube", cube, "--out", out, "--bogus", "1"}, 2, "--bogus: no such flag"},
      {{"predict", place.dir / "absent", "--cube", cube, "--out", out}, 5, "no such folder"},
      {{"predict", place.dir / "empty", "--cube", cube, "--out", out}, 5, "not the folder of a run"},
      {{"predict", place.dir / "no_weights", "--cube", cube, "--out", out}, 5, "a run without weights"},
      {{"predict", place.dir / "old", "--cube", cube, "--out", out}, 5, "has not stored the statistics"},
      {{"predict", good, "--cube", place.dir / "absent.mat", "--out", out}, 4, "absent.mat"},
      {{"predict", good, "--cube", other.dir / "demo.mat", "--out", out},
       4,
       "another number of bands than the training scene (got '9', expected 16)"},
      {{"predict", good, "--cube", place.dir / "scene.txt", "--out", out}, 2, "unsupported file type"},
      {{"predict", good, "--cube", cube, "--out", "/proc/out"}, 6, "/proc/out"},
      {{"predict", good, "--cube", cube, "--out", cube}, 6, "demo.mat"},
      {{"predikt", good}, 2, "did you mean predict?"}};
  for (const Case& bad : cases) {
    const Ended ended = run_hsi(place, bad.words);
    INFO(ended.errors);
    CHECK(ended.code == bad.code);
    CHECK(ended.errors.find(bad.text) != std::string::npos);
    CHECK(ended.output.empty());
    CHECK_FALSE(fs::exists(out));
  }
  const Ended help = run_hsi(place, {"predict", "--help"});
  CHECK(help.code == 0);
  CHECK(help.output.find("Usage: trainkit-hsi predict RUN") != std::string::npos);
  CHECK(help.output.find("--epochs") == std::string::npos);
  CHECK(run_hsi(place, {"--help"}).output.find("Commands") != std::string::npos);
}
