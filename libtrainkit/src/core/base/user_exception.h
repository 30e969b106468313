#pragma once
// Errors of code that the caller passed to the library.

#include <absl/status/status.h>

#include <string>

namespace trainkit::detail {

/// Translates the exception being handled, which user code threw (a loss function, a model, a sampler). An exception
/// without a class of its own (exit code 1 otherwise) becomes the Error `user.exception` of exit code 2, with the
/// exception's type and text; the absl code is that of status_from_current_exception(). Call it inside `catch (...)`.
/// @param where for example "step 12"
/// @param who for example "the loss function"
absl::Status status_from_user_exception(const std::string& where, const std::string& who);

}  // namespace trainkit::detail
