#include "check.h"

#include <torch/torch.h>

#include "compare.h"
#include "distributed/rank_threads.h"
#include "exported.h"
#include "made.h"
#include "oracle.h"
#include "run.h"
#include "temp_dir.h"

namespace trainkit::differential {
namespace {

/// Runs a program on `count` ranks, each a thread of this process.
std::vector<Record> run_on_ranks(const Spec& spec, int64_t count, Sharding sharding) {
  std::vector<Record> records(static_cast<size_t>(count));
  const auto run = [&](ProcessGroup& group) {
    at::set_num_threads(1);
    records[static_cast<size_t>(group.rank())] =
        run_program(spec, {.group = std::shared_ptr<ProcessGroup>(&group, [](ProcessGroup*) {}), .sharding = sharding});
    return absl::OkStatus();
  };
  const auto texts = test::on_ranks(count, run, {.timeout = std::chrono::seconds(10)});
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank] != "ok") put(records[rank], "error/" + texts[rank], 1);
  }
  return records;
}

double floor_of(const Spec& spec) { return spec.dtype == "float64" ? 1e-7 : spec.dtype == "float32" ? 1e-6 : 1e-2; }

std::vector<std::string> compare_with_torch(const Spec& spec, const Oracle& oracle) {
  const Record ours = run_program(spec), theirs = oracle.run(spec);
  if (spec.dtype == "float64") return compare(ours, theirs, {});
  Tolerance tolerance{.relative = floor_of(spec), .reordered = {oracle.run(spec, 1)}};
  std::vector<std::string> lines = compare(ours, theirs, tolerance);
  if (lines.empty()) return lines;
  // One order of the rows may round alike by chance, so that a difference is looked at closer.
  for (int64_t order = 2; order <= 8; ++order) tolerance.reordered.push_back(oracle.run(spec, order));
  const Record exact = oracle.run_exact(spec);
  tolerance.exact = &exact;
  return compare(ours, theirs, tolerance);
}

std::vector<std::string> compare_ranks(const Spec& spec) {
  const Sharding sharding = spec.sharding == "optimizer"   ? Sharding::kOptimizer
                            : spec.sharding == "gradients" ? Sharding::kGradients
                                                           : Sharding::kNone;
  Record one = run_program(spec, {.joins = has_buffer(spec) ? spec.parts : 1});
  std::vector<Record> ranks = run_on_ranks(spec, spec.parts, sharding);
  const auto is_own = [](const auto& entry) {  // a rank has its own
    return entry.first.ends_with("/step_loss") || entry.first.find("/episode") != std::string::npos;
  };
  std::erase_if(one, is_own);
  for (Record& record : ranks) std::erase_if(record, is_own);
  const bool divided = sharding != Sharding::kNone;
  std::vector<std::string> lines = compare(ranks[0], one, {.relative = floor_of(spec), .only_common = divided});
  for (size_t rank = 1; rank < ranks.size() && lines.empty(); ++rank) {
    lines = compare(ranks[rank], ranks[0], {.relative = floor_of(spec), .only_common = divided});
  }
  return lines;
}

/// A run that was stopped, or killed in `folder`, against one that was not.
std::vector<std::string> compare_resumed(const Spec& spec, const std::string& folder) {
  if (spec.loop == "step") {
    Record resumed = run_program(spec, {.resume_at = spec.at_step}), undisturbed = run_program(spec);
    // The number of skips in a row belongs to the step, which the loop makes anew.
    for (Record* record : {&resumed, &undisturbed}) {
      std::erase_if(*record, [](const auto& entry) { return entry.first.ends_with("/skipped"); });
    }
    return compare(resumed, undisturbed, {.relative = 0});
  }
  const test::TempDir whole, own;
  const Record undisturbed = run_program(spec, {.folder = whole.path().string()});
  const std::string place = folder.empty() ? own.path().string() : folder;
  if (folder.empty()) run_program(spec, {.stop_at = spec.at_step, .folder = place});
  const Record resumed = run_program(spec, {.stop_at = spec.at_step, .folder = place, .resumes = true});
  return compare(resumed, undisturbed, {.relative = 0, .only_common = true});
}

/// A run with events against one without.
std::vector<std::string> compare_without_events(const Spec& spec) {
  Spec without = spec;
  without.events = false;
  Record watched = run_program(spec);
  std::erase_if(watched, [](const auto& entry) {
    return entry.first.ends_with("gradients") || entry.first.ends_with("/step_loss");
  });
  return compare(watched, run_program(without), {.relative = 0});
}

/// A session whose batches come from a queue or from the caller against one of a Prefetcher, and one of a buffer
/// against the same batches from the caller.
std::vector<std::string> compare_sources(const Spec& spec) {
  Spec other = spec;
  other.source = has_buffer(spec) ? "drawn" : "";
  Record ours = run_program(spec), theirs = run_program(other);
  for (Record* record : {&ours, &theirs}) {  // other sources have no epochs
    std::erase_if(
        *record, [](const auto& entry) { return entry.first.ends_with("/epoch") || entry.first.ends_with("/epochs"); });
  }
  return compare(ours, theirs, {.relative = 0});
}

}  // namespace

std::vector<std::string> check(const Spec& spec, const Oracle* oracle, const std::string& folder) {
  if (spec.exported == kToExport) {
    const test::TempDir dir;
    return oracle ? check(with_exported_model(spec, *oracle, dir / "model.tkm"), oracle, folder)
                  : std::vector<std::string>();
  }
  if (spec.oracle == "torch") return oracle ? compare_with_torch(spec, *oracle) : std::vector<std::string>();
  if (spec.oracle == "ranks" || spec.oracle == "shards") return compare_ranks(spec);
  if (spec.oracle == "resume") return compare_resumed(spec, folder);
  const double near = floor_of(spec);
  if (spec.oracle == "replicas") {
    const Setup setup{.replicas = spec.parts, .share_weights = !spec.own_weights};
    return compare(run_program(spec, setup), run_program(spec), {.relative = near});
  }
  if (spec.oracle == "accumulation") {
    return compare(run_program(spec, {.micro_batches = spec.parts}), run_program(spec), {.relative = near});
  }
  if (spec.oracle == "retry") {
    return compare(run_program(spec, {.fail_at = spec.at_step}), run_program(spec, {.split_from = spec.at_step}),
                   {.relative = 0});
  }
  const Setup on_replicas{.replicas = spec.on_replicas ? spec.parts : 1};
  if (spec.oracle == "events") return compare_without_events(spec);
  if (spec.oracle == "sources") return compare_sources(spec);
  if (spec.oracle == "workers") {
    Spec alone = spec;
    alone.workers = 0;
    return compare(run_program(spec, on_replicas), run_program(alone, on_replicas), {.relative = 0});
  }
  return compare(run_program(spec, on_replicas), run_program(spec, on_replicas), {.relative = 0});
}

void run_until_killed(const Spec& spec, const std::string& folder) {
  run_program(spec, {.stop_at = spec.at_step, .kills = true, .folder = folder});
}

}  // namespace trainkit::differential
