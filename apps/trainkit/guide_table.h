#pragma once
/// What a trainer's guide says of the memory of its example, beside what was predicted.

#include <nlohmann/json.hpp>
#include <string>

namespace trainkit::tool {

using Json = nlohmann::ordered_json;

/// Adds "guide" to a plan of a trainer that has one: the example in words, and for each part of a device's memory
/// "guide_bytes" (the least and the most) and "bytes" (ours).
void add_guide(const std::string& app, Json& plan);

/// The same as lines, with an empty one before them; empty for a trainer without one. `plan` has "guide".
std::string guide_table(const std::string& app, const Json& plan);

}  // namespace trainkit::tool
