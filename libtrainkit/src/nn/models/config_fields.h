#pragma once
/// Readers of the configuration files stored with weights: config.json, adapter_config.json.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"

namespace trainkit::detail {

/// Makes an Error weights.config, exit code 5.
Error config_error(const std::string& path, std::string field, std::string problem, std::string got = {},
                   std::string expected = {});

/// Reads the file, at most 1 MiB. Errors have exit code 5.
absl::StatusOr<std::string> read_config(const std::string& path, const Fs& fs);

/// Parses one JSON object.
absl::StatusOr<nlohmann::json> parse_config(std::string_view text, const std::string& path);

/// Formats a value of the file for a message.
std::string short_text(const nlohmann::json& value);

/// Reads the fields of one object and keeps the first error. A missing or null field keeps the default.
class ConfigFields {
 public:
  ConfigFields(const nlohmann::json& object, const std::string& path) : object_(object), path_(path) {}
  void read(const char* name, int64_t& value);
  void read(const char* name, double& value);
  void read(const char* name, bool& value);
  void read(const char* name, std::string& value);
  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json* find(const char* name) const;
  void refuse(const char* name, const char* expected);
  const nlohmann::json& object_;
  const std::string& path_;
  absl::Status status_;
};

}  // namespace trainkit::detail
