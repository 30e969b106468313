#include "monitor/diagnosis.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trainkit/core/format.h"

namespace trainkit {
namespace {

constexpr double kMinShare = 0.05, kBusy = 0.8, kBlocked = 0.5, kSaturated = 0.7, kLeastGpuWindows = 5;
constexpr double kMuchUpdate = 0.4, kMuchReduction = 0.3;
constexpr double kLowMemory = 0.05, kNearTimeout = 0.5;
constexpr double kMuchStolen = 0.1, kWantsProcessor = 0.5;
constexpr int64_t kFewBatches = 10;
constexpr int kMaxPrefetchFactor = 64;

/// The measurements and the values derived from them.
struct Measurements {
  const Observation& seen;
  const LoaderSettings& settings;
  StepSplit split = split_of(seen.seconds, seen.loader, seen.steps);
  int workers = settings.num_workers;
  int cpus = std::max(settings.cpus, 1);

  bool waits() const { return split.wait >= kMinShare; }
  bool readers_busy() const { return seen.loader.read_seconds >= kBusy * workers * seen.seconds; }
  /// Share of the readers' time in which they were blocked: neither on a CPU nor queueing for one.
  double blocked() const {
    const double read = std::max(seen.loader.read_seconds, 1e-9);
    return 1 - (seen.readers.cpu_seconds + seen.readers.queued_seconds) / read;
  }
  /// Number of readers that can keep up with the steps if all reads take `seconds` in total.
  int readers_for(double seconds, int most) const {
    const double step_seconds = std::max((1 - split.wait) * seen.seconds, 0.01 * seen.seconds);
    return static_cast<int>(std::clamp<double>(std::ceil(seconds / step_seconds), 1, most));
  }
  /// Formats "data wait 43%: the 2 readers are".
  std::string readers() const {
    return fmt::format("data wait {:.0f}%: {}", 100 * split.wait,
                       workers == 1 ? "the reader is" : fmt::format("the {} readers are", workers));
  }
  std::string raise_workers(int to) const { return fmt::format("raise --num_workers from {} to {}", workers, to); }
};

std::optional<Advice> memory_advice(const Measurements& c) {
  const auto short_of = [](int64_t free, int64_t total) {
    return total > 0 && static_cast<double>(free) < kLowMemory * static_cast<double>(total);
  };
  if (const auto& gpu = c.seen.gpu; gpu && (gpu->retries > 0 || short_of(gpu->free_bytes, gpu->total_bytes))) {
    const int64_t less = std::max<int64_t>(c.settings.batch_size / 2, 1);
    return Advice{Bottleneck::kMemory, "--batch_size",
                  fmt::format("low memory: {} of {} free on a GPU{}; lower --batch_size from {} to {} (and double "
                              "--grad_accum_steps)",
                              format_size(gpu->free_bytes), format_size(gpu->total_bytes),
                              gpu->retries > 0 ? fmt::format(", {} allocation retries", gpu->retries) : "",
                              c.settings.batch_size, less)};
  }
  const HostMemory& host = c.seen.host;
  if (!short_of(host.available_bytes, host.total_bytes)) return std::nullopt;
  const std::string what = fmt::format("low memory: {} of {} free on the host; ", format_size(host.available_bytes),
                                       format_size(host.total_bytes));
  if (c.workers > 1) {
    return Advice{Bottleneck::kMemory, "--num_workers",
                  what + fmt::format("lower --num_workers from {} to {}, or --batch_size", c.workers, c.workers / 2)};
  }
  return Advice{Bottleneck::kMemory, "--batch_size",
                what + fmt::format("lower --batch_size from {} to {}", c.settings.batch_size,
                                   std::max<int64_t>(c.settings.batch_size / 2, 1))};
}

/// Other processes, or the host of a virtual machine, take the processors that the threads of this one could use.
std::optional<Advice> busy_machine_advice(const Measurements& c) {
  const ProcessorTimes& times = c.seen.processors;
  const double waited = times.waited / std::max(times.used + times.waited, 1e-9);
  const double others = (times.others + times.stolen) / std::max(times.all, 1e-9);
  const bool is_host = times.stolen > times.others;
  const bool wants = times.used + times.waited >= kWantsProcessor * c.seen.seconds;
  if (!wants || waited < kMuchStolen || others < kMuchStolen) return std::nullopt;
  const int fewer = std::clamp(static_cast<int>(std::floor(c.cpus * (1 - others))), 1, std::max(c.settings.threads, 1));
  const bool can_lower = fewer < c.settings.threads;
  return Advice{
      Bottleneck::kBusyMachine, can_lower ? "--threads" : "",
      fmt::format("{} {:.0f}% of the processors, and threads of this one waited {:.0f}% of their time for a processor; "
                  "{}{}",
                  is_host ? "the host of this virtual machine takes" : "other processes use", 100 * others,
                  100 * waited,
                  can_lower ? fmt::format("lower --threads from {} to {}, ", c.settings.threads, fewer) : "",
                  is_host ? "or use a machine with processors of its own"
                          : "stop the others, or reserve processors with taskset")};
}

std::optional<Advice> timeout_advice(const Measurements& c) {
  const double limit = c.settings.timeout_seconds, longest = c.seen.loader.longest_wait_seconds;
  if (limit <= 0 || longest < kNearTimeout * limit) return std::nullopt;
  return Advice{Bottleneck::kTimeout, "--timeout",
                fmt::format("a wait for data took {:.3g} s of the {:.3g} s allowed; raise --timeout to {:.3g}", longest,
                            limit, 2 * std::max(longest, limit))};
}

std::optional<Advice> pinned_memory_advice(const Measurements& c) {
  if (!c.settings.on_gpu || c.settings.pinned) return std::nullopt;
  const bool unsaturated = c.seen.gpu_utilisation >= 0 && c.seen.gpu_utilisation < kSaturated;
  if (!unsaturated && c.split.copy < kMinShare) return std::nullopt;
  return Advice{Bottleneck::kPinnedMemory, "--pin_memory",
                fmt::format("copies to the GPU come from memory that is not page-locked ({:.0f}% of the step); set "
                            "--pin_memory",
                            100 * c.split.copy)};
}

Advice busy_readers_advice(const Measurements& c) {
  if (c.blocked() >= kBlocked) {
    const int more = std::max(c.readers_for(c.seen.loader.read_seconds, 4 * c.cpus), c.workers + 1);
    return {Bottleneck::kSlowStorage, "--num_workers",
            fmt::format("{} waiting for storage {:.0f}% of the time; {} (waiting readers need no CPU), or "
                        "move the data to a faster disk",
                        c.readers(), 100 * c.blocked(), c.raise_workers(more))};
  }
  // Up to one reader per CPU, each has a CPU of its own.
  const double cost = c.seen.readers.cpu_seconds > 0 ? c.seen.readers.cpu_seconds : c.seen.loader.read_seconds;
  const int needed = c.readers_for(cost, c.cpus + 1);
  if (c.workers < c.cpus && needed <= c.cpus) {
    return {Bottleneck::kTooFewWorkers, "--num_workers",
            fmt::format("{} always busy; {}", c.readers(), c.raise_workers(std::max(needed, c.workers + 1)))};
  }
  return {Bottleneck::kSlowDecode, c.workers < c.cpus ? "--num_workers" : "",
          fmt::format("{} always busy decoding, and {} CPU{} cannot keep up; make rows cheaper to read (store them "
                      "decoded, cache them){}",
                      c.readers(), c.cpus, c.cpus == 1 ? "" : "s",
                      c.workers < c.cpus ? ", and " + c.raise_workers(c.cpus) : "")};
}

/// Returns the reason why the step waits for data.
std::optional<Advice> data_wait_advice(const Measurements& c) {
  if (!c.waits()) return std::nullopt;
  const double wait = 100 * c.split.wait;
  if (c.workers == 0) {
    return Advice{Bottleneck::kNoWorkers, "--num_workers",
                  fmt::format("data wait {:.0f}%: the training thread reads the rows itself; set --num_workers to {}",
                              wait, c.readers_for(c.seen.loader.read_seconds, c.cpus))};
  }
  if (c.readers_busy()) return busy_readers_advice(c);
  const bool epochs = c.settings.batches_per_epoch > 0 && c.seen.loader.batches >= 2 * c.settings.batches_per_epoch;
  if (!c.settings.persistent_workers && epochs) {
    return Advice{Bottleneck::kEpochStart, "--persistent_workers",
                  fmt::format("data wait {:.0f}%: the readers restart at each epoch; set --persistent_workers", wait)};
  }
  if (c.seen.swing) {
    return Advice{Bottleneck::kSwing, "--num_workers",
                  fmt::format("data wait {:.0f}%: the load swings between {:.0f}% and {:.0f}% every {:.1f} s; {}", wait,
                              100 * c.seen.swing->min, 100 * c.seen.swing->max, c.seen.swing->period,
                              c.raise_workers(c.workers < c.cpus ? std::min(2 * c.workers, c.cpus) : 2 * c.workers))};
  }
  const int factor = c.settings.prefetch_factor;
  return Advice{Bottleneck::kShortRing, "--prefetch_factor",
                fmt::format("{} idle at times, the ring is too short for rows of uneven cost; raise --prefetch_factor "
                            "from {} to {}",
                            c.readers(), factor, std::min(std::max(4, 2 * factor), kMaxPrefetchFactor))};
}

std::optional<Advice> small_batch_advice(const Measurements& c) {
  if (c.waits()) return std::nullopt;
  const std::string change =
      fmt::format("raise --batch_size from {} to {}", c.settings.batch_size, 2 * c.settings.batch_size);
  const auto advice = [&](const std::string& why) {
    return Advice{Bottleneck::kSmallBatch, "--batch_size", why + change};
  };
  if (c.split.reduce >= kMuchReduction) {
    return advice(fmt::format("reducing gradients takes {:.0f}% of the step; ", 100 * c.split.reduce));
  }
  // The driver's value is a mean over up to a second, and a run begins with captures and other work of the host.
  const bool is_known = c.seen.gpu_utilisation >= 0 && c.seen.seconds >= kLeastGpuWindows * c.seen.window_seconds;
  if (is_known && c.seen.gpu_utilisation < kSaturated) {
    return advice(
        fmt::format("the GPU works {:.0f}% of the time and does not wait for data, the batch is too small "
                    "for it; ",
                    100 * c.seen.gpu_utilisation));
  }
  const double update = c.split.update / std::max(c.split.compute, 1e-9);
  if (c.settings.on_gpu || update < kMuchUpdate) return std::nullopt;
  return advice(
      fmt::format("updating the weights takes {:.0f}% of the compute time, for any batch size; ", 100 * update));
}

}  // namespace

PrefetcherStats difference(const PrefetcherStats& after, const PrefetcherStats& before) {
  PrefetcherStats stats = after;
  stats.batches -= before.batches;
  stats.rows -= before.rows;
  stats.wait_seconds -= before.wait_seconds;
  stats.consumer_seconds -= before.consumer_seconds;
  stats.copy_seconds -= before.copy_seconds;
  stats.read_seconds -= before.read_seconds;
  stats.ready_batches -= before.ready_batches;
  stats.allocations -= before.allocations;
  return stats;
}

ReaderTimes difference(const ReaderTimes& after, const ReaderTimes& before) {
  return {.cpu_seconds = after.cpu_seconds - before.cpu_seconds,
          .queued_seconds = after.queued_seconds - before.queued_seconds};
}

StepTimes difference(const StepTimes& after, const StepTimes& before) {
  return {.copy_seconds = after.copy_seconds - before.copy_seconds,
          .reduce_seconds = after.reduce_seconds - before.reduce_seconds,
          .update_seconds = after.update_seconds - before.update_seconds};
}

ProcessorTimes difference(const ProcessorTimes& after, const ProcessorTimes& before) {
  return {.used = after.used - before.used,
          .waited = after.waited - before.waited,
          .others = after.others - before.others,
          .stolen = after.stolen - before.stolen,
          .all = after.all - before.all};
}

StepSplit split_of(double seconds, const PrefetcherStats& loader, const StepTimes& steps) {
  if (seconds <= 0) return {};
  const auto share = [seconds](double part) { return std::clamp(part / seconds, 0.0, 1.0); };
  StepSplit split{.wait = share(loader.wait_seconds),
                  .copy = share(loader.copy_seconds + steps.copy_seconds),
                  .reduce = share(steps.reduce_seconds)};
  split.compute = std::max(0.0, 1 - split.wait - split.copy - split.reduce);
  split.update = std::min(share(steps.update_seconds), split.compute);
  return split;
}

LoaderSettings settings_of(const Prefetcher& loader, bool on_gpu, int cpus) {
  const PrefetcherOptions& options = loader.options();
  return {.batch_size = options.batch_size,
          .num_workers = options.num_workers,
          .prefetch_factor = options.prefetch_factor,
          .persistent_workers = options.persistent_workers,
          .timeout_seconds = std::chrono::duration<double>(options.timeout).count(),
          .batches_per_epoch = loader.batches_per_epoch(),
          .on_gpu = on_gpu,
          .pinned = options.pin_memory || options.device.is_cuda(),
          .cpus = cpus,
          .threads = at::get_num_threads()};
}

LoaderSettings settings_without_loader(bool on_gpu, int cpus) {
  return {.is_loader = false, .on_gpu = on_gpu, .pinned = true, .cpus = cpus, .threads = at::get_num_threads()};
}

const char* to_string(Bottleneck row) {
  switch (row) {
    case Bottleneck::kMemory:
      return "memory";
    case Bottleneck::kTimeout:
      return "timeout";
    case Bottleneck::kPinnedMemory:
      return "pinned_memory";
    case Bottleneck::kNoWorkers:
      return "no_workers";
    case Bottleneck::kEpochStart:
      return "epoch_start";
    case Bottleneck::kSwing:
      return "swing";
    case Bottleneck::kSlowStorage:
      return "slow_storage";
    case Bottleneck::kSlowDecode:
      return "slow_decode";
    case Bottleneck::kTooFewWorkers:
      return "too_few_workers";
    case Bottleneck::kShortRing:
      return "short_ring";
    case Bottleneck::kSmallBatch:
      return "small_batch";
    case Bottleneck::kBusyMachine:
      return "busy_machine";
  }
  return "";
}

std::vector<Advice> diagnose(const Observation& seen, const LoaderSettings& settings) {
  if (seen.loader.batches < kFewBatches || seen.seconds <= 0) return {};
  const Measurements c{seen, settings};
  std::vector<Advice> rows;
  const auto add = [&rows](std::optional<Advice> row) {
    if (row) rows.push_back(*std::move(row));
  };
  add(memory_advice(c));
  if (settings.is_loader) {
    add(timeout_advice(c));
    add(pinned_memory_advice(c));
    add(data_wait_advice(c));
    add(small_batch_advice(c));
  }
  add(busy_machine_advice(c));
  return rows;
}

}  // namespace trainkit
