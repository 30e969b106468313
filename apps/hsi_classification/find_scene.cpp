#include "hsi_classification/find_scene.h"

#include <ATen/Functions.h>
#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "trainkit/arrays/array_source.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/folder_files.h"

namespace trainkit::hsi {
namespace {

std::string lower(std::string_view text) { return absl::AsciiStrToLower(std::string(text)); }

/// Returns the letters and digits in lower case.
std::string normalised_name(std::string_view name) {
  std::string result = lower(name);
  std::erase_if(result, [](unsigned char c) { return !std::isalnum(c); });
  return result;
}

/// Returns whether a file name is one of `names`, or such a name followed by sizes: "SalinasA_corrected_83x86x204.mat".
bool is_one_of(const std::string& file, const std::vector<std::string_view>& names) {
  const std::string stem = lower(std::string_view(file).substr(0, file.rfind('.')));
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    if (!stem.starts_with(lower(name))) return false;
    const std::string_view rest = std::string_view(stem).substr(name.size());
    if (rest.empty()) return true;
    const bool sizes = rest.find_first_not_of("_0123456789x") == rest.npos;
    return sizes && rest[0] == '_' && rest.find('x') != rest.npos;
  });
}

/// Returns the first file of a folder that matches `names`, in the order of `names`. Empty if there is none.
std::string find_file(const std::vector<std::string>& entries, const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    for (const std::string& entry : entries) {
      if (ArraySource::has_usual_name(entry) && is_one_of(entry, {name})) return entry;
    }
  }
  return {};
}

std::string list_known() {
  std::vector<std::string_view> names;
  for (const KnownScene& scene : known_scenes()) names.push_back(scene.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

absl::StatusOr<SceneFiles> find_in_folder(const SceneOptions& options, const KnownScene* wanted) {
  const auto folder = Fs::posix().open_directory(options.data_dir);
  if (!folder.ok()) return reclassify(folder.status(), ExitCode::kData, "data.scene");
  TRAINKIT_ASSIGN_OR_RETURN(const auto entries, folder->list());
  std::vector<SceneFiles> found;
  std::string half;  // found halves of scenes, for the message
  for (const KnownScene& scene : known_scenes()) {
    if (wanted && wanted != &scene) continue;
    const std::string cube = find_file(entries, scene.cube_files), gt = find_file(entries, scene.gt_files);
    if (!cube.empty() && !gt.empty()) {
      found.push_back({options.data_dir + "/" + cube, options.data_dir + "/" + gt, &scene});
    } else if (!cube.empty() || !gt.empty()) {
      half += fmt::format("{}{} without its {}", half.empty() ? "" : ", ", cube.empty() ? gt : cube,
                          cube.empty() ? "cube" : "ground truth");
    }
  }
  const std::string demo_cube = find_file(entries, {"demo"}), demo_gt = find_file(entries, {"demo_gt"});
  if (!wanted && !demo_cube.empty() && !demo_gt.empty()) {
    found.push_back({options.data_dir + "/" + demo_cube, options.data_dir + "/" + demo_gt, nullptr});
  }
  if (found.size() == 1) {
    std::vector<std::string> others;
    for (const std::string& entry : entries) {
      const std::string path = options.data_dir + "/" + entry;
      if (ArraySource::has_usual_name(entry) && path != found[0].cube && path != found[0].gt) others.push_back(entry);
    }
    found[0].note = left_out_note(others);
    return found[0];
  }
  if (found.empty()) {
    return bad_scene(options.data_dir, "", wanted ? fmt::format("no files of {}", wanted->name) : "no known scene",
                     half.empty() ? "no file with a known name" : half,
                     wanted ? fmt::format("{}.mat and {}.mat", wanted->cube_files[0], wanted->gt_files[0]) : "",
                     "use --cube and --gt for other files");
  }
  std::vector<std::string> names;
  names.reserve(found.size());
  for (const SceneFiles& files : found)
    names.push_back(files.known ? std::string(files.known->name) : "the demo scene");
  return bad_scene(options.data_dir, "", "more than one known scene", fmt::format("{}", fmt::join(names, ", ")), "one",
                   "select one with --scene");
}

/// Returns whether all values of `tensor` are finite whole numbers.
bool has_whole_numbers(const at::Tensor& tensor) {
  if (!tensor.is_floating_point()) return true;
  return tensor.isfinite().all().item<bool>() && tensor.trunc().eq(tensor).all().item<bool>();
}

}  // namespace

absl::Status bad_option(const std::string& flag, const std::string& problem, const std::string& got,
                        const std::string& expected, const std::string& hint) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.value",
                    .where = flag,
                    .problem = problem,
                    .got = got,
                    .expected = expected,
                    .hint = hint});
}

const KnownScene* find_known_scene(std::string_view name) {
  const auto& scenes = known_scenes();
  const std::string wanted = normalised_name(name);
  const auto is_wanted = [&](std::string_view known) { return normalised_name(known) == wanted; };
  const auto at = std::find_if(scenes.begin(), scenes.end(), [&](const KnownScene& scene) {
    return is_wanted(scene.name) || std::any_of(scene.cube_files.begin(), scene.cube_files.end(), is_wanted);
  });
  return at == scenes.end() ? nullptr : &*at;
}

absl::StatusOr<SceneFiles> find_scene_files(const SceneOptions& options) {
  if (options.cube.empty() != options.gt.empty()) {
    return bad_option(options.cube.empty() ? "--cube" : "--gt", "missing: --cube and --gt must be given together");
  }
  const KnownScene* known = nullptr;
  if (normalised_name(options.scene) != "auto") {
    known = find_known_scene(options.scene);
    if (!known) return bad_option("--scene", "not a known scene", options.scene, "auto, " + list_known());
  }
  if (options.cube.empty()) {
    if (options.data_dir.empty())
      return bad_option("--data_dir", "missing: give the folder of a known scene, or --cube and --gt");
    return find_in_folder(options, known);
  }
  TRAINKIT_RETURN_IF_ERROR(check_file_kind("--cube", options.cube));
  TRAINKIT_RETURN_IF_ERROR(check_file_kind("--gt", options.gt));
  if (!known) {
    const auto file = [](const std::string& path) { return split_path(path).second; };
    for (const KnownScene& scene : known_scenes()) {
      if (is_one_of(file(options.cube), scene.cube_files) && is_one_of(file(options.gt), scene.gt_files))
        known = &scene;
    }
  }
  return SceneFiles{options.cube, options.gt, known};
}

absl::StatusOr<at::Tensor> read_ground_truth(const SceneFiles& files, const std::string& key,
                                             at::IntArrayRef cube_sizes) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto source, ArraySource::open(files.gt));
  const auto of_cube = [&](const ArrayInfo& array) {
    return array.dtype && array.sizes == std::vector<int64_t>{cube_sizes[0], cube_sizes[1]};
  };
  const auto& arrays = source->arrays();
  const bool one_of_cube = std::any_of(arrays.begin(), arrays.end(), of_cube);
  const auto fits = [&](const ArrayInfo& array) -> absl::StatusOr<bool> {
    if (!array.dtype || array.sizes.size() != 2 || (one_of_cube && !of_cube(array))) return false;
    if (!one_of_cube && (array.sizes[0] == 1 || array.sizes[1] == 1)) return false;  // wavelengths, for example
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor values, source->read(array.name));
    return has_whole_numbers(values);
  };
  TRAINKIT_ASSIGN_OR_RETURN(const std::string name,
                            source->choose({.what = "the ground truth",
                                            .flag = "--gt_key",
                                            .given = key,
                                            .usual = files.known ? files.known->gt_keys : std::vector<std::string>{},
                                            .fits = fits,
                                            .error_id = "data.scene"}));
  return source->read(name);
}

absl::Status check_file_kind(const std::string& flag, const std::string& path) {
  if (ArraySource::has_usual_name(path)) return absl::OkStatus();
  return bad_option(flag, "unsupported file type", path, ArraySource::usual_names());
}

}  // namespace trainkit::hsi
