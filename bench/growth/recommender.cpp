// The recommender's rows of `./dev bench --growth`, see rows.cpp: growth_recommender ROW SIZE FOLDER.
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>

#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/ranking.h"
#include "gpt2_recommender/ratings.h"
#include "measure.h"
#include "trainkit/core/random.h"

namespace trainkit::rec {
namespace {

using namespace bench;

constexpr int64_t kEventsPerUser = 50;
constexpr int64_t kFirstGroup = 8;
constexpr int64_t kItems = kFirstGroup * kEventsPerUser * kEventsPerUser;  // 20,000

/// Writes `events` events, up to kEventsPerUser of each user, in the order of their times, and returns the file.
std::string write_events(int64_t events, const std::string& folder) {
  const int64_t users = (events + kEventsPerUser - 1) / kEventsPerUser;
  std::string path = folder + "/events.inter";
  std::ofstream file(path);
  file << "user_id:token\titem_id:token\trating:float\ttimestamp:float\n";
  for (int64_t i = 0; i < events; ++i) {
    // A user chooses one item of each of kEventsPerUser groups, which grow: few items are popular.
    const int64_t user = i % users, group = i / users, width = kFirstGroup * (2 * group + 1);
    const int64_t item = kFirstGroup * group * group + (user * 7919 + group) % width;
    file << fmt::format("{}\t{}\t{}\t{}\n", user, item, 1 + i % 5, 1'000'000'000 + 10 * i);
  }
  return path;
}

struct Data {
  Interactions interactions = {};
  Split split = {};
};

Data read_and_split(const std::string& path) {
  Data data{.interactions = filter_ratings(read_ratings(path).value()).value()};
  data.split = make_split(data.interactions, {.mode = "leave_one_out"}).value();
  return data;
}

/// Reads and splits a file of `size` events.
void reading(int64_t size, const std::string& folder) {
  const std::string path = write_events(size, folder);
  measure([&] { read_and_split(path); });
}

/// Ranks up to kItems items for `size` users, with a model of 64 values and by popularity. On one thread, because the
/// time of threads that wait counts as processor time.
void ranking(int64_t size, const std::string& folder) {
  at::set_num_threads(1);
  const Data data = read_and_split(write_events(size * kEventsPerUser, folder));
  const at::Tensor users = at::randn({size, 64}), items = at::randn({data.interactions.num_items(), 64});
  const Ranking ranking = Ranking::create(data.interactions, data.split, {}).value();
  measure([&] {
    ranking.score(users, items);
    ranking.score_popularity();
  });
}

/// Reads from a run of `size` events which items a user has, as `recommend --user` does.
void recommend_user(int64_t size, const std::string& folder) {
  const Data data = read_and_split(write_events(size, folder));
  const std::string path = folder + "/" + kSeenFile;
  require(save_seen(path, UserItems(data.interactions, data.split, {Part::kTrain, Part::kValidation, Part::kTest})));
  measure([&] { require(load_seen(path, data.interactions, std::vector<int64_t>{7}).status()); });
}

}  // namespace
}  // namespace trainkit::rec

int main(int count, char** words) {
  using namespace trainkit;
  return bench::run_row(count, words,
                        {{"reading", rec::reading}, {"ranking", rec::ranking}, {"recommend", rec::recommend_user}});
}
