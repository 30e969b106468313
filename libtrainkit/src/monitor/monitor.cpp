#include "trainkit/monitor/monitor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/machine/block_signals.h"
#include "core/machine/host_memory.h"
#include "monitor/monitor_series.h"
#include "trainkit/core/processors.h"

namespace trainkit {
namespace {

constexpr int kSamplesPerWindow = 4;
constexpr int kRowsPerHeading = 20;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

// Note [Monitor threads]
//
// watch() runs in its own thread and samples kSamplesPerWindow times per window. The training thread also adds samples,
// in begin() and stop().
//   Counters of the loader and the step are read before mutex_ is taken, so that no thread waits for a sample. A sample
//   may therefore be older than one already added; MonitorSeries::add ignores it.
//   mutex_ guards the series and the other results. stop_mutex_ guards only stopping_, so that end() can wake the
//   thread at once.
//   has_rows_ lets the training thread skip take_rows() without a lock in almost every step.
//   The thread opens the driver's library itself, so that the constructor does not wait for it.

class Monitor::Impl {
 public:
  /// What provides the batches. `readers` may be null.
  struct Batches {
    std::function<PrefetcherStats()> stats;
    std::function<ReaderTimes()> readers;
  };

  Impl(Batches batches, const LoaderSettings& settings, MonitorSources sources, const MonitorOptions& options)
      : batches_(std::move(batches)),
        sources_(std::move(sources)),
        options_(options),
        series_(settings, std::chrono::duration<double>(options.window).count()),
        recorded_(read_counters()) {
    add(recorded_);
    const detail::BlockSignals block;
    thread_ = std::thread([this] { watch(); });
  }
  ~Impl() { end(); }

  void pause() {
    const std::lock_guard lock(mutex_);
    series_.pause(now());
  }

  void resume() {
    const std::lock_guard lock(mutex_);
    series_.resume(now());
  }

  void begin() { add(read_counters()); }

  void append_values(std::vector<std::pair<std::string, double>>& values) {
    const double time = now();
    const PrefetcherStats loader = batches_.stats();
    const StepTimes steps = sources_.step_times ? sources_.step_times() : StepTimes{};
    const std::lock_guard lock(mutex_);
    const double training_time = series_.training_time(time);
    const PrefetcherStats passed = difference(loader, recorded_.loader);
    const StepSplit split = split_of(training_time - recorded_.seconds, passed, difference(steps, recorded_.steps));
    values.emplace_back("utilisation", gpu_utilisation_ >= 0 ? gpu_utilisation_ : 1 - split.wait);
    values.emplace_back("data_wait_fraction", split.wait);
    values.emplace_back("copy_fraction", split.copy);
    values.emplace_back("compute_fraction", split.compute);
    values.emplace_back("reduce_fraction", split.reduce);
    if (passed.batches > 0) {
      values.emplace_back("queue_depth",
                          static_cast<double>(passed.ready_batches) / static_cast<double>(passed.batches));
    }
    if (resident_bytes_ > 0) values.emplace_back("host_memory_bytes", static_cast<double>(resident_bytes_));
    append_processor_values(values);
    recorded_.seconds = training_time;
    recorded_.loader = loader;
    recorded_.steps = steps;
  }

  std::vector<double> gpu_utilisation() const {
    const std::lock_guard lock(mutex_);
    return series_.of_each_gpu();
  }

  std::vector<std::string> take_rows() {
    if (!has_rows_.load(std::memory_order_relaxed)) return {};
    const std::lock_guard lock(mutex_);
    has_rows_.store(false, std::memory_order_relaxed);
    return std::exchange(rows_, {});
  }

  MonitorReport report() const {
    const std::lock_guard lock(mutex_);
    return series_.report();
  }

  MonitorReport stop() {
    end();
    add(read_counters());
    return report();
  }

 private:
  /// Appends how busy the processors were since the last call, up to the last sample. Nothing without a new sample.
  void append_processor_values(std::vector<std::pair<std::string, double>>& values) {
    const ProcessorTimes passed = difference(processors_, recorded_.processors);
    if (passed.all <= 0) return;
    recorded_.processors = processors_;
    const double wanted = passed.used + std::max(passed.waited, 0.0);
    if (wanted > 0) values.emplace_back("processor_wait_fraction", 1 - passed.used / wanted);
    values.emplace_back("other_processes_fraction", std::clamp(passed.others / passed.all, 0.0, 1.0));
    if (processors_.stolen > 0) {  // a virtual machine
      values.emplace_back("stolen_fraction", std::clamp(passed.stolen / passed.all, 0.0, 1.0));
    }
  }

  /// Takes the part of a sample that any thread may read.
  MonitorSample read_counters() const {
    MonitorSample sample;
    sample.seconds = now();
    sample.loader = batches_.stats();
    if (batches_.readers) sample.readers = batches_.readers();
    if (sources_.step_times) sample.steps = sources_.step_times();
    sample.processors = processor_times();
    return sample;
  }

  void add(const MonitorSample& sample) {
    const std::lock_guard lock(mutex_);
    if (sample.resident_bytes > 0) resident_bytes_ = sample.resident_bytes;
    if (sample.processors.all > processors_.all) processors_ = sample.processors;
    if (!series_.add(sample)) return;
    if (series_.of_gpus()) gpu_utilisation_ = series_.windows().back();
    if (options_.table_every > 0 && closed_++ % options_.table_every == 0) {
      if (shown_++ % kRowsPerHeading == 0) rows_.push_back(MonitorSeries::table_heading());
      rows_.push_back(series_.table_row());
      has_rows_.store(true, std::memory_order_relaxed);
    }
  }

  void watch() {
    std::optional<ResourceMonitor> driver;
    if (!sources_.cuda_devices.empty()) driver.emplace(DriverLibraries{options_.nvml, options_.cuda});
    std::unique_lock lock(stop_mutex_);
    for (int64_t i = 0; !stopping_; ++i) {
      lock.unlock();
      MonitorSample sample = read_counters();
      sample.host = i % kSamplesPerWindow == 0 ? host_memory() : HostMemory{};
      sample.resident_bytes = ResourceMonitor::resident_bytes();
      if (driver) sample.gpus = driver->gpus_of(sources_.cuda_devices);
      if (driver && sources_.allocators) sample.allocators = sources_.allocators();
      add(sample);
      lock.lock();
      stop_.wait_for(lock, options_.window / kSamplesPerWindow, [this] { return stopping_; });
    }
  }

  void end() {
    {
      const std::lock_guard lock(stop_mutex_);
      stopping_ = true;
    }
    stop_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  const Batches batches_;
  const MonitorSources sources_;
  const MonitorOptions options_;

  mutable std::mutex mutex_;
  MonitorSeries series_;       // guarded by mutex_, as the members up to rows_
  MonitorSample recorded_;     // sample of the last append_values; seconds is training time
  ProcessorTimes processors_;  // of the last sample
  double gpu_utilisation_ = -1;
  int64_t resident_bytes_ = 0;
  int64_t closed_ = 0, shown_ = 0;
  std::vector<std::string> rows_;
  std::atomic<bool> has_rows_{false};

  std::mutex stop_mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by stop_mutex_
  std::thread thread_;
};

namespace {

int cpus_of(const MonitorOptions& options) { return options.cpus > 0 ? options.cpus : available_cpus(); }

}  // namespace

Monitor::Monitor(const Prefetcher& loader, MonitorSources sources, const MonitorOptions& options)
    : impl_(std::make_unique<Impl>(
          Impl::Batches{[&loader] { return loader.stats(); }, [&loader] { return loader.reader_times(); }},
          settings_of(loader, !sources.cuda_devices.empty(), cpus_of(options)), std::move(sources), options)) {}
Monitor::Monitor(std::function<PrefetcherStats()> waits, MonitorSources sources, const MonitorOptions& options)
    : impl_(std::make_unique<Impl>(Impl::Batches{std::move(waits), nullptr},
                                   settings_without_loader(!sources.cuda_devices.empty(), cpus_of(options)),
                                   std::move(sources), options)) {}
Monitor::~Monitor() = default;

void Monitor::pause() { impl_->pause(); }
void Monitor::resume() { impl_->resume(); }
void Monitor::begin() { impl_->begin(); }
void Monitor::append_values(std::vector<std::pair<std::string, double>>& values) { impl_->append_values(values); }
std::vector<double> Monitor::gpu_utilisation() const { return impl_->gpu_utilisation(); }
std::vector<std::string> Monitor::take_rows() { return impl_->take_rows(); }
MonitorReport Monitor::report() const { return impl_->report(); }
MonitorReport Monitor::stop() { return impl_->stop(); }

}  // namespace trainkit
