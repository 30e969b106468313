#include "trainkit/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trainkit/core/error.h"
#include "trainkit/core/format.h"

namespace trainkit::tool {

struct Findings::Finding {
  std::string section, name, text, hint;
  nlohmann::ordered_json value;
  Verdict verdict;
};

Findings::Findings() = default;
Findings::~Findings() = default;

void Findings::add(const std::string& section, const std::string& name, const nlohmann::ordered_json& value,
                   std::string text, Verdict verdict, std::string hint) {
  // Names of files and devices are not ours: they may contain control characters.
  findings_.push_back({section, escape_text(name), format_text(text), format_text(hint), value, verdict});
}

std::string Findings::table(const std::set<std::string>& excluded_sections) const {
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

std::string Findings::verdict() const {
  std::vector<const Finding*> problems;
  for (const Finding& finding : findings_) {
    if (finding.verdict == Verdict::kWarning) problems.push_back(&finding);
  }
  if (problems.empty()) return "verdict: ready for training; no problem found";
  const Finding& first = *problems.front();
  const std::string remedy = first.hint.empty() ? "" : " -> " + first.hint;
  return fmt::format("verdict: {} problem{} (marked '!'){}: {}, {}: {}{}", problems.size(),
                     problems.size() == 1 ? "" : "s", problems.size() == 1 ? "" : ", the first", first.section,
                     first.name, first.text, remedy);
}

std::string Findings::json(const std::set<std::string>& excluded_sections) const {
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
  out["summary"] = verdict();
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace trainkit::tool
