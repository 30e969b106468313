#pragma once
/// The one translator from exceptions to Status, and two macros that pass a Status on.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <exception>
#include <string_view>

namespace trainkit {

/// The Status that stands for an exception. Text is kept, C++ backtraces are cut off.
///
///   c10::OutOfMemoryError, std::bad_alloc   kResourceExhausted
///   c10::DistError                          kUnavailable
///   c10::IndexError, std::out_of_range      kOutOfRange
///   c10::ValueError, c10::TypeError, std::invalid_argument   kInvalidArgument
///   absl::BadStatusOrAccess                 the Status inside
///   every other c10::Error or exception     kInternal
///
/// Used where exceptions of users' code and LibTorch end: worker threads, Trainer::fit, main. Never throws.
absl::Status status_from_exception(std::exception_ptr exception);

/// The same for the exception being handled; call it inside `catch (...)`.
absl::Status status_from_current_exception();

/// `status` with "<context>: " before its message; code and payload (the Error it carries) are kept. OK stays OK.
absl::Status annotate(const absl::Status& status, std::string_view context);

}  // namespace trainkit

/// Returns from the calling function if `expression` is not OK.
#define TRAINKIT_RETURN_IF_ERROR(expression)                                                           \
  do {                                                                                                 \
    if (absl::Status trainkit_status_ = (expression); !trainkit_status_.ok()) return trainkit_status_; \
  } while (false)

#define TRAINKIT_CONCAT_INNER_(a, b) a##b
#define TRAINKIT_CONCAT_(a, b) TRAINKIT_CONCAT_INNER_(a, b)

/// TRAINKIT_ASSIGN_OR_RETURN(auto x, f()): the value of a StatusOr, or returns its Status.
#define TRAINKIT_ASSIGN_OR_RETURN(declaration, expression) \
  TRAINKIT_ASSIGN_OR_RETURN_(TRAINKIT_CONCAT_(trainkit_statusor_, __LINE__), declaration, expression)
#define TRAINKIT_ASSIGN_OR_RETURN_(statusor, declaration, expression) \
  auto statusor = (expression);                                       \
  if (!statusor.ok()) return std::move(statusor).status();            \
  declaration = std::move(statusor).value()
