#pragma once
/// What `trainkit doctor` has found, as a table for people and as JSON for programs.

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

namespace trainkit::tool {

enum class Verdict {
  kOk,
  kNote,    ///< Worth knowing.
  kWarning  ///< Will slow down or end some run.
};

class Report {
 public:
  Report();
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  /// One line: `text` under `section` and `name`. `value` is the figure alone, for JSON; `hint` says what to do.
  void add(const std::string& section, const std::string& name, const nlohmann::ordered_json& value, std::string text,
           Verdict verdict = Verdict::kOk, std::string hint = {});

  /// Sections with aligned columns; '!' before a warning, its hint below. Without the sections `left_out`.
  std::string table(const std::set<std::string>& left_out = {}) const;
  /// {"<section>": {"<name>": {"value", "text", "verdict": "ok" | "note" | "warning", "hint"}}, "warnings": N}
  std::string json(const std::set<std::string>& left_out = {}) const;

 private:
  struct Finding;
  std::vector<Finding> findings_;
};

}  // namespace trainkit::tool
