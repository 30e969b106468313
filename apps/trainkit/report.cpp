#include "trainkit/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trainkit/core/error.h"
#include "trainkit/logging/format.h"

namespace trainkit::tool {

struct Report::Finding {
  std::string section, name, text, hint;
  nlohmann::ordered_json value;
  Verdict verdict;
};

Report::Report() = default;
Report::~Report() = default;

void Report::add(const std::string& section, const std::string& name, const nlohmann::ordered_json& value,
                 std::string text, Verdict verdict, std::string hint) {
  // Names of files and devices are not ours: they may contain control characters.
  findings_.push_back({section, escape_text(name), format_text(text), format_text(hint), value, verdict});
}

std::string Report::table(const std::set<std::string>& excluded_sections) const {
  size_t width = 0;
  for (const Finding& finding : findings_) width = std::max(width, finding.name.size());
  std::string out, section;
  for (const Finding& finding : findings_) {
    if (excluded_sections.contains(finding.section)) continue;
    if (finding.section != section) out += fmt::format("{}{}\n", out.empty() ? "" : "\n", finding.section);
    section = finding.section;
    const char mark = finding.verdict == Verdict::kWarning ? '!' : ' ';
    out += fmt::format("{} {:<{}}  {}\n", mark, finding.name, width, finding.text);
    if (!finding.hint.empty()) out += fmt::format("  {:<{}}  -> {}\n", "", width, finding.hint);
  }
  return out;
}

std::string Report::json(const std::set<std::string>& excluded_sections) const {
  nlohmann::ordered_json out;
  int warnings = 0;
  for (const Finding& finding : findings_) {
    if (excluded_sections.contains(finding.section)) continue;
    constexpr const char* kVerdicts[] = {"ok", "note", "warning"};
    out[finding.section][finding.name] = {{"value", finding.value},
                                          {"text", finding.text},
                                          {"verdict", kVerdicts[static_cast<int>(finding.verdict)]},
                                          {"hint", finding.hint}};
    warnings += finding.verdict == Verdict::kWarning;
  }
  out["warnings"] = warnings;
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace trainkit::tool
