#include "operation_watch.h"

#include <exception>
#include <utility>

namespace trainkit::detail {
namespace {

using c10::DebugInfoKind;

// LibTorch has no kinds for others. These two are for its own tests.
constexpr DebugInfoKind kCount = DebugInfoKind::TEST_INFO, kTrace = DebugInfoKind::TEST_INFO_2;

template <DebugInfoKind kKind>
void call(void (OperationObserver::*at_place)(const at::RecordFunction&), const at::RecordFunction& operation) {
  auto* observer = static_cast<OperationObserver*>(c10::ThreadLocalDebugInfo::get(kKind));
  if (!observer) return;
  try {
    (observer->*at_place)(operation);
  } catch (const std::exception&) {
    observer->failed();
  }
}

template <DebugInfoKind kKind>
at::RecordFunctionCallback callback() {
  return at::RecordFunctionCallback(
             [](const at::RecordFunction& operation) -> std::unique_ptr<at::ObserverContext> {
               call<kKind>(&OperationObserver::begin, operation);
               return nullptr;
             },
             [](const at::RecordFunction& operation, at::ObserverContext*) {
               call<kKind>(&OperationObserver::end, operation);
             })
      .needsInputs(true)
      .scopes({at::RecordScope::FUNCTION});
}

}  // namespace

OperationWatch::OperationWatch(WatchPurpose purpose, std::shared_ptr<OperationObserver> observer)
    : observer_(purpose == WatchPurpose::kCount ? kCount : kTrace, std::move(observer)),
      handle_(at::addThreadLocalCallback(purpose == WatchPurpose::kCount ? callback<kCount>() : callback<kTrace>())) {}

}  // namespace trainkit::detail
