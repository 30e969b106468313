#pragma once
/// Compares a predicted memory plan with the figures that a trainer's guide gives for its example.

#include <nlohmann/json.hpp>
#include <string>

namespace trainkit::tool {

using Json = nlohmann::ordered_json;

/// Adds "guide" to `plan` if the trainer `app` has such figures: "example" in words, and under "parts" for each part of
/// a device's memory "guide_bytes" (smallest and largest) and "bytes" (predicted).
void add_guide(const std::string& app, Json& plan);

/// Formats the same comparison as a table after an empty line; empty for a trainer without figures. Needs a `plan` that
/// add_guide has completed.
std::string guide_table(const std::string& app, const Json& plan);

}  // namespace trainkit::tool
