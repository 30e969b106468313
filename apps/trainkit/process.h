#pragma once
/// Starts child processes without a shell.

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "core/files/unique_descriptor.h"

namespace trainkit::tool {

struct Pipe {
  trainkit::detail::UniqueDescriptor reader, writer;
};

/// Makes a pipe; a child process does not inherit its ends. `id` is that of the error, of exit code 8.
absl::StatusOr<Pipe> make_pipe(const std::string& id);

struct ProcessOptions {
  /// Program and arguments. A program without a slash is searched for in PATH.
  std::vector<std::string> words = {};
  /// Descriptors that become the child's stdout and stderr. Its stdin is /dev/null.
  int output = 1, errors = 2;
  /// "NAME=value"; empty: the environment of this process.
  std::vector<std::string> environment = {};
  /// Id of the errors.
  std::string id = "tool.start";
};

/// Starts a process as the leader of a new process group, with default signal actions and no blocked signal. The kernel
/// kills it when the calling thread ends. Errors: exit code 2 if the program cannot be executed; 8 if this process may
/// not open more descriptors or start more processes. Each has the cause (errno).
absl::StatusOr<pid_t> start_process(ProcessOptions options);

}  // namespace trainkit::tool
