#include "trainkit/app/stored_values.h"

#include <ATen/Functions.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/base/strict_json.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"

namespace trainkit {
namespace {

using StoredJson = nlohmann::json;

constexpr int64_t kMostBytes = int64_t{1} << 32;

std::string to_text(const StoredJson& json) { return json.dump(-1, ' ', false, StoredJson::error_handler_t::replace); }

bool is_tensor(const StoredField& field) { return std::holds_alternative<at::Tensor*>(field.target); }

/// Checks one value and puts it into the target of its field.
class FieldLoader {
 public:
  FieldLoader(const StoredField& field, const Error& blame) : field_(field), blame_(blame) {}

  absl::Status bad(const std::string& problem, const std::string& got = "", const std::string& expected = "") const {
    Error error = blame_;
    error.field = entry_ < 0 ? field_.key : fmt::format("{}[{}]", field_.key, entry_);
    error.problem = problem;
    error.got = got;
    if (!expected.empty()) error.expected = expected;
    return to_status(error);
  }

  absl::Status load(const StoredJson& json) {
    return std::visit([&](auto* target) { return take(json, *target); }, field_.target);
  }

  /// `sizes` are those with a name in earlier tensors.
  absl::Status load(const at::Tensor& tensor, std::map<std::string, int64_t>& sizes) const {
    const std::vector<std::string> shape = absl::StrSplit(field_.shape, ' ', absl::SkipEmpty());
    bool fits = tensor.scalar_type() == field_.dtype && tensor.dim() == std::ssize(shape) && tensor.numel() > 0;
    for (size_t i = 0; fits && i < shape.size(); ++i) {
      const int64_t own = tensor.size(static_cast<int64_t>(i));
      int64_t size = 0;
      if (!absl::SimpleAtoi(shape[i], &size)) size = sizes.emplace(shape[i], own).first->second;
      fits = own == size;
    }
    if (!fits) {
      return bad("has another type or shape",
                 fmt::format("{} ({})", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", ")),
                 fmt::format("{} ({})", c10::toString(field_.dtype), fmt::join(shape, ", ")));
    }
    if (!at::isfinite(tensor).all().item<bool>()) return bad("has a value that is not finite");
    *std::get<at::Tensor*>(field_.target) = tensor;
    return absl::OkStatus();
  }

 private:
  absl::Status bad_value(const StoredJson& json, const std::string& expected,
                         const std::string& problem = "has another type") const {
    return bad(problem, json.is_structured() ? json.type_name() : escape_text(json.dump(), 60), expected);
  }

  absl::Status take(const StoredJson& json, at::Tensor&) const { return bad_value(json, "a tensor"); }
  absl::Status take(const StoredJson& json, int64_t& value) const {
    const auto integer = detail::json_integer(json);
    if (!integer) return bad_value(json, "a 64-bit integer");
    value = *integer;
    const auto [min, max] = std::pair(field_.min, field_.max);
    if (value >= min && value <= max) return absl::OkStatus();
    return bad_value(json, min == max ? std::to_string(min) : fmt::format("{} to {}", min, max), field_.problem);
  }
  absl::Status take(const StoredJson& json, std::string& value) const {
    if (!json.is_string()) return bad_value(json, "a text");
    value = json.get_ref<const std::string&>();
    return absl::OkStatus();
  }
  template <class A, class B>
  absl::Status take(const StoredJson& json, std::pair<A, B>& value) const {
    if (!json.is_array() || json.size() != 2) return bad_value(json, "a list of two");
    TRAINKIT_RETURN_IF_ERROR(take(json[0], value.first));
    return take(json[1], value.second);
  }
  template <class T>
  absl::Status take(const StoredJson& json, std::vector<T>& values) {
    if (!json.is_array()) return bad_value(json, "a list");
    if (std::ssize(json) < field_.min_size) {
      return bad("has too few entries", std::to_string(json.size()), fmt::format("{} or more", field_.min_size));
    }
    values.resize(json.size());
    for (size_t i = 0; i < values.size(); ++i) {
      entry_ = static_cast<int64_t>(i);
      TRAINKIT_RETURN_IF_ERROR(take(json[i], values[i]));
    }
    return absl::OkStatus();
  }

  const StoredField& field_;
  const Error& blame_;
  int64_t entry_ = -1;  // of a list
};

StoredJson json_of(const at::Tensor&) { return {}; }
template <class T>
StoredJson json_of(const T& value) {
  return value;
}

}  // namespace

absl::Status save_values(const std::string& path, const StoredValues& values) {
  StoredJson json;
  NamedTensors tensors;
  for (const auto& [key, value] : values) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      tensors.emplace_back(key, *tensor);
    } else {
      (key.empty() ? json : json[key]) = std::visit([](const auto& typed) { return json_of(typed); }, value);
    }
  }
  if (tensors.empty()) return write_file_atomically(Fs::posix(), path, to_text(json) + "\n");
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : json.items()) metadata[key] = to_text(value);
  return save_safetensors(Fs::posix(), path, tensors, metadata);
}

absl::Status load_values(const std::string& path, const std::vector<StoredField>& fields, const Error& blame) try {
  Error error = blame;
  error.where = path;
  std::optional<SafetensorsFile> file;
  StoredJson json;
  if (std::any_of(fields.begin(), fields.end(), is_tensor)) {
    TRAINKIT_ASSIGN_OR_RETURN(file, SafetensorsFile::open(path));
    for (const auto& [key, text] : file->metadata()) {
      auto value = detail::parse_strict_json(text, error);
      json[key] = value.ok() ? *std::move(value) : StoredJson(text);
    }
  } else {
    const auto text = Fs::posix().read_file(path, kMostBytes);
    if (!text.ok()) return reclassify(text.status(), error.exit_code, error.id);
    TRAINKIT_ASSIGN_OR_RETURN(json, detail::parse_strict_json(*text, error));
  }
  const auto contains = [&](const StoredField& field) {
    return is_tensor(field) ? file->contains(field.key) : field.key.empty() || json.contains(field.key);
  };
  std::set<std::string> groups = {""};
  for (const StoredField& field : fields) {
    if (contains(field)) groups.insert(field.group);
  }
  std::map<std::string, int64_t> sizes;
  for (const StoredField& field : fields) {
    if (!groups.contains(field.group)) continue;
    FieldLoader loader(field, error);
    if (!contains(field)) return loader.bad("is missing");
    if (is_tensor(field)) {
      TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor tensor, file->tensor(field.key));
      TRAINKIT_RETURN_IF_ERROR(loader.load(tensor, sizes));
    } else {
      TRAINKIT_RETURN_IF_ERROR(loader.load(field.key.empty() ? json : json[field.key]));
    }
  }
  return absl::OkStatus();
} catch (...) {
  return status_from_current_exception();
}

}  // namespace trainkit
