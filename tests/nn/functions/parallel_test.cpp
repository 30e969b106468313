// Our kernels run on LibTorch's threads. The only test of its process, because the first parallel work starts the
// threads.
#include <algorithm>
#include <cmath>

#include "test_util.h"
#include "thread_count.h"
#include "trainkit/nn/functional.h"

using namespace trainkit;

TEST_CASE("A kernel divides its work among LibTorch's threads", "[nn][parallel]") {
#if defined(__SANITIZE_THREAD__)
  TRAINKIT_SKIP("ThreadSanitizer does not see OpenMP's synchronisation: kernels run on one thread");
#endif
  constexpr int64_t kRows = 512, kClasses = 1000;
  at::set_num_threads(2);  // which may start a thread of another pool
  const at::Tensor logits = at::empty({kRows, kClasses}), target = at::empty({kRows}, at::kLong);
  std::fill_n(logits.mutable_data_ptr<float>(), kRows * kClasses, 1.0f);
  std::fill_n(target.mutable_data_ptr<int64_t>(), kRows, 3);
  const auto before = test::thread_count();
  const at::NoGradGuard no_grad;
  const at::Tensor loss = cross_entropy(logits, target);
  CHECK(test::thread_count() > before);
  CHECK(loss.item<float>() == Approx(std::log(1000.0)));
}
