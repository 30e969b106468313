// A run resumed with another number of ranks reads the same rows in the same order.
#include <sstream>

#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Settings of a run that are independent of the ranks.
struct Shape {
  int64_t rows, global_batch, micro_batch;
};

/// Runs ranks of the small trainer that stop after `steps`.
std::vector<RankEnd> train(const Shape& shape, const TempDir& folder, int64_t world, int64_t steps, bool resume,
                           int64_t accumulation = 0, const std::string& shard = "none") {
  if (accumulation == 0) accumulation = shape.global_batch / world / shape.micro_batch;
  const auto text = [](int64_t number) { return std::to_string(number); };
  RanksOptions job{.world = world, .program = "trainkit-test-rank"};
  job.flags = {"--folder", folder.path().string(), "--steps",      text(steps), "--batch",      text(shape.micro_batch),
               "--accum",  text(accumulation),     "--save_every", "1000",      "--eval_every", "0",
               "--rows",   text(shape.rows)};
  job.flags.insert(job.flags.end(), {"--shard", shard});
  if (resume) job.flags.insert(job.flags.end(), {"--resume", "latest"});
  return RankJob(job, folder.path().string()).wait();
}

/// The rows of each micro-batch in the order of the whole epoch: position p of rank r of `world` has index p * world +
/// r.
std::vector<int64_t> rows_read(const TempDir& folder, int64_t world) {
  std::vector<std::vector<std::vector<int64_t>>> lines(static_cast<size_t>(world));
  for (int64_t rank = 0; rank < world; ++rank) {
    std::ifstream file(folder / ("rows." + std::to_string(rank)));
    for (std::string line; std::getline(file, line);) {
      std::istringstream numbers(line);
      std::vector<int64_t> row;
      for (int64_t number = 0; numbers >> number;) row.push_back(number);
      lines[static_cast<size_t>(rank)].push_back(row);
    }
  }
  std::vector<int64_t> together;
  for (size_t batch = 0; batch < lines[0].size(); ++batch) {
    for (size_t place = 0; place < lines[0][batch].size(); ++place) {
      for (const auto& rank : lines) {
        if (place < rank.at(batch).size()) together.push_back(rank[batch][place]);
      }
    }
  }
  return together;
}

std::vector<double> losses(const TempDir& folder) {
  std::ifstream file(folder / "losses.0");
  std::vector<double> values;
  std::string split;
  int64_t step = 0;
  for (double loss = 0; file >> split >> step >> loss;) {
    if (split == "train") values.push_back(loss);
  }
  return values;
}

template <class T>
void append(std::vector<T>& whole, const std::vector<T>& part) {
  whole.insert(whole.end(), part.begin(), part.end());
}

}  // namespace

TEST_CASE("A run resumed with other numbers of ranks reads the rows of an uninterrupted run in the same order",
          "[ranks][elastic]") {
  // 103 rows: six steps of 16 and one of 7 per epoch; with 4 ranks one has a padding row, which is not counted. 101
  // rows: 25 steps of 4 and one of a single row, in which three of 4 ranks have none.
  for (const Shape& shape : {Shape{103, 16, 2}, Shape{101, 4, 1}}) {
    const TempDir whole_folder, folder;
    const int64_t epoch = (shape.rows + shape.global_batch - 1) / shape.global_batch;
    const std::vector<std::pair<int64_t, int64_t>> parts = {{1, epoch - 2},     {2, epoch + 3},     {4, 2 * epoch},
                                                            {2, 2 * epoch + 2}, {4, 3 * epoch + 1}, {1, 3 * epoch + 3}};
    for (const RankEnd& end : train(shape, whole_folder, 1, parts.back().second, false)) REQUIRE(end.code == 0);
    const std::vector<int64_t> whole_rows = rows_read(whole_folder, 1);
    REQUIRE(static_cast<int64_t>(whole_rows.size()) == 3 * shape.rows + 3 * shape.global_batch);
    std::vector<int64_t> rows;
    std::vector<double> values;
    bool resume = false;
    for (const auto& [world, until] : parts) {
      const auto ends = train(shape, folder, world, until, resume);
      INFO(shape.rows << " rows, " << world << " ranks until step " << until << "\n" << describe(ends));
      for (const RankEnd& end : ends) REQUIRE(end.code == 0);
      append(rows, rows_read(folder, world));
      append(values, losses(folder));
      resume = true;
    }
    CHECK(rows == whole_rows);
    const std::vector<double> whole_values = losses(whole_folder);
    REQUIRE(values.size() == whole_values.size());
    for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == Approx(whole_values[i]).epsilon(1e-4));
  }
}

TEST_CASE("A run continues on other numbers of ranks whether they divide the training state or not",
          "[ranks][elastic][sharding]") {
  const Shape shape{103, 16, 2};
  struct Part {
    int64_t world, until;
    std::string shard;
  };
  const std::vector<Part> parts = {{4, 5, "gradients"},  {2, 9, "optimizer"}, {1, 12, "none"},
                                   {8, 16, "optimizer"}, {2, 20, "none"},     {4, 24, "optimizer"}};
  const TempDir whole_folder, folder;
  for (const RankEnd& end : train(shape, whole_folder, 1, parts.back().until, false)) REQUIRE(end.code == 0);
  std::vector<double> values;
  for (const Part& part : parts) {
    const auto ends = train(shape, folder, part.world, part.until, &part != &parts.front(), 0, part.shard);
    INFO(part.world << " ranks until step " << part.until << ", --shard " << part.shard << "\n" << describe(ends));
    for (const RankEnd& end : ends) REQUIRE(end.code == 0);
    append(values, losses(folder));
  }
  const std::vector<double> whole_values = losses(whole_folder);
  REQUIRE(values.size() == whole_values.size());
  for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == Approx(whole_values[i]).epsilon(1e-5));
}

TEST_CASE("Another number of ranks that changes the global batch is refused with exit code 8", "[ranks][elastic]") {
  const Shape shape{103, 16, 2};
  const TempDir folder;
  for (const RankEnd& end : train(shape, folder, 1, 5, false)) REQUIRE(end.code == 0);
  for (const auto& [world, accumulation] : {std::pair<int64_t, int64_t>{3, 3}, {2, 8}}) {
    const auto ends = train(shape, folder, world, 10, true, accumulation);
    INFO(describe(ends));
    for (const RankEnd& end : ends) {
      CHECK(end.code == 8);
      CHECK_THAT(end.errors, Catch::Contains("global_batch_size: the run had 16 rows per step on 1 devices"));
    }
  }
  for (const RankEnd& end : train(shape, folder, 2, 10, true)) CHECK(end.code == 0);
}
