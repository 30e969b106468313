#include "trainkit/distributed/scaling.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "trainkit/core/error.h"

namespace trainkit {
namespace {

/// Nine tenths of the nominal bandwidth of one direction. Latencies per hop are those that nccl-tests and Gloo report.
constexpr std::array<std::pair<std::string_view, Link>, 10> kLinks = {{
    {"loopback", {30e-6, 2.5e9}},  // two processes over Gloo on one machine; trainkit doctor measures yours
    {"eth10", {30e-6, 1.125e9}},   // 10 Gbit/s Ethernet, TCP
    {"eth25", {25e-6, 2.81e9}},    // 25 Gbit/s Ethernet, TCP
    {"eth100", {20e-6, 11.25e9}},  // 100 Gbit/s Ethernet, TCP
    {"ib100", {5e-6, 11.25e9}},    // 100 Gbit/s InfiniBand EDR, RDMA
    {"ib4x100", {5e-6, 45e9}},     // four adapters, one per pair of GPUs (DGX-1)
    {"pcie3", {10e-6, 14.2e9}},    // 16 lanes, 15.75 GB/s
    {"pcie4", {10e-6, 28.4e9}},    // 16 lanes, 31.5 GB/s
    {"nvlink2", {5e-6, 135e9}},    // V100: 6 links of 25 GB/s
    {"nvlink4", {5e-6, 405e9}},    // H100: 18 links of 25 GB/s
}};

double ring_seconds(double bytes, const Cluster& cluster) {
  const double n = static_cast<double>(cluster.devices());
  const auto hop = [&](const Link& link) { return link.latency_seconds + bytes / n / link.bytes_per_second; };
  // All hops of a round run concurrently, and the next round waits for the slowest.
  double slowest = cluster.nodes > 1 ? hop(cluster.between) : 0;
  if (cluster.devices_per_node > 1) slowest = std::max(slowest, hop(cluster.inside));
  return 2 * (n - 1) * slowest;
}

double tree_seconds(double bytes, const Cluster& cluster) {
  const double g = static_cast<double>(cluster.devices_per_node), m = static_cast<double>(cluster.nodes);
  double latency = 0, slowest = 0;
  if (cluster.nodes > 1) {
    latency = std::ceil(std::log2(m)) * cluster.between.latency_seconds;
    slowest = 1 / cluster.between.bytes_per_second;
  }
  if (cluster.devices_per_node > 1) {
    // On several machines, a chain within each machine leads to the device that communicates with the others.
    latency += (cluster.nodes > 1 ? g - 1 : std::ceil(std::log2(g))) * cluster.inside.latency_seconds;
    slowest = std::max(slowest, 1 / cluster.inside.bytes_per_second);
  }
  return 2 * latency + 2 * bytes * slowest;
}

bool read_number(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

void check(const Link& link) {
  TORCH_CHECK_VALUE(link.latency_seconds >= 0 && link.bytes_per_second > 0,
                    "a link needs a latency >= 0 and a bandwidth > 0, got ", link.latency_seconds, " s and ",
                    link.bytes_per_second, " bytes/s");
}

}  // namespace

std::vector<std::string_view> link_names() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kLinks));
  for (const auto& [name, link] : kLinks) names.push_back(name);
  return names;
}

absl::StatusOr<Link> parse_link(std::string_view text) {
  for (const auto& [name, link] : kLinks) {
    if (name == text) return link;
  }
  const size_t comma = text.find(',');
  double microseconds = 0, gigabytes = 0;
  if (comma != std::string_view::npos && read_number(text.substr(0, comma), microseconds) &&
      read_number(text.substr(comma + 1), gigabytes) && microseconds >= 0 && gigabytes > 0)
    return Link{.latency_seconds = microseconds * 1e-6, .bytes_per_second = gigabytes * 1e9};
  const std::string nearest = nearest_name(text, link_names());
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.value",
                    .field = "link",
                    .problem = "no such link",
                    .got = std::string(text),
                    .expected = "a name, or <microseconds>,<GB per second>",
                    .hint = nearest.empty() ? "names: loopback, eth10, eth25, eth100, ib100, ib4x100, pcie3, pcie4, "
                                              "nvlink2, nvlink4"
                                            : "did you mean " + nearest + "?"});
}

double all_reduce_seconds(int64_t bytes, const Cluster& cluster) {
  TORCH_CHECK_VALUE(bytes >= 0 && cluster.devices_per_node >= 1 && cluster.nodes >= 1,
                    "an all-reduce needs bytes >= 0, devices_per_node >= 1 and nodes >= 1, got ", bytes, ", ",
                    cluster.devices_per_node, " and ", cluster.nodes);
  if (cluster.devices() == 1 || bytes == 0) return 0;
  if (cluster.devices_per_node > 1) check(cluster.inside);
  if (cluster.nodes > 1) check(cluster.between);
  const double size = static_cast<double>(bytes);
  switch (cluster.algorithm) {
    case AllReduceAlgorithm::kRing:
      return ring_seconds(size, cluster);
    case AllReduceAlgorithm::kTree:
      return tree_seconds(size, cluster);
    case AllReduceAlgorithm::kBest:
      break;
  }
  return std::min(ring_seconds(size, cluster), tree_seconds(size, cluster));
}

double reduce_scatter_seconds(int64_t bytes, const Cluster& cluster) {
  Cluster ring = cluster;
  ring.algorithm = AllReduceAlgorithm::kRing;
  return all_reduce_seconds(bytes, ring) / 2;
}

StepCost make_step_cost(double step_seconds, int64_t gradient_bytes, const StepCostOptions& options) {
  TORCH_CHECK_VALUE(step_seconds > 0 && gradient_bytes >= 0, "a step needs seconds > 0 and gradient bytes >= 0, got ",
                    step_seconds, " and ", gradient_bytes);
  TORCH_CHECK_VALUE(options.bucket_bytes > 0 && options.micro_steps > 0,
                    "bucket_bytes and micro_steps must be > 0, got ", options.bucket_bytes, " and ",
                    options.micro_steps);
  TORCH_CHECK_VALUE(options.update_share >= 0 && options.update_share < 1, "update_share must be in [0, 1), got ",
                    options.update_share);
  const double compute = step_seconds * (1 - options.update_share);
  const double last_backward = compute * 2 / 3 / static_cast<double>(options.micro_steps);
  StepCost step{.forward_seconds = compute - last_backward,
                .backward_seconds = last_backward,
                .update_seconds = step_seconds * options.update_share,
                .bucket_bytes = {}};
  constexpr int64_t kFirstBucket = 1 << 20;
  for (int64_t left = gradient_bytes; left > 0; left -= step.bucket_bytes.back()) {
    const int64_t most =
        step.bucket_bytes.empty() ? std::min(kFirstBucket, options.bucket_bytes) : options.bucket_bytes;
    step.bucket_bytes.push_back(std::min(left, most));
  }
  return step;
}

ScalingPrediction predict_scaling(const StepCost& step, const Cluster& cluster, const ScalingOptions& options) {
  TORCH_CHECK_VALUE(options.interference >= 0 && options.interference <= 1, "interference must be in [0, 1], got ",
                    options.interference);
  TORCH_CHECK_VALUE(options.contention >= 0, "contention must be >= 0, got ", options.contention);
  const double n = static_cast<double>(cluster.devices());
  const double stretch = 1 + options.contention * static_cast<double>(cluster.devices_per_node - 1);
  const double share = (options.batch_grows ? 1 : 1 / n) * stretch;
  const double forward = step.forward_seconds * share, backward = step.backward_seconds * share;
  const double bytes =
      static_cast<double>(std::accumulate(step.bucket_bytes.begin(), step.bucket_bytes.end(), int64_t{0}));

  ScalingPrediction result{.devices = cluster.devices()};
  const auto reduce_seconds = options.shards ? reduce_scatter_seconds : all_reduce_seconds;
  double time = 0, computed = 0, ready = 0;  // seconds since backward began; `computed`: completed part of it
  for (const int64_t bucket : step.bucket_bytes) {
    ready += backward * static_cast<double>(bucket) / bytes;
    if (computed < ready) time += ready - std::exchange(computed, ready);
    const double seconds = reduce_seconds(bucket, cluster);
    computed = std::min(backward, computed + (1 - options.interference) * seconds);
    time += seconds;
    result.communication_seconds += seconds;
  }
  time += backward - computed;
  const double reductions = static_cast<double>(options.reductions);
  result.exposed_seconds = std::max(time - backward, 0.0) * reductions;
  result.communication_seconds *= reductions;
  const double update = step.update_seconds * stretch / (options.shards ? n : 1);
  double updated = 0, gathered = 0;  // seconds since the update began; a bucket is gathered once it is updated
  for (const int64_t bucket : step.bucket_bytes) {
    if (!options.shards) break;
    const double seconds = reduce_scatter_seconds(bucket, cluster);
    updated += update * static_cast<double>(bucket) / bytes;
    gathered = std::max(gathered, updated) + seconds;
    result.communication_seconds += seconds;
  }
  result.exposed_seconds += std::max(gathered - update, 0.0);
  const auto votes = static_cast<int64_t>(sizeof(double)) * (4 + cluster.devices());
  const double agreement = options.graphs ? all_reduce_seconds(votes, cluster) : 0;
  result.communication_seconds += agreement;
  result.exposed_seconds += agreement;
  result.step_seconds = forward + backward + result.exposed_seconds + update;
  if (cluster.devices() > 1) {
    const auto buckets = static_cast<int64_t>(step.bucket_bytes.size());
    const double passes = options.shards ? reductions + 1 : 2 * reductions;  // of the buckets over a ring
    const double of_votes = options.graphs ? 2 * static_cast<double>(votes) : 0;
    result.messages = buckets * (options.reductions + (options.shards ? 1 : 0)) + (options.graphs ? 1 : 0);
    result.sent_bytes = std::llround((passes * bytes + of_votes) * (n - 1) / n);
  }
  result.speedup = step.seconds() / result.step_seconds * (options.batch_grows ? n : 1);
  result.efficiency = result.speedup / n;
  return result;
}

absl::StatusOr<Link> fit_link(int64_t devices, int64_t small_bytes, double small_seconds, int64_t large_bytes,
                              double large_seconds) {
  TORCH_CHECK_VALUE(devices > 1 && small_bytes < large_bytes,
                    "fit_link needs devices > 1 and small_bytes < large_bytes");
  if (!(large_seconds > small_seconds) || !(small_seconds > 0)) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.value",
                      .field = "link",
                      .problem = "the large all-reduce was not slower than the small one",
                      .hint = "measure again on a quiet machine"},
                     absl::StatusCode::kInvalidArgument);
  }
  const double n = static_cast<double>(devices), rounds = 2 * (n - 1);
  const double bandwidth =
      rounds / n * static_cast<double>(large_bytes - small_bytes) / (large_seconds - small_seconds);
  const double latency = small_seconds / rounds - static_cast<double>(small_bytes) / n / bandwidth;
  return Link{.latency_seconds = std::max(latency, 0.0), .bytes_per_second = bandwidth};
}

}  // namespace trainkit
