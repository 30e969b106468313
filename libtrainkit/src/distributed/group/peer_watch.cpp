#include "distributed/group/peer_watch.h"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

namespace trainkit::detail {

PeerWatch::PeerWatch(c10::intrusive_ptr<c10d::Backend> gloo, int64_t next) : gloo_(std::move(gloo)) {
  std::vector<at::Tensor> never{at::zeros({1})};
  receive_ = gloo_->recv(never, static_cast<int>(next), /*tag=*/0);
  thread_ = std::thread([this] {
    try {
      receive_->wait(std::chrono::hours(24 * 365));
    } catch (const std::exception&) {
      has_ended_ = true;
    }
  });
}

PeerWatch::~PeerWatch() {
  receive_->abort();
  thread_.join();
}

}  // namespace trainkit::detail
