#include "trainkit/arrays/array_source.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "arrays/files/envi.h"
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

constexpr char kOnly[] = "array";

/// A format with one array without a name.
class SingleArray final : public ArraySource {
 public:
  using Read = absl::StatusOr<at::Tensor> (*)(const std::string& path);
  SingleArray(const std::string& path, std::string format, Read read)
      : ArraySource(path, std::move(format), {{.name = kOnly}}), read_(read) {}
  absl::StatusOr<at::Tensor> read(std::string_view) const override { return read_(path()); }
  absl::StatusOr<std::vector<double>> numbers(std::string_view attribute) const override {
    if (read_ == read_envi && attribute == "wavelength") return detail::read_envi_wavelengths(path());
    return std::vector<double>{};
  }

 private:
  Read read_;
};

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

absl::StatusOr<std::shared_ptr<const ArraySource>> ArraySource::open(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const std::string_view text = file->text();
  const bool is_mat = text.size() >= 128 && (text.substr(126, 2) == "IM" || text.substr(126, 2) == "MI");
  if (text.starts_with("\x93NUMPY")) return std::make_shared<SingleArray>(path, "a NumPy array", read_npy);
  if (text.starts_with("\x89PNG")) return std::make_shared<SingleArray>(path, "a PNG image", read_png);
  if (is_mat) {
    TRAINKIT_ASSIGN_OR_RETURN(const MatFile mat, MatFile::open(path));
    return std::make_shared<MatArrays>(mat);
  }
  if (begins_safetensors(text)) {
    TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile tensors, SafetensorsFile::open(path));
    return std::make_shared<SafetensorsArrays>(tensors);
  }
  // The contents of ENVI's data files tell nothing, and the readers of damaged files say what is wrong with them.
  const std::string lower = absl::AsciiStrToLower(path);
  if (lower.ends_with(".npy")) return std::make_shared<SingleArray>(path, "a NumPy array", read_npy);
  if (lower.ends_with(".png")) return std::make_shared<SingleArray>(path, "a PNG image", read_png);
  if (lower.ends_with(".mat")) return MatFile::open(path).status();
  if (text.starts_with("ENVI") || has_usual_name(path)) {
    return std::make_shared<SingleArray>(path, "an ENVI cube", read_envi);
  }
  return data_error("data.array", {.file = path}, "not a file of arrays", "",
                    ".npy, .mat, ENVI's .hdr, .safetensors or .png");
}

bool ArraySource::has_usual_name(std::string_view path) {
  const std::string lower = absl::AsciiStrToLower(std::string(path));
  constexpr std::string_view kEndings[] = {".npy", ".mat", ".hdr", ".safetensors", ".png"};
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](std::string_view ending) { return lower.ends_with(ending); });
}

absl::StatusOr<std::vector<double>> ArraySource::numbers(std::string_view) const { return std::vector<double>{}; }

absl::StatusOr<std::string> ArraySource::choose(const ArrayChoice& choice) const {
  if (arrays_.size() == 1 && arrays_[0].name == kOnly && !arrays_[0].dtype) return arrays_[0].name;
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
