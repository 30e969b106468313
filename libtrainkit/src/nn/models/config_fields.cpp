#include "nn/models/config_fields.h"

#include "core/base/strict_json.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;

}  // namespace

Error config_error(const std::string& path, std::string field, std::string problem, std::string got,
                   std::string expected) {
  return {.exit_code = ExitCode::kWeights,
          .id = "weights.config",
          .where = path,
          .field = std::move(field),
          .problem = std::move(problem),
          .got = std::move(got),
          .expected = std::move(expected)};
}

absl::StatusOr<std::string> read_config(const std::string& path, const Fs& fs) {
  auto text = fs.read_file(path, kMaxBytes);
  if (!text.ok()) return reclassify(text.status(), ExitCode::kWeights, "weights.file");
  return text;
}

absl::StatusOr<nlohmann::json> parse_config(std::string_view text, const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(nlohmann::json json, parse_strict_json(text, config_error(path, {}, {})));
  if (!json.is_object()) return to_status(config_error(path, {}, "is not a JSON object"));
  return json;
}

std::string short_text(const nlohmann::json& value) {
  return escape_text(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), 60);
}

const nlohmann::json* ConfigFields::find(const char* name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void ConfigFields::refuse(const char* name, const char* expected) {
  if (status_.ok())
    status_ = to_status(config_error(path_, name, "is of the wrong type", short_text(object_[name]), expected));
}

void ConfigFields::read(const char* name, int64_t& value) {
  const nlohmann::json* field = find(name);
  if (!field) return;
  const auto integer = detail::json_integer(*field);
  if (!integer) return refuse(name, "an integer");
  value = *integer;
}

void ConfigFields::read(const char* name, double& value) {
  const nlohmann::json* field = find(name);
  if (!field) return;
  if (!field->is_number()) return refuse(name, "a number");
  value = field->get<double>();
}

void ConfigFields::read(const char* name, bool& value) {
  const nlohmann::json* field = find(name);
  if (!field) return;
  if (!field->is_boolean()) return refuse(name, "true or false");
  value = field->get<bool>();
}

void ConfigFields::read(const char* name, std::string& value) {
  const nlohmann::json* field = find(name);
  if (!field) return;
  if (!field->is_string()) return refuse(name, "text");
  value = field->get<std::string>();
}

}  // namespace trainkit::detail
