#include "trainkit/core/environment.h"

#include <unistd.h>

#include <string_view>

namespace trainkit {

EnvironmentVariables environment_variables() {
  EnvironmentVariables variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t mark = text.find('=');
    // The first of two entries of one name is the one that getenv finds.
    if (mark != std::string_view::npos) variables.try_emplace(std::string(text.substr(0, mark)), text.substr(mark + 1));
  }
  return variables;
}

}  // namespace trainkit
