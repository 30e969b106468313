#include "feed.h"

#include "made.h"
#include "model.h"
#include "trainkit/core/state_dict.h"

namespace trainkit::differential {

Feed::Feed(const Spec& spec, int64_t batch_size, int64_t rank, int64_t ranks) {
  if (spec.source == "drawn") {
    // One more than the run takes, with which it learns that it has ended.
    for (int64_t k = 0; k <= spec.steps * spec.accumulate; ++k) batches_.push_back(replay_batch(spec, k));
    return;
  }
  const auto loader = make_loader(spec, batch_size, rank, ranks);
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(loader->fields());
  constexpr int64_t kMore = 3;  // batches that the run does not take
  while (std::ssize(batches_) < spec.steps * spec.accumulate + kMore) {
    const auto batch = loader->next().value();
    if (!batch) continue;  // the end of an epoch
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : batch->tensors()) copies.push_back(tensor.clone());
    batches_.emplace_back(fields, std::move(copies));
  }
  if (spec.source == "queue") queue_ = QueueSource::create(*fields, {.capacity = 2}).value();
}

Feed::~Feed() {
  if (!queue_) return;
  queue_->stop(absl::CancelledError("the run has ended"));
  if (host_.joinable()) host_.join();
}

void Feed::start() {
  if (!queue_) return;
  const int64_t first = get_state<int64_t>(queue_->state_dict(), "taken").value() + queue_->size();
  host_ = std::thread([this, first] {
    for (size_t i = static_cast<size_t>(first); i < batches_.size(); ++i) {
      if (!queue_->push(batches_[i].tensors()).ok()) return;
    }
    queue_->close();
  });
}

}  // namespace trainkit::differential
