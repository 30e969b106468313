#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/device/host_tensors.h"
#include "io/weights/safetensors_header.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

using detail::SafetensorsDtype, detail::SafetensorsPlan;

absl::Status refuse_entry(const std::string& name, std::string problem, std::string got = {},
                          ExitCode code = ExitCode::kBug) {
  return to_status(
      {.exit_code = code, .id = "weights.write", .field = name, .problem = std::move(problem), .got = std::move(got)},
      absl::StatusCode::kInvalidArgument);
}

absl::Status check(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return refuse_entry(name, "is an undefined tensor");
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    return refuse_entry(name, "has no dense data in memory");
  if (!detail::find_dtype(tensor.scalar_type())) {
    return refuse_entry(name, "has a dtype that safetensors lacks", c10::toString(tensor.scalar_type()),
                        ExitCode::kWeights);  // of a model or a file, not of the program
  }
  if (name == "__metadata__") return refuse_entry(name, "is not allowed as a name");
  return absl::OkStatus();
}

/// Parses the header `text` as the reader does, so that every file that is written can be read.
absl::Status check_readable(const std::string& text, int64_t data_bytes) {
  if (text.size() > detail::kMaxHeaderBytes) {
    return refuse_entry("header", "is too long", fmt::format("{} bytes", text.size()));
  }
  const auto header = detail::parse_safetensors_header(text, static_cast<uint64_t>(data_bytes), "");
  if (header.ok()) return absl::OkStatus();
  const auto error = error_of(header.status());
  return error ? refuse_entry(error->field, error->problem, error->got) : header.status();
}

/// The plan of tensors with data.
absl::StatusOr<SafetensorsPlan> plan_with_data(const NamedTensors& tensors, const SafetensorsMetadata& metadata) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && tensor.is_meta()) return refuse_entry(name, "has no dense data in memory");
  }
  return detail::plan_safetensors(tensors, metadata);
}

}  // namespace

absl::StatusOr<SafetensorsPlan> detail::plan_safetensors(const NamedTensors& tensors,
                                                         const SafetensorsMetadata& metadata) {
  SafetensorsPlan plan;
  for (const auto& named : tensors) {
    TRAINKIT_RETURN_IF_ERROR(check(named.first, named.second));
    plan.order.push_back(&named);
  }
  // Writing the widest types first aligns every tensor; the reference uses the same order.
  const auto rank = [](const auto* named) { return find_dtype(named->second.scalar_type()); };
  std::sort(plan.order.begin(), plan.order.end(),
            [&](const auto* a, const auto* b) { return rank(a) != rank(b) ? rank(a) > rank(b) : a->first < b->first; });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string text = "{";
  const auto add = [&](const std::string& key, const nlohmann::ordered_json& value) {
    if (text.size() > 1) text += ",";
    text += nlohmann::ordered_json(key).dump() + ":" + value.dump();
  };
  try {
    if (!metadata.empty()) add("__metadata__", metadata);
    std::vector<std::string_view> names;
    for (const auto* named : plan.order) {
      const auto& [name, tensor] = *named;
      const int64_t end = plan.data_bytes + static_cast<int64_t>(tensor.nbytes());
      add(name,
          nlohmann::ordered_json{
              {"dtype", rank(named)->name}, {"shape", tensor.sizes().vec()}, {"data_offsets", {plan.data_bytes, end}}});
      plan.data_bytes = end;
      names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
      return refuse_entry(std::string(*twice), "is a duplicate");
    }
  } catch (const nlohmann::json::type_error&) {
    return refuse_entry("names and metadata", "hold text that is not UTF-8");
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');  // the data starts at a multiple of 8
  TRAINKIT_RETURN_IF_ERROR(check_readable(text, plan.data_bytes));
  const uint64_t length = text.size();
  plan.header.resize(8);
  std::memcpy(plan.header.data(), &length, 8);
  plan.header += text;
  return plan;
}

absl::StatusOr<int64_t> safetensors_bytes(const NamedTensors& tensors, const SafetensorsMetadata& metadata) {
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsPlan plan, plan_with_data(tensors, metadata));
  return static_cast<int64_t>(plan.header.size()) + plan.data_bytes;
}

absl::Status write_safetensors(WritableFile& file, const NamedTensors& tensors, const SafetensorsMetadata& metadata) {
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsPlan plan, plan_with_data(tensors, metadata));
  TRAINKIT_RETURN_IF_ERROR(file.append(plan.header));
  std::vector<at::Tensor> tensors_in_order;
  for (const auto* named : plan.order) tensors_in_order.push_back(named->second);
  detail::HostTensors on_host(std::move(tensors_in_order));
  for (const auto* named : plan.order) {
    at::Tensor tensor;
    try {
      tensor = on_host.next();
    } catch (...) {
      return annotate(status_from_current_exception(), named->first);
    }
    TRAINKIT_RETURN_IF_ERROR(file.append(tensor.const_data_ptr(), tensor.nbytes()));
  }
  return absl::OkStatus();
}

absl::Status save_safetensors(const Fs& fs, const std::string& path, const NamedTensors& tensors,
                              const SafetensorsMetadata& metadata) {
  const auto [parent, name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, fs.open_directory(parent));
  return write_file_atomically(directory, name,
                               [&](WritableFile& file) { return write_safetensors(file, tensors, metadata); });
}

}  // namespace trainkit
