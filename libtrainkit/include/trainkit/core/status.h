#pragma once
/// Translation of exceptions to Status, and two macros that propagate a Status.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <exception>
#include <string_view>

namespace trainkit {

/// Translates an exception to a Status. Keeps the text and removes the C++ backtrace.
///
///   c10::OutOfMemoryError, std::bad_alloc   kResourceExhausted
///   c10::DistError                          kUnavailable
///   c10::IndexError, std::out_of_range      kOutOfRange
///   c10::ValueError, c10::TypeError, std::invalid_argument   kInvalidArgument
///   absl::BadStatusOrAccess                 the Status inside
///   every other c10::Error or exception     kInternal
///
/// Called where exceptions of user code and LibTorch end: worker threads, Trainer::fit, main. Never throws.
absl::Status status_from_exception(std::exception_ptr exception);

/// Same for the exception being handled; call it inside `catch (...)`.
absl::Status status_from_current_exception();

/// Puts "<context>: " in front of the message of `status`; keeps code and payload (the Error it carries). OK stays OK.
absl::Status annotate(const absl::Status& status, std::string_view context);

}  // namespace trainkit

/// Returns from the calling function if `expression` is not OK.
#define TRAINKIT_RETURN_IF_ERROR(expression)                                                           \
  do {                                                                                                 \
    if (absl::Status trainkit_status_ = (expression); !trainkit_status_.ok()) return trainkit_status_; \
  } while (false)

#define TRAINKIT_CONCAT_INNER_(a, b) a##b
#define TRAINKIT_CONCAT_(a, b) TRAINKIT_CONCAT_INNER_(a, b)

/// TRAINKIT_ASSIGN_OR_RETURN(auto x, f()): assigns the value of a StatusOr, or returns its Status.
#define TRAINKIT_ASSIGN_OR_RETURN(declaration, expression) \
  TRAINKIT_ASSIGN_OR_RETURN_(TRAINKIT_CONCAT_(trainkit_statusor_, __LINE__), declaration, expression)
#define TRAINKIT_ASSIGN_OR_RETURN_(statusor, declaration, expression) \
  auto statusor = (expression);                                       \
  if (!statusor.ok()) return std::move(statusor).status();            \
  declaration = std::move(statusor).value()
