// Scenes in NumPy archives and HDF5 files through the real program, and scenes larger than a strip.
#include <ATen/Functions.h>
#include <hdf5.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "apps/hsi/hsi_place.h"
#include "arrays/hdf5/hdf5_handle.h"
#include "arrays/npz_bytes.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

void train_or_predict(const HsiPlace& place, const std::vector<std::string>& flags) {
  const Ended ended = run_to_end("trainkit-hsi", flags, place.dir.path().string());
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
}

void add_array(hid_t file, const std::string& name, const at::Tensor& values, hid_t type, bool packed) {
  using trainkit::detail::Hdf5Handle;
  const std::vector<hsize_t> sizes(values.sizes().begin(), values.sizes().end());
  std::vector<hsize_t> chunk(sizes.size(), 7);
  const Hdf5Handle space(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr)),
      properties(H5Pcreate(H5P_DATASET_CREATE)), links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links, 1);
  if (packed) {
    H5Pset_chunk(properties, static_cast<int>(chunk.size()), chunk.data());
    H5Pset_shuffle(properties);
    H5Pset_deflate(properties, 6);
  }
  const Hdf5Handle dataset(H5Dcreate2(file, name.c_str(), type, space, links, properties, H5P_DEFAULT));
  REQUIRE(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.const_data_ptr()) >= 0);
}

/// Writes both arrays of the demo scene to one file.
void write_h5(const std::string& path, const at::Tensor& cube, const at::Tensor& truth, bool packed) {
  const trainkit::detail::Hdf5Session session;
  const trainkit::detail::Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  add_array(file, "scene/reflectance", cube, H5T_STD_U16LE, packed);
  add_array(file, "scene/labels", truth, H5T_STD_U8LE, packed);
}

/// Peak resident memory of the largest program that has ended, in MiB.
int64_t largest_program() {
  rusage usage = {};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return usage.ru_maxrss >> 10;
}

}  // namespace

TEST_CASE("A scene in an HDF5 file or a NumPy archive gives the bits of one in .npy files", "[apps][hsi]") {
  const HsiPlace place;
  const auto file = [&](const std::string& name) { return place.dir / name; };
  const at::Tensor cube = MatFile::open(file("demo.mat"))->read("demo").value();
  const at::Tensor truth = MatFile::open(file("demo_gt.mat"))->read("demo_gt").value();
  REQUIRE(write_npy(file("cube.npy"), cube).ok());
  REQUIRE(write_npy(file("gt.npy"), truth).ok());
  const std::vector<std::pair<std::string, std::string>> members = {{"cube.npy", read_text(file("cube.npy"))},
                                                                    {"gt.npy", read_text(file("gt.npy"))}};
  write_bytes(file("stored.npz"), npz_bytes(members, false));
  write_bytes(file("deflated.npz"), npz_bytes(members, true));
  write_h5(file("plain.h5"), cube, truth, false);
  write_h5(file("packed.hdf5"), cube, truth, true);
  const auto results = [&](const std::string& name, const std::string& cube_file, const std::string& gt_file) {
    train_or_predict(place, place.flags(name, {"--cube", file(cube_file), "--gt", file(gt_file), "--epochs", "1"}));
    train_or_predict(place, {"predict", file(name), "--cube", file(cube_file), "--out", file(name + ".out")});
    std::string all;
    for (const std::string& path : {name + "/best.safetensors", name + "/split.json", name + "/scene.safetensors",
                                    name + "/results/scores.json", name + "/results/maps.mat", name + ".out/map.png",
                                    name + ".out/classes.npy", name + ".out/probabilities.npy"}) {
      all += Digest::of(read_text(file(path))) + "\n";
    }
    return all;
  };
  const std::string expected = results("npy", "cube.npy", "gt.npy");
  for (const std::string name : {"stored.npz", "deflated.npz", "plain.h5", "packed.hdf5"}) {
    INFO(name);
    CHECK(results("run-" + name, name, name) == expected);
  }
  const Ended unknown =
      run_to_end("trainkit-hsi", place.flags("no", {"--cube", file("plain.h5"), "--cube_key", "scene/none"}),
                 place.dir.path().string());
  CHECK(unknown.code == 4);
  CHECK_THAT(unknown.errors, Catch::Contains("error[data.hdf5]") &&
                                 Catch::Contains("plain.h5: scene/none: no such array (expected 'scene/labels'"));
}

TEST_CASE(
    "predict classifies a scene by strips: its memory does not grow with the scene, and its bits are those of "
    "the whole",
    "[apps][hsi]") {
  const HsiPlace place;
  constexpr int64_t kBands = 1000;
  REQUIRE(write_demo_scene(place.dir.path().string(), {.height = 24, .width = 24, .bands = kBands, .classes = 3}).ok());
  train_or_predict(place, place.flags("run", {"--model", "mlp", "--patch_size", "1", "--max_steps", "4"}));
  const auto predict = [&](const std::string& cube, const std::string& out) {
    train_or_predict(place, {"predict", place.dir / "run", "--cube", place.dir / cube, "--out", place.dir / out,
                             "--batch_size", "64"});
  };
  predict("demo.mat", "small");
  const int64_t before = largest_program();
  // 320 MB that are nearly all zeros, which take no space on the disk: the demo scene in its first rows.
  const at::Tensor small = values_of(load_cube(place.dir / "demo.mat").value());
  constexpr int64_t kHeight = 3400;
  {
    std::ofstream file(place.dir / "large.dat", std::ios::binary);
    file.write(static_cast<const char*>(small.const_data_ptr()), static_cast<std::streamsize>(small.nbytes()));
  }
  std::filesystem::resize_file(place.dir / "large.dat", kHeight * 24 * kBands * sizeof(float));
  std::ofstream(place.dir / "large.hdr") << "ENVI\nsamples = 24\nlines = " << kHeight << "\nbands = " << kBands
                                         << "\ndata type = 4\ninterleave = bip\n";
  predict("large.hdr", "large");
  INFO(before << " and " << largest_program() << " MiB");
  CHECK(largest_program() < before + 450);
  const at::Tensor whole = read_npy(place.dir / "small" + "/probabilities.npy").value();
  const at::Tensor strips = read_npy(place.dir / "large" + "/probabilities.npy").value();
  CHECK(strips.sizes() == at::IntArrayRef({kHeight, 24, 3}));
  CHECK(strips.narrow(0, 0, 24).equal(whole));
  CHECK(at::allclose(strips.narrow(0, 24, kHeight - 24), strips[24][0].expand({kHeight - 24, 24, 3})));
}
