#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/scaling.h"
#include "trainkit/probes.h"
#include "trainkit/report/summary.h"
#include "trainkit/scale_plot.h"
#include "trainkit/scale_run.h"

namespace trainkit::tool {
namespace {

struct ScaleFlags {
  double step_seconds = 0, gradient_mb = 0, bucket_mb = 26.2144, update_share = 0.05;
  int64_t grad_accum_steps = 1;
  std::string run = {};
  int64_t devices = 8, nodes = 1;
  std::string inside = {}, between = {};
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kBest;
  Sharding shard = Sharding::kNone;
  bool batch_grows = true, graphs = true;
  double interference = 0, contention = 0;
  std::vector<std::string> measured = {};
  bool json = false;
  std::string plot = {};
};

void add_step_flags(ConfigParser& parser, ScaleFlags& flags) {
  const std::string step = "Step";
  parser.add(
      "step_seconds", &flags.step_seconds,
      {.help = "Time of one optimizer step on one device, in seconds.", .group = step, .min = 0, .metavar = "S"});
  parser.add("gradient_mb", &flags.gradient_mb,
             {.help = "Size of all gradients in MB (1e6 bytes): 4 x parameters in fp32.",
              .group = step,
              .min = 0,
              .max = 1e7,
              .metavar = "MB"});
  parser.add("grad_accum_steps", &flags.grad_accum_steps,
             {.help = "Micro-batches per optimizer step; only the last one reduces gradients, except with --shard "
                      "gradients.",
              .group = step,
              .min = 1,
              .max = 1e6});
  parser.add("run", &flags.run,
             {.help = "Output folder of a run on one device. Gives the defaults of the three flags above.",
              .group = step,
              .path = PathKind::kInput});
  parser.add("bucket_mb", &flags.bucket_mb,
             {.help = "Largest bucket of gradients in MB.", .group = step, .min = 1e-3, .max = 1e7, .metavar = "MB"});
  parser.add("update_share", &flags.update_share,
             {.help = "Share of the step outside forward and backward.", .group = step, .min = 0, .max = 0.99});
}

void add_cluster_flags(ConfigParser& parser, ScaleFlags& flags) {
  const std::string cluster = "Devices";
  parser.add("devices", &flags.devices, {.help = "Devices per machine.", .group = cluster, .min = 1, .max = 1024});
  parser.add("nodes", &flags.nodes, {.help = "Number of machines.", .group = cluster, .min = 1, .max = 65536});
  parser.add("inside", &flags.inside,
             {.help = "Link between devices of one machine: a name, <microseconds>,<GB/s>, or measure (Gloo on this "
                      "machine).",
              .group = cluster,
              .metavar = "LINK",
              .needs = {{"devices", {"1"}, /*excludes=*/true}}});
  parser.add("between", &flags.between,
             {.help = "Link between machines, as for --inside.",
              .group = cluster,
              .metavar = "LINK",
              .needs = {{"nodes", {"1"}, /*excludes=*/true}}});
  parser.add(
      "algorithm", &flags.algorithm,
      {{"best", AllReduceAlgorithm::kBest}, {"ring", AllReduceAlgorithm::kRing}, {"tree", AllReduceAlgorithm::kTree}},
      {.help = "All-reduce algorithm.", .group = cluster});
  parser.add("batch", &flags.batch_grows, {{"grows", true}, {"fixed", false}},
             {.help = "grows: the batch per device is fixed. fixed: the global batch is fixed and divided.",
              .group = cluster});
  parser.add("cuda_graph", &flags.graphs, {{"on", true}, {"off", false}},
             {.help = "Whether steps are CUDA graphs, with the status all-reduce of the ranks on the devices.",
              .group = cluster});
  parser.add("shard", &flags.shard,
             {{"none", Sharding::kNone}, {"optimizer", Sharding::kOptimizer}, {"gradients", Sharding::kGradients}},
             {.help = "What the devices divide among them, as --shard of the trainers.", .group = cluster});
  parser.add("interference", &flags.interference,
             {.help = "Slowdown of backward during an all-reduce: 0 none, 1 complete stop.",
              .group = cluster,
              .min = 0,
              .max = 1});
  parser.add("contention", &flags.contention,
             {.help = "Extra compute time per additional device on a machine, as a share.",
              .group = cluster,
              .min = 0,
              .needs = {{"devices", {"1"}, /*excludes=*/true}}});
}

void add_output_flags(ConfigParser& parser, ScaleFlags& flags) {
  const std::string output = "Output";
  parser.add("measured", &flags.measured,
             {.help = "Measured steps to compare with, as devices:seconds, such as 2:0.231,4:0.262.",
              .group = output,
              .metavar = "N:S"});
  parser.add("json", &flags.json, {.help = "Print JSON instead of a table.", .group = output, .flag_only = true});
  parser.add("plot", &flags.plot,
             {.help = "SVG file to write the speed-up and the efficiency to.",
              .group = output,
              .path = PathKind::kOutput,
              .metavar = "FILE.svg"});
}

/// A line of the table: a prediction and, if given, a measured step.
struct Row {
  int64_t nodes = 1;
  ScalingPrediction prediction = {};
  /// 0 means not measured.
  double measured_seconds = 0;
};

absl::StatusOr<Link> read_link(const ConfigParser& parser, const std::string& flag, const std::string& value) {
  if (value == "measure") {
    TRAINKIT_ASSIGN_OR_RETURN(const std::vector<AllReduceSample> samples, measure_gloo(2));
    return fit_link(2, samples.front().bytes, samples.front().seconds, samples.back().bytes, samples.back().seconds);
  }
  absl::StatusOr<Link> link = parse_link(value);
  if (link.ok()) return link;
  const Error error = error_of(link.status()).value();
  return parser.invalid(flag, error.problem, error.expected, error.hint);
}

absl::StatusOr<StepCost> read_step(const ConfigParser& parser, ScaleFlags& flags) {
  if (!flags.run.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const MeasuredStep measured, read_measured_step(flags.run));
    if (flags.step_seconds == 0) flags.step_seconds = measured.seconds;
    if (flags.gradient_mb == 0) flags.gradient_mb = static_cast<double>(measured.gradient_bytes) / 1e6;
    if (!parser.is_given("grad_accum_steps")) flags.grad_accum_steps = measured.micro_steps;
  }
  if (flags.step_seconds == 0)
    return parser.invalid("step_seconds", "needed", "a number above 0",
                          "give --step_seconds 0.21 or --run runs/transformer");
  if (flags.gradient_mb == 0)
    return parser.invalid("gradient_mb", "needed", "a number above 0",
                          "4 bytes per parameter: 25 M parameters need 100");
  constexpr double kMostBuckets = 1e6;
  if (flags.gradient_mb / flags.bucket_mb > kMostBuckets) {
    return parser.invalid("bucket_mb", "divides the gradients into more than 1000000 buckets",
                          fmt::format("at least {:g}", flags.gradient_mb / kMostBuckets));
  }
  return make_step_cost(flags.step_seconds, std::llround(flags.gradient_mb * 1e6),
                        {.bucket_bytes = std::llround(flags.bucket_mb * 1e6),
                         .update_share = flags.update_share,
                         .micro_steps = flags.grad_accum_steps});
}

absl::StatusOr<Cluster> read_cluster(const ConfigParser& parser, const ScaleFlags& flags) {
  Cluster cluster{.devices_per_node = flags.devices, .nodes = flags.nodes, .algorithm = flags.algorithm};
  const std::string hint = "nvlink4, pcie4, eth100, ...; --help lists all";
  if (flags.devices > 1 && flags.inside.empty())
    return parser.invalid("inside", "needed with several devices", "a link", hint);
  if (flags.nodes > 1 && flags.between.empty())
    return parser.invalid("between", "needed with several machines", "a link", hint);
  if (!flags.inside.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(cluster.inside, read_link(parser, "inside", flags.inside));
  }
  if (!flags.between.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(cluster.between, read_link(parser, "between", flags.between));
  }
  return cluster;
}

/// Returns 1, 2, 4, ... and `last` itself.
std::vector<int64_t> doublings(int64_t last) {
  std::vector<int64_t> numbers;
  for (int64_t n = 1; n < last; n *= 2) numbers.push_back(n);
  numbers.push_back(last);
  return numbers;
}

absl::StatusOr<std::vector<std::pair<int64_t, double>>> read_measured(const ConfigParser& parser,
                                                                      const ScaleFlags& flags) {
  std::vector<std::pair<int64_t, double>> measured;
  for (const std::string& text : flags.measured) {
    int64_t devices = 0;
    double seconds = 0;
    const char* const end = text.data() + text.size();
    const auto number = std::from_chars(text.data(), end, devices);
    const bool colon = number.ptr != end && *number.ptr == ':';
    if (!colon || std::from_chars(number.ptr + 1, end, seconds).ptr != end || devices < 1 || !(seconds > 0))
      return parser.invalid("measured", "not in the form devices:seconds", "such as 2:0.231");
    measured.emplace_back(devices, seconds);
  }
  return measured;
}

std::vector<Row> predict(const StepCost& step, const Cluster& whole, const ScalingOptions& options,
                         const std::vector<std::pair<int64_t, double>>& measured) {
  std::vector<Row> rows;
  const auto add = [&](int64_t devices, int64_t nodes) {
    Cluster cluster = whole;
    cluster.devices_per_node = devices;
    cluster.nodes = nodes;
    Row row{.nodes = nodes, .prediction = predict_scaling(step, cluster, options)};
    for (const auto& [n, seconds] : measured) {
      if (n == cluster.devices()) row.measured_seconds = seconds;
    }
    rows.push_back(row);
  };
  for (const int64_t devices : doublings(whole.devices_per_node)) add(devices, 1);
  for (const int64_t nodes : doublings(whole.nodes)) {
    if (nodes > 1) add(whole.devices_per_node, nodes);
  }
  return rows;
}

std::string table(const StepCost& step, const std::vector<Row>& rows) {
  const bool measured = std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.measured_seconds > 0; });
  std::string out = fmt::format("{:>8} {:>6} {:>12} {:>14} {:>14} {:>9} {:>11}", "devices", "nodes", "step (ms)",
                                "communication", "not hidden", "speed-up", "efficiency");
  if (measured) out += fmt::format(" {:>14} {:>7}", "measured (ms)", "error");
  out += "\n";
  for (const Row& row : rows) {
    const ScalingPrediction& p = row.prediction;
    out += fmt::format("{:>8} {:>6} {:>12.2f} {:>11.2f} ms {:>11.2f} ms {:>8.2f}x {:>10.1f}%", p.devices, row.nodes,
                       p.step_seconds * 1e3, p.communication_seconds * 1e3, p.exposed_seconds * 1e3, p.speedup,
                       p.efficiency * 100);
    if (row.measured_seconds > 0)
      out += fmt::format(" {:>14.2f} {:>+6.1f}%", row.measured_seconds * 1e3,
                         (p.step_seconds / row.measured_seconds - 1) * 100);
    out += "\n";
  }
  return out + fmt::format("\nfrom a step of {:.2f} ms on one device with {} buckets\n", step.seconds() * 1e3,
                           step.bucket_bytes.size());
}

std::string json(const StepCost& step, const Cluster& cluster, const std::vector<Row>& rows) {
  const auto link = [](const Link& l) {
    return nlohmann::ordered_json{{"latency_seconds", l.latency_seconds}, {"bytes_per_second", l.bytes_per_second}};
  };
  nlohmann::ordered_json out = {{"step",
                                 {{"forward_seconds", step.forward_seconds},
                                  {"backward_seconds", step.backward_seconds},
                                  {"update_seconds", step.update_seconds},
                                  {"bucket_bytes", step.bucket_bytes}}},
                                {"inside", link(cluster.inside)},
                                {"between", link(cluster.between)},
                                {"predictions", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) {
    const ScalingPrediction& p = row.prediction;
    nlohmann::ordered_json line = {{"devices", p.devices},
                                   {"nodes", row.nodes},
                                   {"step_seconds", p.step_seconds},
                                   {"messages", p.messages},
                                   {"sent_bytes", p.sent_bytes},
                                   {"communication_seconds", p.communication_seconds},
                                   {"exposed_seconds", p.exposed_seconds},
                                   {"speedup", p.speedup},
                                   {"efficiency", p.efficiency}};
    if (row.measured_seconds > 0) line["measured_step_seconds"] = row.measured_seconds;
    out["predictions"].push_back(line);
  }
  return out.dump(2) + "\n";
}

/// How each plot begins.
constexpr char kPlotBegin[] =
    R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 900" width="800" height="900">)"
    "\n";

/// Draws the speed-up and, below it, the efficiency: the speed-up divided by the number of devices.
absl::Status write_plot(const std::string& path, const StepCost& step, bool batch_grows, const std::vector<Row>& rows) {
  std::vector<PlotLine> lines = {{"predicted", {}}, {"linear", {}}, {"measured", {}}};
  for (const Row& row : rows) {
    const ScalingPrediction& p = row.prediction;
    lines[0].points.emplace_back(p.devices, p.speedup);
    lines[1].points.emplace_back(p.devices, static_cast<double>(p.devices));
    const double n = batch_grows ? static_cast<double>(p.devices) : 1;
    if (row.measured_seconds > 0) lines[2].points.emplace_back(p.devices, n * step.seconds() / row.measured_seconds);
  }
  if (lines[2].points.empty()) lines.pop_back();
  std::vector<PlotLine> shares = lines;
  for (PlotLine& line : shares) {
    for (auto& [devices, value] : line.points) value = 100 * value / static_cast<double>(devices);
  }
  const std::string title = fmt::format("Scaling of a step of {:.4g} ms", 1e3 * step.seconds());
  std::string efficiency = draw_plot("Efficiency", "efficiency (%)", shares);
  efficiency.insert(sizeof "<svg" - 1, " y=\"450\"");
  return write_file_atomically(Fs::posix(), path,
                               kPlotBegin + draw_plot(title, "speed-up", lines) + efficiency + "</svg>\n");
}

}  // namespace

absl::StatusOr<int> scale_command(const Arguments& arguments) {
  ConfigParser parser(
      {.name = "trainkit scale",
       .version = library_versions()["trainkit"],
       .description =
           "Predicts speed-up and efficiency on more devices from one measured step and the latency and bandwidth of "
           "each link.\n"
           "Links: loopback, eth10, eth25, eth100, ib100, ib4x100, pcie3, pcie4, nvlink2, nvlink4.",
       .examples = {"trainkit scale --step_seconds 0.1 --gradient_mb 102 --devices 8 --inside nvlink2",
                    "trainkit scale --run runs/transformer --devices 2 --inside measure --interference 1",
                    "trainkit scale --step_seconds 0.1 --gradient_mb 102 --devices 8 --nodes 4 --inside nvlink4 "
                    "--between eth100 --plot scaling.svg"},
       .help_flags = {"step_seconds", "gradient_mb", "run", "devices", "nodes", "inside", "between", "batch",
                      "measured", "plot", "json"}});
  ScaleFlags flags;
  add_step_flags(parser, flags);
  add_cluster_flags(parser, flags);
  add_output_flags(parser, flags);
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted) return 0;
  TRAINKIT_RETURN_IF_ERROR(parser.check_used({}));
  TRAINKIT_RETURN_IF_ERROR(check_replaced("--plot", flags.plot, {kPlotBegin}, "a plot of this command"));
  TRAINKIT_ASSIGN_OR_RETURN(const StepCost step, read_step(parser, flags));
  TRAINKIT_ASSIGN_OR_RETURN(const Cluster cluster, read_cluster(parser, flags));
  TRAINKIT_ASSIGN_OR_RETURN(const auto measured, read_measured(parser, flags));
  const ScalingOptions options{.batch_grows = flags.batch_grows,
                               .interference = flags.interference,
                               .contention = flags.contention,
                               .shards = flags.shard != Sharding::kNone,
                               .reductions = flags.shard == Sharding::kGradients ? flags.grad_accum_steps : 1,
                               .graphs = flags.graphs};
  const std::vector<Row> rows = predict(step, cluster, options, measured);
  if (!flags.plot.empty()) TRAINKIT_RETURN_IF_ERROR(write_plot(flags.plot, step, options.batch_grows, rows));
  print(flags.json ? json(step, cluster, rows) : table(step, rows));
  return 0;
}

}  // namespace trainkit::tool
