#include "trainkit/core/status.h"

#include <c10/util/Exception.h>

#include <new>
#include <stdexcept>
#include <string>

#include "core/base/device_error.h"

namespace trainkit {
namespace {

absl::Status from_c10(absl::StatusCode code, const c10::Error& error) {
  return absl::Status(code, error.what_without_backtrace());
}

/// Returns whether a plain c10::Error reports a failed allocation: of the default CPU allocator, or of CUDA's runtime,
/// cuBLAS or cuDNN outside LibTorch's allocator (a handle, a workspace, kernel code).
bool is_out_of_memory(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  const auto says = [&](std::string_view words) { return text.find(words) != std::string_view::npos; };
  return says("DefaultCPUAllocator: can't allocate memory") || says("CUDA error: out of memory") ||
         says("CUBLAS_STATUS_ALLOC_FAILED") || says("CUDNN_STATUS_ALLOC_FAILED");
}

}  // namespace

absl::Status status_from_exception(std::exception_ptr exception) {
  if (!exception) return absl::OkStatus();
  try {
    std::rethrow_exception(exception);
  } catch (const absl::BadStatusOrAccess& error) {
    return error.status();
  } catch (const c10::OutOfMemoryError& error) {
    return from_c10(absl::StatusCode::kResourceExhausted, error);
  } catch (const c10::DistError& error) {
    return from_c10(absl::StatusCode::kUnavailable, error);
  } catch (const c10::IndexError& error) {
    return from_c10(absl::StatusCode::kOutOfRange, error);
  } catch (const c10::ValueError& error) {
    return from_c10(absl::StatusCode::kInvalidArgument, error);
  } catch (const c10::TypeError& error) {
    return from_c10(absl::StatusCode::kInvalidArgument, error);
  } catch (const c10::AcceleratorError& error) {
    if (const auto failure = detail::device_failure(error)) return *failure;
    return from_c10(is_out_of_memory(error) ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                    error);
  } catch (const c10::Error& error) {
    return from_c10(is_out_of_memory(error) ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                    error);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of host memory");
  } catch (const std::out_of_range& error) {
    return absl::OutOfRangeError(error.what());
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  } catch (...) {
    return absl::InternalError("an exception of unknown type");
  }
}

absl::Status status_from_current_exception() { return status_from_exception(std::current_exception()); }

absl::Status annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), std::string(context) + ": " + std::string(status.message()));
  status.ForEachPayload([&](auto url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

}  // namespace trainkit
