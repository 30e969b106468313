#pragma once
/// Runs a program with Python's PyTorch.

#include <unistd.h>

#include <string>

#include "record.h"
#include "spec.h"

namespace trainkit::differential {

/// One lasting Python that runs the folder oracle. Calls block.
class Oracle {
 public:
  Oracle(const std::string& python, const std::string& script);
  ~Oracle();
  Oracle(const Oracle&) = delete;
  Oracle& operator=(const Oracle&) = delete;

  /// Runs `spec` with the library's first weights, rows and order of rows. `order` above 0 changes the order of the
  /// rows within each batch. An exception in Python becomes an entry "error/<text>".
  Record run(const Spec& spec, int64_t order = 0) const;
  /// The same in float64, from the weights and rows of the program's own dtype.
  Record run_exact(const Spec& spec) const;
  /// Exports the model of `spec` to the file `path`. An exception in Python becomes an entry "error/<text>".
  Record export_model(const Spec& spec, const std::string& path) const;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
};

}  // namespace trainkit::differential
