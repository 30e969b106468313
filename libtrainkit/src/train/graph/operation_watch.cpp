#include "train/graph/operation_watch.h"

#include <exception>
#include <utility>

namespace trainkit::detail {
namespace {

// Note [Lifetime of observers]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A thread-local RecordFunction callback is a plain function pointer and can own nothing. The observer travels in
// ThreadLocalDebugInfo, a shared_ptr that LibTorch copies into autograd's threads with the rest of the thread-local
// state. Such a thread keeps the observer alive for as long as it runs callbacks, even if the watch has ended meanwhile
// because backward() threw. A raw pointer or a global variable would be a use after free there.

/// LibTorch 2.11 offers no kinds for user code; these two are reserved for its own tests.
c10::DebugInfoKind kind_of(WatchPurpose purpose) {
  return purpose == WatchPurpose::kCount ? c10::DebugInfoKind::TEST_INFO : c10::DebugInfoKind::TEST_INFO_2;
}

template <WatchPurpose kPurpose>
void call(void (OperationObserver::*method)(const at::RecordFunction&), const at::RecordFunction& operation) {
  auto* observer = static_cast<OperationObserver*>(c10::ThreadLocalDebugInfo::get(kind_of(kPurpose)));
  if (!observer) return;
  try {
    (observer->*method)(operation);
  } catch (const std::exception&) {
    observer->failed();
  }
}

template <WatchPurpose kPurpose>
at::RecordFunctionCallback callback() {
  return at::RecordFunctionCallback(
             [](const at::RecordFunction& operation) -> std::unique_ptr<at::ObserverContext> {
               call<kPurpose>(&OperationObserver::begin, operation);
               return nullptr;
             },
             [](const at::RecordFunction& operation, at::ObserverContext*) {
               call<kPurpose>(&OperationObserver::end, operation);
             })
      .needsInputs(true)
      .scopes({at::RecordScope::FUNCTION});
}

}  // namespace

OperationWatch::OperationWatch(WatchPurpose purpose, std::shared_ptr<OperationObserver> observer)
    : observer_(kind_of(purpose), std::move(observer)),
      handle_(at::addThreadLocalCallback(purpose == WatchPurpose::kCount ? callback<WatchPurpose::kCount>()
                                                                         : callback<WatchPurpose::kTrace>())) {}

}  // namespace trainkit::detail
