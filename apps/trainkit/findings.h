#pragma once
/// Collects the findings of `trainkit doctor`: a table for people, JSON for programs.

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

namespace trainkit::tool {

enum class Verdict {
  kOk,
  kNote,    ///< Worth knowing.
  kWarning  ///< Slows down or ends some runs.
};

/// Holds findings in the order in which they were added.
class Findings {
 public:
  Findings();
  ~Findings();
  Findings(const Findings&) = delete;
  Findings& operator=(const Findings&) = delete;

  /// Adds the line `text` under `section` and `name`. `value` is the bare figure for JSON; `hint` is the remedy.
  /// Control characters in `name`, `text` and `hint` are escaped.
  void add(const std::string& section, const std::string& name, const nlohmann::ordered_json& value, std::string text,
           Verdict verdict = Verdict::kOk, std::string hint = {});

  /// Formats the sections with aligned columns. A warning has '!' before it; a hint is on the next line.
  /// Leaves out `excluded_sections`.
  std::string table(const std::set<std::string>& excluded_sections = {}) const;
  /// Returns the one-line verdict: "ready", or the number of problems and the first one with its remedy.
  std::string verdict() const;
  /// Formats {"<section>": {"<name>": {"value", "text", "verdict": "ok" | "note" | "warning", "hint"}}, "warnings": N}.
  /// Leaves out `excluded_sections`.
  std::string json(const std::set<std::string>& excluded_sections = {}) const;

 private:
  struct Finding;
  std::vector<Finding> findings_;
};

}  // namespace trainkit::tool
