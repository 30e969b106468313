#include "trainkit/train/program.h"

#include <csignal>
#include <cstdio>

#include "trainkit/core/environment.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/summary.h"

namespace trainkit {

int run_program(const std::function<absl::StatusOr<int>(Program& program)>& body) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error to tell, not to die of
  Program program;
  const absl::StatusOr<int> result = [&]() -> absl::StatusOr<int> {
    try {
      TRAINKIT_RETURN_IF_ERROR(check_environment());
      return body(program);
    } catch (...) {
      return status_from_current_exception();
    }
  }();
  if (result.ok()) return *result;
  std::fflush(stdout);
  std::fputs(error_text(result.status()).c_str(), stderr);
  if (!program.output_dir.empty()) {
    // The error is on stderr already: that it could not be kept as well (a full disk) is not told.
    (void)write_error(program.output_dir, result.status());
  }
  return static_cast<int>(exit_code(result.status()));
}

}  // namespace trainkit
