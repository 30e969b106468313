// Ranks whose steps are CUDA graphs with their collectives, on simulated devices and NCCL.
#include "cuda_sim/cuda_sim_control.h"
#include "ranks.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

struct RankEnd {
  int code = 0;
  std::string output;
  std::string errors;  // without the lines of the simulated device
  bool has_findings = false;
  NamedTensors weights;  // empty if the rank wrote none

  int64_t graphs() const {
    const size_t at = errors.find("graphs ");
    return at == std::string::npos ? -1 : std::stoll(errors.substr(at + 7));
  }
};

using RankEnds = std::vector<RankEnd>;

RankEnds run(const std::string& scenario, const std::string& graph, const std::string& sharding = "none",
             const std::vector<int>& waits_for = {0, 1}) {
  const TempDir folder;
  Ranks job("graph_rank", 2, {scenario, graph, sharding, folder.path().string()}, folder.path().string());
  RankEnds ends(2);
  for (const int rank : waits_for) {
    RankEnd& end = ends[static_cast<size_t>(rank)];
    end.code = job.wait(rank);
    end.output = job.out(rank);
    std::istringstream errors(job.err(rank));
    for (std::string line; std::getline(errors, line);) {
      const bool is_finding = line.starts_with("cuda_sim: ");
      end.has_findings |= is_finding;
      if (!is_finding) end.errors += line + "\n";
    }
    const std::string path = folder / ("rank" + std::to_string(rank) + ".safetensors");
    if (!std::filesystem::exists(path)) continue;
    const auto file = SafetensorsFile::open(path).value();
    for (const auto& entry : file.entries()) end.weights.emplace_back(entry.name, file.tensor(entry.name).value());
  }
  return ends;
}

void check_well(const RankEnds& ends) {
  for (const RankEnd& end : ends) {
    INFO(end.output << end.errors);
    REQUIRE(end.code == 0);
    CHECK(!end.has_findings);
    REQUIRE(!end.weights.empty());
  }
}

double difference(const RankEnd& a, const RankEnd& b) {
  double most = 0;
  REQUIRE(a.weights.size() == b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) {
    const at::Tensor change = (a.weights[i].second - b.weights[i].second).abs().to(at::kDouble);
    most = std::max(most, change.max().item<double>());
  }
  return most;
}

/// Runs the scenario eagerly and with graphs, and compares outputs and weights.
RankEnds check_as_eager(const std::string& scenario, const std::string& sharding = "none", double tolerance = 0) {
  INFO(scenario << ", --shard " << sharding);
  const RankEnds eager = run(scenario, "eager", sharding), graph = run(scenario, "graph", sharding);
  check_well(eager);
  check_well(graph);
  for (size_t rank = 0; rank < 2; ++rank) {
    INFO("rank " << rank << "\n" << graph[rank].errors);
    if (tolerance == 0) CHECK(graph[rank].output == eager[rank].output);
    CHECK(difference(graph[rank], eager[rank]) <= tolerance);
    CHECK(graph[rank].graphs() > 0);
  }
  if (scenario != "batch_norm") CHECK(difference(graph[0], graph[1]) == 0);  // each rank has statistics of its own
  return graph;
}

const std::vector<std::string> kShardings = {"none", "optimizer", "gradients"};

}  // namespace

#define NEEDS_SIM \
  if (!has_cuda_sim()) TRAINKIT_SKIP("needs the simulated device")

TEST_CASE("Captured steps of ranks have the bits of eager ones", "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  for (const std::string& sharding : kShardings) {
    for (const std::string scenario : {"plain", "accumulated"}) {
      const RankEnds ends = check_as_eager(scenario, sharding);
      CHECK(ends[0].graphs() == 9);  // of 14: two warm-up steps, two that are compared, and one that agrees
      CHECK(ends[1].graphs() == 9);
    }
  }
  check_as_eager("batch_norm");
}

TEST_CASE("A rank whose batch has another shape runs its step eagerly while the others replay theirs",
          "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  for (const std::string& sharding : kShardings) {
    const RankEnds ends = check_as_eager("odd", sharding);
    CHECK(ends[0].graphs() == 9);
    CHECK(ends[1].graphs() == 8);
    check_as_eager("few", sharding);
  }
}

TEST_CASE("A rank that runs out of memory in such a step splits it alone", "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  for (const std::string sharding : {"none", "optimizer"}) {
    const RankEnds ends = check_as_eager("odd_memory", sharding, 1e-6);
    CHECK_THAT(ends[1].output, Catch::Contains("split 1"));
  }
}

TEST_CASE("A rank that fails while others replay: every rank names it, and no weight changes",
          "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  for (const std::string& sharding : kShardings) {
    INFO("--shard " << sharding);
    const RankEnds eager = run("odd_throws", "eager", sharding), graph = run("odd_throws", "graph", sharding);
    for (const RankEnds& ends : {eager, graph}) {
      CHECK(ends[0].code == 8);
      CHECK_THAT(ends[0].errors, Catch::Contains("rank 1 failed at step 9: row 17 is not a picture"));
      CHECK(ends[1].code != 0);
      CHECK_THAT(ends[1].errors, Catch::Contains("row 17 is not a picture"));
    }
    CHECK(difference(graph[0], eager[0]) == 0);
    CHECK(!graph[0].has_findings);
  }
}

TEST_CASE("Captured steps of ranks with a norm over all ranks have the bits of eager ones",
          "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  for (const std::string scenario : {"sync_plain", "sync_accumulated"}) {
    const RankEnds ends = check_as_eager(scenario);
    CHECK(ends[0].graphs() == 9);
    CHECK(ends[1].graphs() == 9);
  }
  for (const std::string& sharding : kShardings) check_as_eager("sync_few", sharding);
}

TEST_CASE("A rank with a norm over all ranks that fails or is lost while others replay is named",
          "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  for (const std::string scenario : {"sync_odd_throws", "sync_odd_memory", "sync_killed"}) {
    const RankEnd end = run(scenario, "graph", "none", {0})[0];
    INFO(scenario << ": " << end.errors);
    CHECK(end.code == 8);
    CHECK_THAT(end.errors, Catch::StartsWith("trainkit: error[dist.peer] rank 1 "));
    CHECK_THAT(end.errors, Catch::Contains("at step 9") || Catch::Contains("at step 10"));
    if (scenario == std::string("sync_odd_throws")) {
      CHECK_THAT(end.errors, Catch::Contains("row 17 is not a picture"));
    }
  }
}

TEST_CASE("A rank that is lost while others replay is named with the step", "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  for (const std::string scenario : {"killed", "exits", "stopped", "leaves"}) {
    const RankEnd end = run(scenario, "graph", "none", {0})[0];
    INFO(scenario << ": " << end.errors);
    CHECK(end.code == 8);
    CHECK_THAT(end.errors, Catch::StartsWith("trainkit: error[dist.peer] rank 1 "));
    CHECK_THAT(end.errors, Catch::Contains("in a step on the devices"));
    CHECK_THAT(end.errors, Catch::Contains("at step 9") || Catch::Contains("at step 10"));
    if (scenario == std::string("leaves")) CHECK_THAT(end.errors, Catch::Contains("row 17 is not a picture"));
    CHECK(std::count(end.errors.begin(), end.errors.end(), '\n') == 1);
  }
}

TEST_CASE("Requests of a rank are agreed on two steps later, in the same step on all ranks",
          "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  for (const std::string scenario : {"stop", "saves"}) {
    const RankEnds ends = run(scenario, "graph");
    check_well(ends);
    for (const RankEnd& end : ends) CHECK_THAT(end.output, Catch::Contains("after step 11\n"));
    CHECK(difference(ends[0], ends[1]) == 0);
  }
}

TEST_CASE("Ranks return to eager steps together", "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  SECTION("if a capture fails on one of them") {
    const RankEnds eager = run("no_capture", "eager"), graph = run("no_capture", "graph");
    check_well(eager);
    for (size_t rank = 0; rank < 2; ++rank) {
      INFO(graph[rank].errors);
      REQUIRE(graph[rank].code == 0);
      CHECK(difference(graph[rank], eager[rank]) == 0);
      CHECK_THAT(graph[rank].errors, Catch::Contains("ended: "));
    }
    CHECK_THAT(graph[0].errors, Catch::Contains("rank 1 runs its steps without a CUDA graph"));
  }
  SECTION("if one of them drops its graphs") {
    const RankEnds ends = check_as_eager("drops");
    for (const RankEnd& end : ends) CHECK_THAT(end.errors, Catch::Contains("ended: "));
  }
  SECTION("if state is loaded, and capture again") {
    const RankEnds ends = check_as_eager("loads");
    for (const RankEnd& end : ends) CHECK_THAT(end.errors, Catch::Contains("captures 1, active: "));
  }
}

TEST_CASE("Ranks compare their graphs with an eager step after 1000 steps", "[train][graph_ranks_cuda][ranks]") {
  NEEDS_SIM;
  for (const RankEnd& end : check_as_eager("compared")) {
    CHECK(end.graphs() > 990);
    CHECK(end.graphs() < 1007);  // some steps in between were eager
    CHECK_THAT(end.errors, Catch::Contains("active: "));
  }
  const RankEnds changed = run("changes", "graph");
  check_well(changed);
  for (const RankEnd& end : changed) CHECK_THAT(end.errors, Catch::Contains("ended: steps differ: "));
}
