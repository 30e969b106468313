#include "trainkit/core/data_error.h"

#include <fmt/format.h>

#include "trainkit/core/error.h"

namespace trainkit {

absl::Status data_error(const std::string& id, const Place& place, const std::string& problem, std::string_view got,
                        const std::string& expected, const std::string& hint) {
  std::string where = place.file;
  if (place.line > 0) where += fmt::format(":{}", place.line);
  if (place.offset >= 0) where += fmt::format("@{:#x}", place.offset);
  return to_status({.exit_code = ExitCode::kData,
                    .id = id,
                    .where = where,
                    .field = place.field,
                    .problem = problem,
                    .got = std::string(got),
                    .expected = expected,
                    .hint = hint});
}

}  // namespace trainkit
