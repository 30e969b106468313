#pragma once
/// The line that an error of distributed training prints.

#include <string>

#include "test_util.h"
#include "trainkit/core/error.h"

namespace trainkit::test {

inline std::string line(const absl::Status& status) {
  CHECK(exit_code(status) == ExitCode::kDistributed);
  return error_line(status);
}

}  // namespace trainkit::test
