#include "core/base/user_exception.h"

#include <c10/util/Type.h>
#include <cxxabi.h>

#include <typeinfo>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {

absl::Status status_from_user_exception(const std::string& where, const std::string& who) {
  absl::Status status = status_from_current_exception();
  if (error_of(status) || exit_code(status) != ExitCode::kBug) return status;
  const std::type_info* type = abi::__cxa_current_exception_type();
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "user.exception",
                    .where = where,
                    .problem = who + " threw " + (type ? c10::demangle(type->name()) : "an exception") + ": " +
                               std::string(status.message())},
                   status.code());
}

}  // namespace trainkit::detail
