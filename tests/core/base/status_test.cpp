#include "trainkit/core/status.h"

#include <c10/util/Exception.h>

#include "core/base/device_error.h"
#include "test_util.h"
#include "trainkit/core/error.h"
#include "trainkit/core/state_dict.h"

using namespace trainkit;

namespace {

template <class F>
absl::Status caught(F&& f) {
  try {
    f();
  } catch (...) {
    return status_from_current_exception();
  }
  return absl::OkStatus();
}

}  // namespace

TEST_CASE("Each exception becomes a Status with the exit code of its error class", "[core][status]") {
  CHECK(caught([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "x"); }).code() == absl::StatusCode::kResourceExhausted);
  for (const char* text : {"CUDA error: out of memory\nand more", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling",
                           "DefaultCPUAllocator: can't allocate memory: you tried"}) {
    CHECK(caught([&] { TORCH_CHECK(false, text); }).code() == absl::StatusCode::kResourceExhausted);
  }
  CHECK(caught([] { throw std::bad_alloc(); }).code() == absl::StatusCode::kResourceExhausted);
  CHECK(caught([] { TORCH_CHECK_INDEX(false, "x"); }).code() == absl::StatusCode::kOutOfRange);
  CHECK(caught([] { TORCH_CHECK_VALUE(false, "x"); }).code() == absl::StatusCode::kInvalidArgument);
  CHECK(caught([] { TORCH_CHECK(false, "x"); }).code() == absl::StatusCode::kInternal);
  CHECK(caught([] { throw std::runtime_error("why"); }).message() == "why");
  CHECK(caught([] { throw 5; }).code() == absl::StatusCode::kInternal);
  CHECK(caught([] { torch::empty({int64_t{1} << 50}); }).code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("An error after which a GPU is unusable is reported as the device's, with its step", "[core][status]") {
  const auto thrown = [](int code, const std::string& text) {
    return caught([&] {
      throw c10::AcceleratorError({"f", "file", 1}, code, "CUDA error: " + text + "\nSearch for it");
    });
  };
  trainkit::detail::note_step("cuda:2", 17);
  const absl::Status failed = thrown(700, "an illegal memory access was encountered");
  CHECK(exit_code(failed) == ExitCode::kDevice);
  CHECK(error_line(failed) ==
        "error[device.failed] cuda:2: an illegal memory access was encountered, noticed at step 17");
  CHECK_THAT(error_of(failed)->hint, Catch::Contains("checkpoint"));
  CHECK_THAT(error_of(thrown(710, "device-side assert triggered"))->hint, Catch::Contains("out of range"));
  CHECK(thrown(2, "out of memory").code() == absl::StatusCode::kResourceExhausted);
  CHECK(exit_code(thrown(1, "invalid argument")) == ExitCode::kBug);  // the device still works
}

TEST_CASE("A C++ backtrace never appears in the message", "[core][status]") {
  const absl::Status status = caught([] { TORCH_CHECK(false, "short text"); });
  CHECK(status.message().find("short text") != absl::string_view::npos);
  CHECK(status.message().find("frame #") == absl::string_view::npos);
}

TEST_CASE("annotate adds context and keeps the original error", "[core][status]") {
  const absl::Status inner = to_status({.exit_code = ExitCode::kData, .id = "data.row", .problem = "bad"});
  const absl::Status outer = annotate(inner, "epoch 3");
  CHECK(std::string(outer.message()).starts_with("epoch 3: "));
  CHECK(error_of(outer)->id == "data.row");
  CHECK(annotate(absl::OkStatus(), "x").ok());
}

TEST_CASE("State dictionaries nest by prefix and report missing entries and wrong types by name",
          "[core][state_dict]") {
  StateDict whole;
  merge_state(whole, "optimizer", {{"lr", 0.5}, {"step", int64_t{3}}});
  whole["optimizer_other"] = true;
  const StateDict part = sub_state(whole, "optimizer");
  CHECK(part.size() == 2);
  CHECK(get_state<double>(part, "lr").value() == 0.5);
  CHECK(get_state<double>(part, "none").status().code() == absl::StatusCode::kNotFound);
  const absl::Status wrong = get_state<double>(part, "step").status();
  CHECK(wrong.code() == absl::StatusCode::kInvalidArgument);
  CHECK(exit_code(wrong) == ExitCode::kWeights);
  CHECK(error_of(wrong)->field == "step");
}
