#include "trainkit/arrays/array_source.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "arrays/files/envi.h"
#include "arrays/files/npy.h"
#include "arrays/hdf5/hdf5_layout.h"
#include "arrays/source/formats.h"
#include "io/weights/safetensors_header.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"
#include "trainkit/io/safetensors.h"

namespace trainkit {
namespace {

constexpr std::string_view kEndings[] = {".npy", ".npz", ".mat", ".h5", ".hdf5", ".hdr", ".safetensors", ".png"};

/// A PNG image, which has no name.
class Picture final : public ArraySource {
 public:
  explicit Picture(const std::string& path) : ArraySource(path, "a PNG image", {{.type = "uint8"}}) {}
  absl::StatusOr<at::Tensor> read(std::string_view) const override { return read_png(path()); }
};

/// A format with one array without a name, whose elements lie in the file.
class OneStoredArray final : public ArraySource {
 public:
  OneStoredArray(const std::string& path, std::string format, detail::StoredArray array)
      : ArraySource(path, std::move(format), {{"", c10::toString(array.dtype), array.dtype, array.sizes}}),
        array_(std::move(array)) {}
  absl::StatusOr<at::Tensor> read(std::string_view) const override { return array_.read(); }
  absl::StatusOr<at::Tensor> read_rows(std::string_view, int64_t begin, int64_t count) const override {
    return array_.read_rows(begin, count);
  }
  bool reads_rows(std::string_view) const override { return true; }
  absl::StatusOr<std::vector<double>> numbers(std::string_view attribute) const override {
    if (format() == kEnvi && attribute == "wavelength") return detail::read_envi_wavelengths(path());
    return std::vector<double>{};
  }
  static constexpr char kNpy[] = "a NumPy array", kEnvi[] = "an ENVI cube";

 private:
  detail::StoredArray array_;
};

absl::StatusOr<std::shared_ptr<const ArraySource>> open_npy(std::shared_ptr<const MappedFile> file) {
  const std::string path = file->path();
  TRAINKIT_ASSIGN_OR_RETURN(detail::StoredArray array, detail::open_npy(std::move(file)));
  return std::make_shared<OneStoredArray>(path, OneStoredArray::kNpy, std::move(array));
}

class MatArrays final : public ArraySource {
 public:
  explicit MatArrays(const MatFile& file) : ArraySource(file.path(), "a MATLAB file", arrays_of(file)), file_(file) {}
  absl::StatusOr<at::Tensor> read(std::string_view name) const override { return file_.read(name); }

 private:
  static std::vector<ArrayInfo> arrays_of(const MatFile& file) {
    std::vector<ArrayInfo> arrays;
    for (const MatVariable& v : file.variables()) arrays.push_back({v.name, v.type, v.dtype, v.sizes});
    return arrays;
  }
  MatFile file_;
};

class SafetensorsArrays final : public ArraySource {
 public:
  explicit SafetensorsArrays(const SafetensorsFile& file)
      : ArraySource(file.path(), "a safetensors file", arrays_of(file)), file_(file) {}
  absl::StatusOr<at::Tensor> read(std::string_view name) const override { return file_.tensor(name); }

 private:
  static std::vector<ArrayInfo> arrays_of(const SafetensorsFile& file) {
    std::vector<ArrayInfo> arrays;
    for (const SafetensorsEntry& entry : file.entries()) {
      const detail::SafetensorsDtype* const dtype = detail::find_dtype(entry.dtype);
      arrays.push_back({entry.name, entry.dtype, dtype ? dtype->scalar_type : std::nullopt, entry.shape});
    }
    return arrays;
  }
  SafetensorsFile file_;
};

/// Returns whether a file begins as a safetensors file: the length of the header, and the header's brace.
bool begins_safetensors(std::string_view bytes) {
  return bytes.size() > 9 && bytes[8] == '{' && bytes[6] == '\0' && bytes[7] == '\0';
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ArraySource>> ArraySource::open(const std::string& path) try {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const std::string_view text = file->text();
  const bool is_mat = text.size() >= 128 && (text.substr(126, 2) == "IM" || text.substr(126, 2) == "MI");
  if (text.starts_with("\x93NUMPY")) return open_npy(file);
  if (text.starts_with("\x89PNG")) return std::make_shared<Picture>(path);
  if (text.starts_with("PK\x03\x04") || text.starts_with("PK\x05\x06")) return detail::open_npz(file);
  if (is_mat) {
    TRAINKIT_ASSIGN_OR_RETURN(const MatFile mat, MatFile::open(path));
    return std::make_shared<MatArrays>(mat);
  }
  if (const auto at = detail::find_hdf5(text)) return detail::open_hdf5(file, *at);
  if (begins_safetensors(text)) {
    TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile tensors, SafetensorsFile::open(path));
    return std::make_shared<SafetensorsArrays>(tensors);
  }
  // The contents of ENVI's data files tell nothing, and the readers of damaged files say what is wrong with them.
  const std::string lower = absl::AsciiStrToLower(path);
  const auto ends = [&](std::string_view ending) { return lower.ends_with(ending); };
  if (ends(".npy")) return open_npy(file);
  if (ends(".npz")) return detail::open_npz(file);
  if (ends(".h5") || ends(".hdf5")) return detail::open_hdf5(file, 0);
  if (ends(".png")) return std::make_shared<Picture>(path);
  if (ends(".mat")) return MatFile::open(path).status();
  if (text.starts_with("ENVI") || has_usual_name(path)) {
    TRAINKIT_ASSIGN_OR_RETURN(detail::StoredArray array, detail::open_envi(path));
    return std::make_shared<OneStoredArray>(path, OneStoredArray::kEnvi, std::move(array));
  }
  return data_error("data.array", {.file = path}, "not a file of arrays", "", usual_names());
} catch (...) {
  return annotate(status_from_current_exception(), path);
}

bool ArraySource::has_usual_name(std::string_view path) {
  const std::string lower = absl::AsciiStrToLower(std::string(path));
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](std::string_view ending) { return lower.ends_with(ending); });
}

std::string ArraySource::usual_names() {
  return fmt::format("{} or {}", fmt::join(std::begin(kEndings), std::prev(std::end(kEndings)), ", "),
                     *std::prev(std::end(kEndings)));
}

absl::StatusOr<at::Tensor> ArraySource::read_rows(std::string_view name, int64_t begin, int64_t count) const {
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor all, read(name));
  return all.narrow(0, begin, count).clone();
}

bool ArraySource::reads_rows(std::string_view) const { return false; }

absl::StatusOr<ArrayInfo> ArraySource::find_array(std::string_view name, const std::string& error_id) const {
  const auto found = std::find_if(arrays_.begin(), arrays_.end(), [&](const ArrayInfo& a) { return a.name == name; });
  if (found != arrays_.end()) return *found;
  constexpr size_t kMostListed = 8;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(kMostListed, arrays_.size()); ++i)
    names.push_back("'" + arrays_[i].name.substr(0, 40) + "'");
  if (arrays_.size() > kMostListed) names.push_back(fmt::format("one of {} more", arrays_.size() - kMostListed));
  return data_error(error_id, {.file = path_, .field = std::string(name.substr(0, 80))}, "no such array", "",
                    names.empty() ? "a file with arrays" : fmt::format("{}", fmt::join(names, ", ")));
}

absl::StatusOr<std::vector<double>> ArraySource::numbers(std::string_view) const { return std::vector<double>{}; }

absl::StatusOr<std::string> ArraySource::choose(const ArrayChoice& choice) const {
  if (arrays_.size() == 1 && arrays_[0].name.empty()) return arrays_[0].name;
  if (!choice.given.empty()) return choice.given;
  const auto is_there = [&](const std::string& name) {
    return std::any_of(arrays_.begin(), arrays_.end(), [&](const ArrayInfo& array) { return array.name == name; });
  };
  const auto usual = std::find_if(choice.usual.begin(), choice.usual.end(), is_there);
  if (usual != choice.usual.end()) return *usual;
  std::vector<std::string> fitting, all;
  for (const ArrayInfo& array : arrays_) {
    all.push_back(fmt::format("{} ({} {})", array.name, fmt::join(array.sizes, "x"), array.type));
    bool fits = true;
    if (choice.fits) {
      TRAINKIT_ASSIGN_OR_RETURN(fits, choice.fits(array));
    }
    if (fits) fitting.push_back(array.name);
  }
  if (fitting.size() == 1) return fitting[0];
  const std::vector<std::string>& listed = fitting.empty() ? all : fitting;
  return data_error(choice.error_id, {.file = path_},
                    (fitting.empty() ? "no variable can be " : "more than one variable can be ") + choice.what,
                    listed.empty() ? "a file without variables" : fmt::format("{}", fmt::join(listed, ", ")), "one",
                    "select one with " + choice.flag);
}

}  // namespace trainkit
