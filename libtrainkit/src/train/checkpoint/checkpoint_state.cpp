#include "train/checkpoint/checkpoint_state.h"

#include <ATen/Functions.h>
#include <absl/strings/escaping.h>
#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/base/strict_json.h"
#include "core/files/array_bytes.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::json;

constexpr int kStateSchema = 1;

/// Supported dtypes, with their names in safetensors.
constexpr std::pair<std::string_view, at::ScalarType> kDtypes[] = {
    {"BOOL", at::kBool}, {"U8", at::kByte},  {"I8", at::kChar},       {"I16", at::kShort}, {"I32", at::kInt},
    {"I64", at::kLong},  {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"F32", at::kFloat}, {"F64", at::kDouble},
};

/// Writes infinities and NaN as their 64 bits, since JSON cannot represent them; the payload of a NaN is preserved.
Json number_to_json(double number) {
  if (std::isfinite(number)) return number;
  return fmt::format("0x{:016x}", std::bit_cast<uint64_t>(number));
}

std::optional<double> number_from_json(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (!json.is_string()) return std::nullopt;
  const auto& text = json.get_ref<const std::string&>();
  if (text.size() != 18 || !text.starts_with("0x")) return std::nullopt;
  uint64_t bits = 0;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return std::bit_cast<double>(bits);
}

bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

struct ToJson {
  Json operator()(bool value) const { return value; }
  Json operator()(int64_t value) const { return value; }
  Json operator()(double value) const {
    return std::isfinite(value) ? Json(value) : Json{{"float64", number_to_json(value)}};
  }
  Json operator()(const std::string& value) const {
    return is_utf8(value) ? Json(value) : Json{{"bytes", absl::Base64Escape(value)}};
  }
  Json operator()(const std::vector<int64_t>& value) const { return {{"int64s", value}}; }
  Json operator()(const std::vector<double>& value) const {
    Json list = Json::array();
    for (const double number : value) list.push_back(number_to_json(number));
    return {{"float64s", std::move(list)}};
  }
  Json operator()(const at::Tensor& value) const {
    TORCH_CHECK_VALUE(value.defined() && value.layout() == at::kStrided && !value.is_meta(),
                      "is not a dense tensor with data in memory");
    for (const auto& [name, type] : kDtypes) {
      if (type != value.scalar_type()) continue;
      const at::Tensor plain = value.detach().to(at::kCPU).resolve_neg().contiguous();
      const absl::string_view bytes(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
      return {{"tensor", {{"dtype", name}, {"shape", plain.sizes().vec()}, {"data", absl::Base64Escape(bytes)}}}};
    }
    TORCH_CHECK_VALUE(false, "has an unsupported dtype: ", c10::toString(value.scalar_type()));
  }
};

/// Parses a tensor. Checks the size of the decoded data against dtype and shape before it allocates, so a hostile shape
/// cannot request memory that the file does not contain.
std::optional<at::Tensor> tensor_from_json(const Json& json) {
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data"))
    return std::nullopt;
  const Json &dtype = json["dtype"], &shape = json["shape"], &data = json["data"];
  std::string bytes;
  if (!dtype.is_string() || !shape.is_array() || !data.is_string()) return std::nullopt;
  if (!absl::Base64Unescape(data.get_ref<const std::string&>(), &bytes)) return std::nullopt;
  for (const auto& [name, type] : kDtypes) {
    if (name != dtype.get_ref<const std::string&>()) continue;
    std::vector<int64_t> sizes;
    for (const Json& dimension : shape) {
      const auto value = json_integer(dimension);
      if (!value) return std::nullopt;
      sizes.push_back(*value);
    }
    if (array_bytes(sizes, static_cast<int64_t>(c10::elementSize(type))) != std::ssize(bytes)) return std::nullopt;
    at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(type));
    if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }
  return std::nullopt;
}

/// Parses a value of the form {"<tag>": content}.
std::optional<StateValue> tagged_from_json(const std::string& tag, const Json& content) {
  if (tag == "float64") {
    if (const auto number = number_from_json(content)) return *number;
  } else if (tag == "bytes" && content.is_string()) {
    std::string bytes;
    if (absl::Base64Unescape(content.get_ref<const std::string&>(), &bytes)) return bytes;
  } else if (tag == "int64s" && content.is_array()) {
    std::vector<int64_t> numbers;
    for (const Json& number : content) {
      const auto value = json_integer(number);
      if (!value) return std::nullopt;
      numbers.push_back(*value);
    }
    return numbers;
  } else if (tag == "float64s" && content.is_array()) {
    std::vector<double> numbers;
    for (const Json& number : content) {
      const auto value = number_from_json(number);
      if (!value) return std::nullopt;
      numbers.push_back(*value);
    }
    return numbers;
  } else if (tag == "tensor") {
    if (auto tensor = tensor_from_json(content)) return std::move(*tensor);
  }
  return std::nullopt;
}

std::optional<StateValue> value_from_json(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json_integer(json);
  if (json.is_number_float()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object() && json.size() == 1) return tagged_from_json(json.begin().key(), json.begin().value());
  return std::nullopt;
}

Error state_error(const std::string& path, std::string field, std::string problem) {
  return {.exit_code = ExitCode::kWeights,
          .id = "ckpt.state",
          .where = path,
          .field = std::move(field),
          .problem = std::move(problem)};
}

}  // namespace

absl::StatusOr<std::string> state_to_json(const StateDict& state) {
  Json entries = Json::object();
  for (const auto& [name, value] : state) {
    try {
      entries[name] = std::visit(ToJson{}, value);
    } catch (...) {
      return annotate(status_from_current_exception(), name);
    }
  }
  try {
    return Json{{"schema", kStateSchema}, {"entries", std::move(entries)}}.dump(1) + "\n";
  } catch (const Json::type_error&) {
    return absl::InvalidArgumentError("the name of a state entry is not UTF-8");
  }
}

absl::StatusOr<StateDict> state_from_json(std::string_view text, const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const Json json, parse_strict_json(text, state_error(path, {}, {})));
  if (!json.is_object() || !json.contains("schema") || !json.contains("entries") || !json["entries"].is_object()) {
    return to_status(state_error(path, {}, "is not a state file: 'schema' or 'entries' is missing"));
  }
  if (json["schema"] != kStateSchema) {
    Error error = state_error(path, "schema", "is not supported by this version of the library");
    error.got = json["schema"].dump();
    error.expected = fmt::format("{}", kStateSchema);
    return to_status(error);
  }
  StateDict state;
  for (const auto& [name, json_value] : json["entries"].items()) {
    auto value = value_from_json(json_value);
    if (!value) return to_status(state_error(path, name, "is not a valid state value"));
    state.emplace(name, std::move(*value));
  }
  return state;
}

}  // namespace trainkit::detail
