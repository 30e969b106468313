#include "trainkit/logging/logger.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "core/machine/block_signals.h"
#include "logging/media.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/monitor/monitor.h"

namespace trainkit {

const double* LogRecord::find(std::string_view name) const {
  for (const auto& [key, value] : values) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Logger::begin(const RunPlan&) {}
void Logger::log_text(const LogText&) {}
void Logger::log_image(const LogImage&) {}
void Logger::log_histogram(const LogHistogram&) {}
void Logger::print(std::string_view) {}
void Logger::show_row(std::string_view row) { print(row); }
void Logger::log_monitor(const MonitorReport&) {}
void Logger::tick(int64_t) {}
absl::Status Logger::rewind(int64_t) { return absl::OkStatus(); }
absl::Status Logger::close() { return flush(); }
bool Logger::optional() const { return false; }

namespace {

// Note [Log writer]
//
// The training thread calls push(), which copies an event into a slot of a ring under queue_mutex_. The writer thread
// wakes up every drain_every, or when the ring is half full, and passes the events to the sinks.
//   Locks: sinks_mutex_ protects the sinks and current_, queue_mutex_ the ring. A thread that needs both takes
//   sinks_mutex_ first. push() takes only queue_mutex_, and no sink runs under it, so a slow sink never blocks a step.
//   Memory: drain() swaps a slot with current_, and push() assigns into the old one. The strings and vectors keep their
//   capacity, so logging does not allocate after warm-up.
//   System calls: push() notifies the writer only when the ring becomes half full, once per filling.
//   A full ring: training records follow `when_full`; for all other events the ring doubles.
//   Order: flush(), rewind(), begin() and add() drain the queue under sinks_mutex_ first, so they apply after every
//   event logged before them. add() drains before it adds the sink, which therefore misses the earlier events.
//   Errors: call() catches exceptions of sinks and reports the first error of each sink as a warning on the others.
// stop() sets stopped_ under queue_mutex_, joins the writer, and only then drains the rest and closes the sinks.

/// A queued event.
struct Event {
  enum class Kind { kRecord, kText, kImage, kHistogram, kLine, kRow, kMonitor } kind = Kind::kRecord;
  LogRecord record = {};
  LogText text = {};  // a line or a row is stored as a text without a tag
  std::shared_ptr<LogImage> image = nullptr;
  std::shared_ptr<const LogHistogram> histogram = nullptr;
  std::shared_ptr<const MonitorReport> monitor = nullptr;
};

/// Compresses a picture once for all sinks. If that fails, each of them tries, and reports the error.
void compress(LogImage& image) {
  try {
    image.png = detail::png_of(image);
  } catch (...) {
    image.png.clear();
  }
}

}  // namespace

class RunLogger::Impl {
 public:
  explicit Impl(RunLoggerOptions options) : options_(options), ring_(options.queue_capacity) {
    const detail::BlockSignals block;
    thread_ = std::thread([this] { write_until_stopped(); });
  }

  ~Impl() { stop(); }

  void add(std::unique_ptr<Logger> sink) {
    std::lock_guard lock(sinks_mutex_);
    drain();  // earlier events are not for the new sink
    sinks_.push_back({.logger = std::move(sink)});
  }

  /// Queues an event: `fill` writes it into a slot. See Note [Log writer].
  template <class Fill>
  void push(bool droppable, Fill fill) {
    bool wake = false;
    {
      std::unique_lock lock(queue_mutex_);
      if (stopped_) return;
      if (size_ == ring_.size() && !make_room(lock, droppable)) return;
      fill(ring_[(head_ + size_) % ring_.size()]);
      ++size_;
      wake = size_ == ring_.size() / 2;  // once per filling; otherwise the writer wakes up by itself
    }
    if (wake) wake_writer_.notify_one();
  }

  void begin(const RunPlan& plan) {
    std::lock_guard lock(sinks_mutex_);
    drain();
    for (Sink& sink : sinks_) call(sink, [&](Logger& logger) { return logger.begin(plan), absl::OkStatus(); });
  }

  void tick(int64_t step) { step_.store(step, std::memory_order_relaxed); }

  absl::Status flush() {
    std::lock_guard lock(sinks_mutex_);
    drain();
    for (Sink& sink : sinks_) call(sink, [](Logger& logger) { return logger.flush(); });
    report_dropped();
    return std::exchange(unreported_, absl::OkStatus());
  }

  absl::Status rewind(int64_t step) {
    std::lock_guard lock(sinks_mutex_);
    drain();
    for (Sink& sink : sinks_) call(sink, [step](Logger& logger) { return logger.rewind(step); });
    return std::exchange(unreported_, absl::OkStatus());
  }

  absl::Status close() {
    stop();
    std::lock_guard lock(sinks_mutex_);
    return first_;
  }

  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Sink {
    std::unique_ptr<Logger> logger;
    bool failed = false;
  };

  /// Handles a full ring: drops, waits or grows. Returns false if the event must be dropped.
  bool make_room(std::unique_lock<std::mutex>& lock, bool droppable) {
    if (!droppable) {
      std::vector<Event> larger(ring_.size() * 2);
      for (size_t i = 0; i < size_; ++i) std::swap(larger[i], ring_[(head_ + i) % ring_.size()]);
      ring_.swap(larger);
      head_ = 0;
      return true;
    }
    if (options_.when_full == WhenFull::kDrop) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    wake_writer_.notify_one();
    room_.wait(lock, [this] { return size_ < ring_.size() || stopped_; });
    return !stopped_;
  }

  void write_until_stopped() {
    int64_t shown_step = -1;
    auto flushed = std::chrono::steady_clock::now();
    for (;;) {
      {
        std::unique_lock lock(queue_mutex_);
        wake_writer_.wait_for(lock, options_.drain_every, [this] { return stopped_ || size_ >= ring_.size() / 2; });
        if (stopped_) return;  // stop() drains the queue
      }
      std::lock_guard lock(sinks_mutex_);
      drain();
      const int64_t step = step_.load(std::memory_order_relaxed);
      if (std::exchange(shown_step, step) != step) {
        for (Sink& sink : sinks_) call(sink, [step](Logger& logger) { return logger.tick(step), absl::OkStatus(); });
      }
      if (const auto now = std::chrono::steady_clock::now(); now - flushed >= options_.flush_every) {
        flushed = now;
        for (Sink& sink : sinks_) call(sink, [](Logger& logger) { return logger.flush(); });
        report_dropped();
      }
    }
  }

  /// Passes every queued event to every sink. Requires sinks_mutex_.
  void drain() {
    for (;;) {
      {
        std::lock_guard lock(queue_mutex_);
        if (size_ == 0) return;
        std::swap(current_, ring_[head_]);
        head_ = (head_ + 1) % ring_.size();
        --size_;
      }
      if (options_.when_full == WhenFull::kWait) room_.notify_all();
      const bool is_image = current_.kind == Event::Kind::kImage;
      if (is_image) compress(*current_.image);
      for (Sink& sink : sinks_) call(sink, [this](Logger& logger) { return deliver(logger), absl::OkStatus(); });
      if (is_image) current_.image.reset();
    }
  }

  void deliver(Logger& logger) const {
    switch (current_.kind) {
      case Event::Kind::kRecord:
        return logger.log(current_.record);
      case Event::Kind::kText:
        return logger.log_text(current_.text);
      case Event::Kind::kImage:
        return logger.log_image(*current_.image);
      case Event::Kind::kHistogram:
        return logger.log_histogram(*current_.histogram);
      case Event::Kind::kLine:
        return logger.print(current_.text.text);
      case Event::Kind::kRow:
        return logger.show_row(current_.text.text);
      case Event::Kind::kMonitor:
        return logger.log_monitor(*current_.monitor);
    }
  }

  /// Calls a sink and records its error, whether thrown or returned.
  template <class Call>
  void call(Sink& sink, Call function) {
    absl::Status status;
    try {
      status = function(*sink.logger);
    } catch (...) {
      status = status_from_current_exception();
    }
    if (!status.ok() && !std::exchange(sink.failed, true)) fail(status, sink.logger->optional());
  }

  void fail(const absl::Status& status, bool optional) {
    for (Sink& sink : sinks_) {
      if (!sink.failed)
        call(sink, [&](Logger& logger) { return logger.print("warning: " + error_line(status)), absl::OkStatus(); });
    }
    if (optional) return;
    first_.Update(status);
    unreported_.Update(status);
  }

  void report_dropped() {
    const int64_t lost = dropped();
    if (lost == 0 || std::exchange(drop_reported_, true)) return;
    fail(to_status({.exit_code = ExitCode::kStorage,
                    .id = "log.slow",
                    .problem = "the log writer is slower than training",
                    .got = std::to_string(lost) + " records lost",
                    .hint = "log less often (--log_every), or write to a faster disk (--output_dir)"}),
         /*optional=*/true);
  }

  void stop() {
    {
      std::lock_guard lock(queue_mutex_);
      if (std::exchange(stopped_, true)) return;
    }
    wake_writer_.notify_all();
    room_.notify_all();
    if (thread_.joinable()) thread_.join();
    std::lock_guard lock(sinks_mutex_);
    drain();
    report_dropped();
    for (Sink& sink : sinks_) call(sink, [](Logger& logger) { return logger.close(); });
    sinks_.clear();
  }

  const RunLoggerOptions options_;

  std::mutex queue_mutex_;  // taken after sinks_mutex_, see Note [Log writer]
  std::condition_variable wake_writer_, room_;
  std::vector<Event> ring_;
  size_t head_ = 0;
  size_t size_ = 0;
  bool stopped_ = false;
  std::atomic<int64_t> dropped_{0};
  std::atomic<int64_t> step_{-1};

  std::mutex sinks_mutex_;
  std::vector<Sink> sinks_;
  Event current_;
  absl::Status first_, unreported_;
  bool drop_reported_ = false;

  std::thread thread_;
};

RunLogger::RunLogger(RunLoggerOptions options) {
  TORCH_CHECK_VALUE(options.queue_capacity >= 2, "queue_capacity must be >= 2, got ", options.queue_capacity);
  TORCH_CHECK_VALUE(options.drain_every.count() > 0, "drain_every must be > 0, got ", options.drain_every.count(),
                    " ms");
  TORCH_CHECK_VALUE(options.flush_every.count() > 0, "flush_every must be > 0, got ", options.flush_every.count(),
                    " ms");
  impl_ = std::make_unique<Impl>(options);
}

RunLogger::~RunLogger() = default;

void RunLogger::add(std::unique_ptr<Logger> sink) { impl_->add(std::move(sink)); }

void RunLogger::begin(const RunPlan& plan) { impl_->begin(plan); }

void RunLogger::log(const LogRecord& record) {
  impl_->push(record.split == "train", [&](Event& event) {
    event.kind = Event::Kind::kRecord;
    event.record = record;
  });
}

void RunLogger::log_text(const LogText& text) {
  impl_->push(false, [&](Event& event) {
    event.kind = Event::Kind::kText;
    event.text = text;
  });
}

void RunLogger::log_image(const LogImage& image) {
  auto copy = std::make_shared<LogImage>(image);
  impl_->push(false, [&](Event& event) {
    event.kind = Event::Kind::kImage;
    event.image = std::move(copy);
  });
}

void RunLogger::log_histogram(const LogHistogram& histogram) {
  auto copy = std::make_shared<const LogHistogram>(histogram);
  impl_->push(false, [&](Event& event) {
    event.kind = Event::Kind::kHistogram;
    event.histogram = std::move(copy);
  });
}

void RunLogger::print(std::string_view line) {
  impl_->push(false, [&](Event& event) {
    event.kind = Event::Kind::kLine;
    event.text.text = line;
  });
}

void RunLogger::show_row(std::string_view row) {
  impl_->push(false, [&](Event& event) {
    event.kind = Event::Kind::kRow;
    event.text.text = row;
  });
}

void RunLogger::log_monitor(const MonitorReport& report) {
  impl_->push(false, [&](Event& event) {
    event.kind = Event::Kind::kMonitor;
    event.monitor = std::make_shared<const MonitorReport>(report);
  });
}

void RunLogger::tick(int64_t step) { impl_->tick(step); }
absl::Status RunLogger::flush() { return impl_->flush(); }
absl::Status RunLogger::rewind(int64_t step) { return impl_->rewind(step); }
absl::Status RunLogger::close() { return impl_->close(); }
int64_t RunLogger::dropped() const { return impl_->dropped(); }

}  // namespace trainkit
