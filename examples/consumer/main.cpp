// Links an installed libtrainkit and uses a little of it.
#include <iostream>

#include "trainkit/trainkit.h"

int main() {
  const absl::Status status = trainkit::to_status({.exit_code = trainkit::ExitCode::kData, .id = "data.demo", .problem = "an example"});
  std::cout << trainkit::error_text(status);
  return trainkit::exit_code(status) == trainkit::ExitCode::kData ? 0 : 1;
}
