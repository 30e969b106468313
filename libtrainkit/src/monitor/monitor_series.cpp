#include "monitor/monitor_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trainkit/core/format.h"
#include "trainkit/monitor/monitor.h"

namespace trainkit {
namespace {

constexpr size_t kMostWindows = 600;

/// Returns the mean over the GPUs. Negative if one of them does not report its utilisation.
double utilisation_of(const std::vector<GpuUsage>& gpus) {
  double sum = 0;
  for (const GpuUsage& gpu : gpus) {
    if (gpu.utilization < 0) return -1;
    sum += gpu.utilization;
  }
  return gpus.empty() ? -1 : sum / static_cast<double>(gpus.size());
}

StepSplit split_between(const MonitorSample& from, const MonitorSample& to) {
  return split_of(to.seconds - from.seconds, difference(to.loader, from.loader), difference(to.steps, from.steps));
}

double queue_between(const MonitorSample& from, const MonitorSample& to) {
  const auto batches = static_cast<double>(to.loader.batches - from.loader.batches);
  return batches > 0 ? static_cast<double>(to.loader.ready_batches - from.loader.ready_batches) / batches : 0;
}

int ring_size(const LoaderSettings& settings) { return std::max(settings.num_workers * settings.prefetch_factor, 2); }

std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

double percentile(std::vector<double> values, double share) {
  const auto at = values.begin() + static_cast<ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// Returns Pearson's correlation of the series with itself shifted by `lag`. 0 if one of the two parts is constant.
double correlation(std::span<const double> values, size_t lag) {
  const size_t count = values.size() - lag;
  double x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < count; ++i) {
    const double a = values[i], b = values[i + lag];
    x += a, y += b, xx += a * a, yy += b * b, xy += a * b;
  }
  const auto n = static_cast<double>(count);
  const double vary = (n * xx - x * x) * (n * yy - y * y);
  return vary > 1e-12 ? (n * xy - x * y) / std::sqrt(vary) : 0;
}

/// Returns the position of the maximum of the parabola through three values at -1, 0 and 1.
double peak_offset(double before, double here, double after) {
  const double bend = before - 2 * here + after;
  return bend < 0 ? std::clamp(0.5 * (before - after) / bend, -0.5, 0.5) : 0;
}

}  // namespace

std::optional<Swing> find_swing(std::span<const double> values, double least) {
  constexpr size_t kFew = 8;
  if (values.size() < kFew) return std::nullopt;
  const std::vector<double> all(values.begin(), values.end());
  Swing swing{.min = percentile(all, 0.05), .max = percentile(all, 0.95)};
  if (swing.max - swing.min < least) return std::nullopt;

  const size_t longest = values.size() / 2;
  std::vector<double> r(longest + 2, 0.0);
  for (size_t lag = 1; lag < r.size(); ++lag) r[lag] = correlation(values, lag);
  const double strongest = *std::max_element(r.begin() + 2, r.end());
  bool dropped = false;  // a slow drift correlates at every short lag and is not periodic
  for (size_t lag = 1; lag <= longest; ++lag) {
    const double error = 1 / std::sqrt(static_cast<double>(values.size() - lag));
    dropped = dropped || r[lag] < error;
    // A multiple of the period correlates as well, a fraction of it only weakly.
    const bool peak = lag >= 2 && r[lag] >= r[lag - 1] && r[lag] >= r[lag + 1];
    if (dropped && peak && r[lag] >= std::max(0.5, 3.5 * error) && r[lag] >= 0.6 * strongest) {
      swing.period = static_cast<double>(lag) + peak_offset(r[lag - 1], r[lag], r[lag + 1]);
      return swing;
    }
  }
  return std::nullopt;
}

MonitorSeries::MonitorSeries(const LoaderSettings& settings, double window_seconds)
    : settings_(settings), window_seconds_(window_seconds) {}

bool MonitorSeries::add(const MonitorSample& sample) {
  if (!batches_before_) batches_before_ = sample.loader.batches;
  if (paused_at_) return false;
  MonitorSample now = sample;
  now.seconds = training_time(sample.seconds);
  if (sample.loader.prefetch_factor > 0) settings_.prefetch_factor = sample.loader.prefetch_factor;
  update_memory_extremes(now);
  if (!first_) {
    if (now.loader.batches > *batches_before_) first_ = last_ = window_start_ = now;
    return false;
  }
  // Older than a sample of another thread, see Note [Monitor threads].
  if (now.seconds < last_.seconds) return false;
  last_ = now;
  if (!now.gpus.empty()) window_gpus_.resize(now.gpus.size());
  for (size_t i = 0; i < now.gpus.size(); ++i) {
    if (now.gpus[i].utilization < 0) continue;
    window_gpus_[i].first += now.gpus[i].utilization;
    ++window_gpus_[i].second;
  }
  if (const double gpus = utilisation_of(now.gpus); gpus >= 0) {
    window_gpu_sum_ += gpus, gpu_sum_ += gpus;
    ++window_gpu_samples_, ++gpu_samples_;
  }
  if (now.seconds - window_start_.seconds < window_seconds_) return false;
  close_window(now);
  return true;
}

void MonitorSeries::close_window(const MonitorSample& sample) {
  window_split_ = split_between(window_start_, sample);
  window_queue_ = queue_between(window_start_, sample);
  window_of_gpus_ = window_gpu_samples_ > 0;
  const double utilisation =
      window_of_gpus_ ? window_gpu_sum_ / static_cast<double>(window_gpu_samples_) : 1 - window_split_.wait;
  // A late sample counts for every window it missed, so that the time axis stays even.
  const double length = (sample.seconds - window_start_.seconds) / window_seconds_;
  windows_.insert(windows_.end(), static_cast<size_t>(std::clamp(std::round(length), 1.0, 60.0)), utilisation);
  if (windows_.size() > kMostWindows) {
    windows_.erase(windows_.begin(), windows_.end() - static_cast<ptrdiff_t>(kMostWindows));
  }
  window_of_each_gpu_.clear();
  for (const auto& [sum, samples] : window_gpus_)
    window_of_each_gpu_.push_back(samples > 0 ? sum / static_cast<double>(samples) : -1);
  window_gpus_.clear();
  window_start_ = sample;
  window_gpu_sum_ = 0;
  window_gpu_samples_ = 0;
}

void MonitorSeries::update_memory_extremes(const MonitorSample& sample) {
  resident_bytes_ = std::max(resident_bytes_, sample.resident_bytes);
  const HostMemory& host = sample.host;
  if (host.total_bytes > 0 && (least_host_.total_bytes == 0 || host.available_bytes < least_host_.available_bytes)) {
    least_host_ = host;
  }
  for (size_t i = 0; i < sample.gpus.size(); ++i) {
    const GpuUsage& gpu = sample.gpus[i];
    gpu_used_bytes_ = std::max(gpu_used_bytes_, gpu.used_bytes);
    const AllocatorUse allocator = i < sample.allocators.size() ? sample.allocators[i] : AllocatorUse{};
    const int64_t kept = allocator.reserved_bytes - allocator.allocated_bytes;
    const GpuMemory memory{.total_bytes = gpu.total_bytes,
                           .free_bytes = gpu.total_bytes - gpu.used_bytes + std::max<int64_t>(kept, 0),
                           .retries = allocator.retries};
    if (!least_gpu_ || memory.free_bytes < least_gpu_->free_bytes) {
      const int64_t retries = least_gpu_ ? least_gpu_->retries : 0;
      least_gpu_ = memory;
      least_gpu_->retries = std::max(retries, memory.retries);
    } else {
      least_gpu_->retries = std::max(least_gpu_->retries, memory.retries);
    }
  }
}

void MonitorSeries::pause(double seconds) {
  if (!paused_at_) paused_at_ = seconds;
}

void MonitorSeries::resume(double seconds) {
  if (!paused_at_) return;
  paused_seconds_ += seconds - *paused_at_;
  paused_at_.reset();
}

MonitorReport MonitorSeries::report() const {
  MonitorReport report{
      .ring_size = ring_size(settings_), .resident_bytes = resident_bytes_, .gpu_used_bytes = gpu_used_bytes_};
  if (!first_ || last_.seconds <= first_->seconds) return report;
  report.seconds = last_.seconds - first_->seconds;
  report.split = split_between(*first_, last_);
  report.queue_depth = queue_between(*first_, last_);
  report.of_gpus = gpu_samples_ > 0;
  report.utilisation = report.of_gpus ? gpu_sum_ / static_cast<double>(gpu_samples_) : 1 - report.split.wait;
  report.utilisation_min = report.utilisation_max = report.utilisation;
  if (!windows_.empty()) {
    std::vector<double> sorted = windows_;
    std::sort(sorted.begin(), sorted.end());
    const auto at = [&](double share) {
      return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
    };
    report.utilisation_min = at(0.05);
    report.utilisation_max = at(0.95);
  }
  report.swing = find_swing(windows_);
  if (report.swing) report.swing->period *= window_seconds_;
  report.advice = diagnose({.seconds = report.seconds,
                            .loader = difference(last_.loader, first_->loader),
                            .readers = difference(last_.readers, first_->readers),
                            .steps = difference(last_.steps, first_->steps),
                            .processors = difference(last_.processors, first_->processors),
                            .gpu_utilisation = report.of_gpus ? report.utilisation : -1,
                            .window_seconds = window_seconds_,
                            .swing = report.swing,
                            .host = least_host_,
                            .gpu = least_gpu_},
                           settings_);
  return report;
}

std::string MonitorSeries::table_heading() {
  return "monitor    time  busy  wait  copy  compute  reduce  queue      host    GPU memory";
}

std::string MonitorSeries::table_row() const {
  const double busy = windows_.empty() ? 1 : windows_.back();
  std::string row =
      fmt::format("monitor {:>7}  {:>4}  {:>4}  {:>4}  {:>7}  {:>6}  {:>2.0f}/{:<2}  {:>8}",
                  format_duration(first_ ? last_.seconds - first_->seconds : 0), percent(busy),
                  percent(window_split_.wait), percent(window_split_.copy), percent(window_split_.compute),
                  percent(window_split_.reduce), window_queue_, ring_size(settings_), format_size(resident_bytes_));
  for (const GpuUsage& gpu : last_.gpus) {
    row += fmt::format("  {} of {}", format_size(gpu.used_bytes), format_size(gpu.total_bytes));
    if (last_.gpus.size() > 1 && gpu.utilization >= 0) row += " " + percent(gpu.utilization);
  }
  return row;
}

std::string describe(const MonitorReport& report) {
  if (report.seconds <= 0) return "the run was too short to measure";
  std::string text =
      fmt::format("{} {}", report.of_gpus ? "GPU utilisation" : "utilisation", percent(report.utilisation));
  if (report.swing) {
    text += fmt::format(" ({:.0f} to {} every {:.1f} s)", 100 * report.swing->min, percent(report.swing->max),
                        report.swing->period);
  } else if (percent(report.utilisation_min) != percent(report.utilisation_max)) {
    text += fmt::format(" ({:.0f} to {})", 100 * report.utilisation_min, percent(report.utilisation_max));
  }
  const StepSplit& split = report.split;
  text += fmt::format("; step: wait {}, copy {}, compute {}, reduce {}; queue {:.1f} of {}", percent(split.wait),
                      percent(split.copy), percent(split.compute), percent(split.reduce), report.queue_depth,
                      report.ring_size);
  for (const Advice& advice : report.advice) text += "; " + advice.text;
  return text;
}

}  // namespace trainkit
