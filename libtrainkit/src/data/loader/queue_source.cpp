#include "trainkit/data/queue_source.h"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/option_problems.h"
#include "data/loader/stop_reason.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

class QueueSource::Impl {
 public:
  Impl(std::vector<FieldSpec> fields, const QueueSourceOptions& options)
      : options_(options), fields_(std::make_shared<const std::vector<FieldSpec>>(std::move(fields))) {}

  const std::vector<FieldSpec>& fields() const { return *fields_; }

  /// Returns false if the queue is full and `waits` is false.
  absl::StatusOr<bool> push(std::vector<at::Tensor> tensors, bool waits) {
    TRAINKIT_ASSIGN_OR_RETURN(Batch batch, make_batch(std::move(tensors)));
    std::unique_lock lock(mutex_);
    const auto has_place = [this] { return closed_ || !stopped_.get().ok() || waiting_.size() < capacity(); };
    if (!has_place() && !waits) return false;
    has_place_.wait(lock, has_place);
    TRAINKIT_RETURN_IF_ERROR(stopped_.get());
    if (closed_) return absl::FailedPreconditionError("the queue is closed");
    waiting_.push_back(std::move(batch));
    has_batch_.notify_one();
    return true;
  }

  absl::StatusOr<std::optional<Batch>> next() {
    std::unique_lock lock(mutex_);
    const auto is_due = [this] { return closed_ || !stopped_.get().ok() || !waiting_.empty(); };
    if (options_.timeout.count() == 0) {
      has_batch_.wait(lock, is_due);
    } else if (!has_batch_.wait_for(lock, options_.timeout, is_due)) {
      return to_status({.exit_code = ExitCode::kStalledWorker,
                        .id = "data.timeout",
                        .field = "timeout",
                        .problem = fmt::format("the queue was empty for {} ms", options_.timeout.count()),
                        .hint = "push batches faster, raise timeout, or call close() after the last batch"},
                       absl::StatusCode::kDeadlineExceeded);
    }
    TRAINKIT_RETURN_IF_ERROR(stopped_.get());
    if (waiting_.empty()) return std::nullopt;
    std::optional<Batch> batch = std::move(waiting_.front());
    waiting_.pop_front();
    ++taken_;
    has_place_.notify_one();
    return batch;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    has_batch_.notify_all();
    has_place_.notify_all();
  }

  void stop(absl::Status reason) {
    const std::lock_guard lock(mutex_);
    stopped_.set(std::move(reason));
    has_batch_.notify_all();
    has_place_.notify_all();
  }

  int64_t size() const {
    const std::lock_guard lock(mutex_);
    return std::ssize(waiting_);
  }

  StateDict state_dict() const {
    const std::lock_guard lock(mutex_);
    StateDict state = {{"taken", taken_}, {"waiting", std::ssize(waiting_)}};
    for (size_t i = 0; i < waiting_.size(); ++i) {
      for (size_t f = 0; f < fields_->size(); ++f) state[name_of(i, f)] = waiting_[i].tensors()[f];
    }
    return state;
  }

  absl::Status load_state_dict(const StateDict& state) {
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t taken, get_state<int64_t>(state, "taken"));
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t count, get_state<int64_t>(state, "waiting"));
    std::deque<Batch> saved;
    for (size_t i = 0; std::cmp_less(i, count); ++i) {
      std::vector<at::Tensor> tensors;
      for (size_t f = 0; f < fields_->size(); ++f) {
        TRAINKIT_ASSIGN_OR_RETURN(tensors.emplace_back(), get_state<at::Tensor>(state, name_of(i, f)));
      }
      TRAINKIT_ASSIGN_OR_RETURN(saved.emplace_back(), saved_batch(std::move(tensors)));
    }
    const std::lock_guard lock(mutex_);
    taken_ = taken;
    waiting_.insert(waiting_.begin(), std::make_move_iterator(saved.begin()), std::make_move_iterator(saved.end()));
    has_batch_.notify_all();
    return absl::OkStatus();
  }

 private:
  size_t capacity() const { return static_cast<size_t>(options_.capacity); }

  std::string name_of(size_t batch, size_t field) const {
    return fmt::format("batch.{}.{}", batch, (*fields_)[field].name);
  }

  absl::StatusOr<Batch> make_batch(std::vector<at::Tensor> tensors) const {
    try {
      return Batch(fields_, std::move(tensors));
    } catch (const c10::Error& error) {
      return to_status({.exit_code = ExitCode::kData,
                        .id = "data.queue",
                        .field = "QueueSource",
                        .problem = error.what_without_backtrace(),
                        .hint = "push one tensor per field, in the order of fields()"});
    }
  }

  absl::StatusOr<Batch> saved_batch(std::vector<at::Tensor> tensors) const {
    absl::StatusOr<Batch> batch = make_batch(std::move(tensors));
    if (batch.ok()) return batch;
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "ckpt.data",
                      .field = "QueueSource",
                      .problem = "the checkpoint has batches of other fields: " + error_of(batch.status())->problem},
                     absl::StatusCode::kInvalidArgument);
  }

  const QueueSourceOptions options_;
  const std::shared_ptr<const std::vector<FieldSpec>> fields_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable has_batch_, has_place_;
  std::deque<Batch> waiting_;
  int64_t taken_ = 0;
  bool closed_ = false;
  detail::StopReason stopped_;
};

absl::StatusOr<std::unique_ptr<QueueSource>> QueueSource::create(std::vector<FieldSpec> fields,
                                                                 const QueueSourceOptions& options) {
  detail::OptionProblems problems;
  problems.require(!fields.empty(), "there must be at least one field")
      .require(options.capacity >= 1, "capacity", ">= 1", options.capacity)
      .require(options.timeout.count() >= 0, "timeout", ">= 0 ms", options.timeout.count());
  if (!problems.empty()) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "data.options",
                      .field = "QueueSourceOptions",
                      .problem = problems.text()},
                     absl::StatusCode::kInvalidArgument);
  }
  return std::unique_ptr<QueueSource>(new QueueSource(std::make_unique<Impl>(std::move(fields), options)));
}

QueueSource::QueueSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
QueueSource::~QueueSource() = default;

absl::Status QueueSource::push(std::vector<at::Tensor> tensors) {
  return impl_->push(std::move(tensors), /*waits=*/true).status();
}
absl::StatusOr<bool> QueueSource::try_push(std::vector<at::Tensor> tensors) {
  return impl_->push(std::move(tensors), /*waits=*/false);
}
void QueueSource::close() { impl_->close(); }
int64_t QueueSource::size() const { return impl_->size(); }
absl::StatusOr<std::optional<Batch>> QueueSource::next() { return impl_->next(); }
const std::vector<FieldSpec>& QueueSource::fields() const { return impl_->fields(); }
void QueueSource::stop(absl::Status reason) { impl_->stop(std::move(reason)); }
StateDict QueueSource::state_dict() const { return impl_->state_dict(); }
absl::Status QueueSource::load_state_dict(const StateDict& state) { return impl_->load_state_dict(state); }

}  // namespace trainkit
