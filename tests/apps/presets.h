#pragma once
/// The presets of a trainer as --help lists them.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit::test {

/// Returns the settings below "Presets:" of --help for one of `presets`.
inline Settings listed_settings(const std::string& help, const std::vector<std::string>& presets,
                                const std::string& preset) {
  std::istringstream words(help.substr(help.find("\nPresets:\n")));
  Settings settings;
  bool here = false;
  for (std::string word, value; words >> word && word != "Use";) {
    if (std::find(presets.begin(), presets.end(), word) != presets.end()) here = word == preset;
    // Flags in the text of a preset come before a punctuation mark.
    if (!here || !word.starts_with("--") || !std::isalnum(static_cast<unsigned char>(word.back()))) continue;
    words >> value;
    settings.emplace_back(word.substr(2), value);
  }
  return settings;
}

/// Checks that a parser that was given `preset` has the settings that its help lists for it.
inline void check_preset(const ConfigParser& parser, const std::vector<std::string>& presets,
                         const std::string& preset) {
  const Settings used = parser.settings(), listed = listed_settings(parser.help(), presets, preset);
  CHECK(listed.size() >= 3);
  for (const auto& [name, value] : listed) {
    const auto found = std::find_if(used.begin(), used.end(), [&](const auto& s) { return s.first == name; });
    INFO(preset << " --" << name << " " << value);
    CHECK(parser.source(name) == "preset " + preset);
    if (found == used.end()) continue;  // a path
    std::string text = found->second;
    std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == ' '; });  // of a list
    INFO("used: " << text);
    CHECK((text == value || std::atof(text.c_str()) == std::stod(value)));
  }
}

}  // namespace trainkit::test
