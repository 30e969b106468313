#include "report/run_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "logging/field_names.h"
#include "logging/record_reader.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr size_t kMostBands = 100, kMostCandidates = size_t{1} << 16;
constexpr size_t kTailBytes = 4096;

/// Values of a record that explain its speed; the order is that of kRoles.
enum Role {
  kEvaluation,
  kSave,
  kSaveShare,
  kWait,
  kCopy,
  kReduce,
  kProcessorWait,
  kOthers,
  kStolen,
  kTokens,
  kSamples
};
constexpr std::array<const char*, 11> kRoles = {fields::kEvaluationSeconds,     fields::kSaveSeconds,
                                                fields::kSaveFraction,          fields::kDataWaitFraction,
                                                fields::kCopyFraction,          fields::kReduceFraction,
                                                fields::kProcessorWaitFraction, fields::kOtherProcessesFraction,
                                                fields::kStolenFraction,        fields::kTokensPerSecond,
                                                fields::kSamplesPerSecond};

int role_of(std::string_view name) {
  const auto found = std::find(kRoles.begin(), kRoles.end(), name);
  return found == kRoles.end() ? -1 : static_cast<int>(found - kRoles.begin());
}

void add_each(std::vector<ValueSeries>& lines, double step, double seconds, const auto& values) {
  constexpr size_t kMostLines = 8;
  for (size_t i = 0; i < values.size() && i < kMostLines; ++i) {
    if (i >= lines.size()) lines.emplace_back();
    lines[i].add(step, seconds, static_cast<double>(values[i]));
  }
}

}  // namespace

// ---- ValueSeries

void ValueSeries::add(double step, double seconds, double value) {
  is_timed_ = is_timed_ && std::isfinite(seconds);
  const bool finite = std::isfinite(value);
  const Point point{step, seconds, value};
  if (buckets_.empty() || buckets_.back().count == width_) {
    if (buckets_.size() == kMostBuckets) merge_pairs();
    buckets_.push_back({point, point, {step, seconds, finite ? value : 0}, 1, finite});
    return;
  }
  Bucket& last = buckets_.back();
  if (finite && (last.finite == 0 || value < last.low.y)) last.low = point;
  if (finite && (last.finite == 0 || value > last.high.y)) last.high = point;
  last.sum.step += step, last.sum.seconds += seconds, last.sum.y += finite ? value : 0;
  ++last.count, last.finite += finite;
}

void ValueSeries::merge_pairs() {
  for (size_t i = 0; i < buckets_.size() / 2; ++i) {
    Bucket one = buckets_[2 * i];
    const Bucket& two = buckets_[2 * i + 1];
    if (two.finite > 0 && (one.finite == 0 || two.low.y < one.low.y)) one.low = two.low;
    if (two.finite > 0 && (one.finite == 0 || two.high.y > one.high.y)) one.high = two.high;
    one.sum = {one.sum.step + two.sum.step, one.sum.seconds + two.sum.seconds, one.sum.y + two.sum.y};
    one.count += two.count, one.finite += two.finite;
    buckets_[i] = one;
  }
  buckets_.resize(buckets_.size() / 2);
  width_ *= 2;
}

std::vector<ChartPoint> ValueSeries::extremes(Axis axis) const {
  const auto point_of = [axis](const Point& at) {
    return ChartPoint{axis == Axis::kStep ? at.step : at.seconds, at.y};
  };
  std::vector<ChartPoint> points;
  points.reserve(buckets_.size() * (width_ == 1 ? 1 : 2));
  for (const Bucket& bucket : buckets_) {
    const bool is_in_order = bucket.low.step <= bucket.high.step;
    points.push_back(point_of(is_in_order ? bucket.low : bucket.high));
    if (bucket.count > 1 && bucket.finite > 0) points.push_back(point_of(is_in_order ? bucket.high : bucket.low));
  }
  return points;
}

std::vector<ChartPoint> ValueSeries::means(Axis axis) const {
  std::vector<ChartPoint> points;
  points.reserve(buckets_.size());
  for (const Bucket& bucket : buckets_) {
    const auto count = static_cast<double>(bucket.count);
    const double x = (axis == Axis::kStep ? bucket.sum.step : bucket.sum.seconds) / count;
    points.push_back({x, bucket.count == 1   ? bucket.low.y
                         : bucket.finite > 0 ? bucket.sum.y / static_cast<double>(bucket.finite)
                                             : kNan});
  }
  return points;
}

// ---- Causes of slow records

std::string describe(const StallCause& cause) {
  const std::string share = fmt::format("{:.0f}%", 100 * cause.share);
  switch (cause.kind) {
    case StallCause::Kind::kData:
      return "waited for data for " + share + " of the time";
    case StallCause::Kind::kHost:
      return "the host of the virtual machine took " + share + " of the processors";
    case StallCause::Kind::kOthers:
      return "other processes used " + share + " of the processors";
    case StallCause::Kind::kSave:
      return "a checkpoint was being written";
    case StallCause::Kind::kReduce:
      return "reduced gradients for " + share + " of the time";
    case StallCause::Kind::kSession:
      return "first steps of a session";
    case StallCause::Kind::kEvaluation:
      return "first steps after an evaluation";
    case StallCause::Kind::kProcessor:
      return "its own threads waited for a processor for " + share + " of the time";
    case StallCause::Kind::kUnknown:
      break;
  }
  return "unknown";
}

// ---- RunHistory

/// The finite values of a record by their role; 0 without one.
struct RunHistory::Measured {
  std::array<double, kRoles.size()> values = {};
  bool has_wait = false;
};

namespace {

/// Names the likely cause of a slow record: first what was measured, then what happened before it.
template <class Values>
StallCause cause_of(const Values& values, bool after_session, bool after_evaluation) {
  using enum StallCause::Kind;
  const double own = values[kProcessorWait], others = values[Role::kOthers];
  if (values[kWait] > 0.3) return {kData, values[kWait]};
  if (values[kStolen] > 0.1) return {kHost, values[kStolen]};
  if (own > 0.1 && others > 0.1) return {StallCause::Kind::kOthers, others};
  if (values[kSaveShare] > 0.1 || values[Role::kSave] > 0) return {StallCause::Kind::kSave, 0};
  if (values[Role::kReduce] > 0.4) return {StallCause::Kind::kReduce, values[Role::kReduce]};
  if (after_session) return {kSession, 0};
  if (after_evaluation) return {StallCause::Kind::kEvaluation, 0};
  if (own > 0.1) return {kProcessor, own};
  return {};
}

/// Returns the last bytes before `offset`.
absl::StatusOr<std::string> tail_of(const ReadableFile& file, int64_t offset) {
  std::string tail(std::min<size_t>(kTailBytes, static_cast<size_t>(offset)), '\0');
  TRAINKIT_RETURN_IF_ERROR(file.read_at(offset - static_cast<int64_t>(tail.size()), tail.data(), tail.size()));
  return tail;
}

}  // namespace

absl::Status RunHistory::read(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const ReadableFile file, Fs::posix().open_file(path));
  if (offset_ > 0) {
    const auto tail = offset_ <= file.size_bytes() ? tail_of(file, offset_) : absl::NotFoundError("");
    if (!tail.ok() || *tail != tail_) *this = RunHistory(std::move(sessions_));
  }
  TRAINKIT_ASSIGN_OR_RETURN(offset_, read_records(file, offset_, [this](const LogRecord& record) {
                              add(record);
                              return true;
                            }));
  TRAINKIT_ASSIGN_OR_RETURN(tail_, tail_of(file, offset_));
  return absl::OkStatus();
}

/// Adds up the time between records, without the time between sessions. NaN without a time.
double RunHistory::elapsed_at(const LogRecord& record) {
  const double* const time = record.find(fields::kTime);
  if (!time || !std::isfinite(*time)) return kNan;
  size_t own = 0;  // the session that logged the record
  for (size_t i = 0; i < sessions_.size(); ++i) {
    if (sessions_[i].started <= *time) own = i;
  }
  if (own < sessions_.size() && own != clock_.session) {
    clock_.session = own;
    clock_.before = std::isnan(sessions_[own].started) ? *time : sessions_[own].started;
  }
  if (std::isfinite(clock_.before)) clock_.sum += std::max(*time - clock_.before, 0.0);
  clock_.before = *time;
  return clock_.sum;
}

RunHistory::Named& RunHistory::named(Split& split, const std::string& name, size_t position) {
  // Records have the same names in the same order, but for those of some steps.
  if (position < split.values.size() && split.values[position]->name == name) return *split.values[position];
  if (const auto found = split.by_name.find(name); found != split.by_name.end()) return *found->second;
  Named& added = *split.values.emplace_back(std::make_unique<Named>(Named{name, role_of(name), {}}));
  split.by_name.emplace(name, &added);
  return added;
}

void RunHistory::add(const LogRecord& record) {
  const auto step = static_cast<double>(record.step);
  const double seconds = elapsed_at(record);
  ++facts_.count;
  facts_.last_step = record.step, facts_.last_epoch = record.epoch;
  facts_.is_timed = facts_.is_timed && std::isfinite(seconds);
  if (std::isfinite(seconds)) facts_.last_seconds = seconds;
  Measured measured;
  auto split = splits_.find(record.split);
  if (split == splits_.end()) split = splits_.emplace(record.split, Split()).first;
  for (size_t i = 0; i < record.values.size(); ++i) {
    const auto& [name, value] = record.values[i];
    Named& own = named(split->second, name, i);
    own.values.add(step, seconds, value);
    if (own.role < 0) continue;
    facts_.has_tokens = facts_.has_tokens || own.role == kTokens;
    if (!std::isfinite(value)) continue;
    measured.values[static_cast<size_t>(own.role)] = value;
    measured.has_wait = measured.has_wait || own.role == kWait;
  }
  add_each(lr_, step, seconds, record.lr);
  add_each(gpu_memory_bytes_, step, seconds, record.gpu_memory_bytes);
  add_each(gpu_utilisation_, step, seconds, record.gpu_utilisation);

  const double evaluation = measured.values[kEvaluation], save = measured.values[kSave];
  facts_.evaluation_seconds += std::max(evaluation, 0.0), facts_.save_seconds += std::max(save, 0.0);
  if (evaluation > 0 && bands_.size() < kMostBands)
    bands_.push_back({seconds - evaluation, seconds, fmt::format("evaluation, {:.2g} s", evaluation)});
  if (save > 0.5 && bands_.size() < kMostBands)
    bands_.push_back({seconds - save, seconds, fmt::format("checkpoint, {:.2g} s", save)});
  if (measured.has_wait) {
    facts_.shares.wait += measured.values[kWait], facts_.shares.copy += measured.values[kCopy];
    facts_.shares.reduce += measured.values[kReduce], ++facts_.shares.count;
  }
  if (record.split == "train") {
    add_stall_candidate(record, seconds, measured);
  } else {
    stalls_.after_evaluation = true;
  }
}

void RunHistory::add_stall_candidate(const LogRecord& record, double seconds, const Measured& measured) {
  const auto step = static_cast<double>(record.step);
  while (stalls_.session + 1 < sessions_.size() && step > sessions_[stalls_.session + 1].first_step) {
    ++stalls_.session, stalls_.after_session = true;
  }
  const double samples = measured.values[kSamples], tokens = measured.values[kTokens];
  if (samples > 0 || tokens > 0) {
    if (stalls_.candidates.size() == kMostCandidates) drop_candidates();
    stalls_.candidates.push_back(
        {step, seconds, samples, tokens, cause_of(measured.values, stalls_.after_session, stalls_.after_evaluation)});
  }
  stalls_.after_session = stalls_.after_evaluation = false;
}

/// Drops those that are faster than most, and if that is not enough the later half.
void RunHistory::drop_candidates() {
  std::vector<double> rates;
  const auto rate_of = [this](const StallCandidate& one) {
    return facts_.has_tokens ? one.tokens_per_second : one.samples_per_second;
  };
  const char* const name = facts_.has_tokens ? fields::kTokensPerSecond : fields::kSamplesPerSecond;
  for (const ChartPoint& point : values("train", name).means(ValueSeries::Axis::kStep)) {
    if (std::isfinite(point.y)) rates.push_back(point.y);
  }
  const auto middle = rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  std::erase_if(stalls_.candidates, [&](const StallCandidate& one) { return rate_of(one) > 0.9 * *middle; });
  if (stalls_.candidates.size() > kMostCandidates / 2) stalls_.candidates.resize(kMostCandidates / 2);
}

const ValueSeries& RunHistory::values(std::string_view split, std::string_view name) const {
  static const ValueSeries none;
  const auto found = splits_.find(split);
  if (found == splits_.end()) return none;
  const auto named = found->second.by_name.find(name);
  return named == found->second.by_name.end() ? none : named->second->values;
}

std::vector<std::string> RunHistory::names(std::string_view split) const {
  std::vector<std::string> names;
  const auto found = splits_.find(split);
  if (found == splits_.end()) return names;
  for (const auto& named : found->second.values) names.push_back(named->name);
  return names;
}

}  // namespace trainkit::detail
