// Several players in a step.
#include "trainkit/train/player.h"

#include <mutex>

#include "distributed/rank_threads.h"
#include "test_util.h"
#include "train/gan.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

std::unique_ptr<DeviceReplicator> gan_devices(const DeviceReplicatorOptions& options = {.device = at::kCPU}) {
  const auto make = [] {
    static std::mutex making;  // ranks are threads with one generator
    const std::lock_guard lock(making);
    torch::manual_seed(2);
    return Gan();
  };
  return DeviceReplicator::create(make, options).value();
}

std::vector<at::Tensor> copies_of_gan(const torch::nn::Module& model) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : model.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

bool same_gan_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

std::string problem_of(const std::vector<Player>& players, const TrainStepOptions& options = {}) {
  const auto devices = gan_devices();
  try {
    const TrainStep step(*devices, players, gan_fake, options);
  } catch (...) {
    const absl::Status status = status_from_current_exception();
    REQUIRE(exit_code(status) == ExitCode::kUsage);
    return std::string(status.message());
  }
  return "";
}

/// Returns what run(options, rank, 2) returns on each of two ranks.
template <class F>
std::vector<std::vector<at::Tensor>> on_two_ranks(const F& run) {
  std::vector<std::vector<at::Tensor>> of_ranks(2);
  const auto texts = on_ranks(2, [&](ProcessGroup& group) -> absl::Status {
    try {
      of_ranks[static_cast<size_t>(group.rank())] =
          run({.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}}, group.rank(), 2);
      return absl::OkStatus();
    } catch (...) {
      return status_from_current_exception();
    }
  });
  for (const std::string& text : texts) REQUIRE(text == "ok");
  return of_ranks;
}

}  // namespace

TEST_CASE("Players have the bits of a loop by hand", "[train][player]") {
  const auto ours = gan_devices(), byhand = gan_devices();
  std::vector<Player> players = gan_players();
  players[0].grad_clip = 0.05;
  players[0].schedule = step_lr(2, 0.5);
  players[1].every = 2;
  TrainStep step(*ours, players, gan_fake, {});

  Gan gan(std::dynamic_pointer_cast<GanImpl>(byhand->module()));
  Adam d({.lr = 1e-2}), g({.lr = 5e-3});
  d.add_param_groups(d.groups_for(*gan->discriminator));
  g.add_param_groups(g.groups_for(*gan->generator));
  LRScheduler schedule(d, step_lr(2, 0.5));
  for (int64_t i = 0; i < 6; ++i) {
    const StepMetrics metrics = step(gan_batch(i));
    const Batch batch = gan_batch(i);
    const Shared shared = gan_fake(gan, batch);
    d.zero_grad();
    const at::Tensor d_loss = loss_of_d(gan, batch, shared).loss;
    d_loss.backward();
    const at::Tensor norm = clip_grad_norm_(d, 0.05);
    d.step();
    schedule.step();
    const auto value_of = [&](const std::string& name) {
      for (const auto& [key, value] : metrics.metrics) {
        if (key == name) return value.item<float>();
      }
      return -1.0F;
    };
    CHECK(metrics.loss.item<float>() == d_loss.item<float>());
    CHECK(value_of("d.loss") == d_loss.item<float>());
    CHECK(value_of("d.grad_norm") == norm.item<float>());
    if (i % 2 == 1) {
      g.zero_grad();
      const at::Tensor g_loss = loss_of_g(gan, batch, shared).loss;
      g_loss.backward();
      g.step();
      CHECK(value_of("g.loss") == g_loss.item<float>());
    } else {
      CHECK(value_of("g.loss") == -1.0F);
    }
    CHECK(same_gan_bits(copies_of_gan(*ours->module()), copies_of_gan(*gan)));
  }
}

TEST_CASE("A player leaves the gradients and flags of the others as they are", "[train][player]") {
  const auto devices = gan_devices();
  std::vector<Player> players = gan_players();
  const at::Tensor weight = devices->module()->named_parameters()["discriminator.0.weight"];
  weight.mutable_grad() = torch::ones_like(weight);
  bool trained = false;
  players[1].loss = [&](Gan& gan, const Batch& batch, const Shared& shared) {
    trained = gan->discriminator->parameters()[0].requires_grad();
    return loss_of_g(gan, batch, shared);
  };
  players.erase(players.begin());
  TrainStep step(*devices, players, gan_fake, {});
  step(gan_batch(0));
  CHECK(trained);
  CHECK(weight.grad().equal(torch::ones_like(weight)));
  CHECK_FALSE(devices->module()->named_parameters()["discriminator.3.weight"].grad().defined());
}

TEST_CASE("Players on replicas and ranks train as on one device", "[train][player]") {
  const auto run = [](const DeviceReplicatorOptions& options, int64_t rank, int64_t ranks) {
    const auto devices = gan_devices(options);
    std::vector<Player> players = gan_players();
    players[1].every = 2;
    players[0].grad_clip = 0.5;
    TrainStep step(*devices, players, gan_fake, {});
    std::vector<double> losses;
    for (int64_t i = 0; i < 5; ++i) {
      StepMetrics metrics = step(gan_batch(i).slice(12 * rank / ranks, 12 * (rank + 1) / ranks));
      step.average_over_ranks(metrics);
      losses.push_back(metrics.metrics.back().second.item<double>());
    }
    std::vector<at::Tensor> copies = copies_of_gan(*devices->module(devices->replicas() - 1));
    copies.push_back(torch::tensor(losses));
    return copies;
  };
  const auto one = run({.device = at::kCPU}, 0, 1);
  const auto check = [&](const std::vector<at::Tensor>& other) {
    for (size_t i = 0; i < one.size(); ++i) CHECK(at::allclose(other[i], one[i], 1e-4, 1e-6));
  };
  check(run({.device = at::kCPU, .cpu_replicas = 2, .share_weights = true}, 0, 1));
  check(run({.device = at::kCPU, .cpu_replicas = 3, .share_weights = false}, 0, 1));
  for (const auto& other : on_two_ranks(run)) check(other);
}

TEST_CASE("Micro-batches of players: detached tensors are kept, a graph is refused", "[train][player]") {
  const auto detached = [](Gan& gan, const Batch& batch) {
    return Shared{{"fake", gan_fake(gan, batch).at("fake").detach()}};
  };
  const auto d_alone = [] {
    std::vector<Player> players = gan_players();
    players.pop_back();
    return players;
  };
  const auto run = [&](int64_t parts, const SharedFunction& shared) {
    const auto devices = gan_devices();
    TrainStep step(*devices, d_alone(), shared, {.grad_accum_steps = parts});
    for (int64_t i = 0; i < 3; ++i) {
      const Batch batch = gan_batch(i);
      for (int64_t part = 0; part < parts; ++part)
        step.accumulate(batch.slice(12 * part / parts, 12 * (part + 1) / parts));
      CHECK(step.accumulated() == parts);
      step.finish();
    }
    return copies_of_gan(*devices->module());
  };
  const auto whole = run(1, gan_fake), halves = run(2, detached);
  for (size_t i = 0; i < whole.size(); ++i) CHECK(at::allclose(whole[i], halves[i], 1e-4, 1e-6));
  CHECK_THROWS_WITH(run(2, gan_fake), Contains("tensor fake has a graph") && Contains("detached"));
}

TEST_CASE("A player that runs out of memory is retried alone", "[train][player]") {
  const auto run = [](bool fails) {
    const auto devices = gan_devices();
    std::vector<Player> players = gan_players();
    players[0].loss = [](Gan& gan, const Batch& batch) {
      return bce(gan->discriminator->forward(batch["x"]), 1) +
             bce(gan->discriminator->forward(gan->generator->forward(batch["z"]).detach()), 0);
    };
    players[1].loss = [fails, calls = 0](Gan& gan, const Batch& batch) mutable {
      if (++calls == 3 && fails) throw c10::OutOfMemoryError({__func__, __FILE__, 0}, "no memory");
      return bce(gan->discriminator->forward(gan->generator->forward(batch["z"])), 1);
    };
    TrainStep step(*devices, players, nullptr, {});
    std::vector<std::vector<at::Tensor>> weights;
    for (int64_t i = 0; i < 4; ++i) {
      step(gan_batch(i));
      weights.push_back(copies_of_gan(*devices->module()));
    }
    CHECK(step.split() == (fails ? 2 : 1));
    return weights;
  };
  const auto whole = run(false), retried = run(true);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t p = 0; p < whole[i].size(); ++p) CHECK(at::allclose(retried[i][p], whole[i][p], 1e-4, 1e-6));
  }
  // In the step of the retry, the discriminator was updated once, before it. Its parameters follow the generator's
  // four.
  for (size_t p = 4; p < 8; ++p) CHECK(retried[2][p].equal(whole[2][p]));
}

TEST_CASE("A retried player splits shared tensors by row if they are detached", "[train][player]") {
  enum class How { kWhole, kFails, kSplit };
  const auto run = [](How how) {
    const auto devices = gan_devices();
    std::vector<Player> players = gan_players();
    players.pop_back();
    players[0].loss = [how, calls = 0](Gan& gan, const Batch& batch, const Shared& shared) mutable {
      CHECK(shared.at("fake").size(0) == batch.size());
      if (++calls == 1 && how == How::kFails) throw c10::OutOfMemoryError({__func__, __FILE__, 0}, "no memory");
      return loss_of_d(gan, batch, shared);
    };
    const auto detached = [](Gan& gan, const Batch& batch) -> Shared {
      return {{"fake", gan->generator->forward(batch["z"]).detach()}};
    };
    TrainStep step(*devices, players, detached, {});
    if (how == How::kSplit) step.set_split(2);
    for (int64_t i = 0; i < 3; ++i) step(gan_batch(i));
    CHECK(step.split() == (how == How::kWhole ? 1 : 2));
    return copies_of_gan(*devices->module());
  };
  const auto whole = run(How::kWhole), retried = run(How::kFails);
  CHECK(same_gan_bits(retried, run(How::kSplit)));
  for (size_t i = 0; i < whole.size(); ++i) CHECK(at::allclose(retried[i], whole[i], 1e-4, 1e-6));
}

TEST_CASE("A player with a shared graph is not split", "[train][player]") {
  const auto devices = gan_devices();
  std::vector<Player> players = gan_players();
  int64_t calls = 0;
  players[1].loss = [&](Gan& gan, const Batch& batch, const Shared& shared) {
    if (++calls == 2) throw c10::OutOfMemoryError({__func__, __FILE__, 0}, "no memory");
    return loss_of_g(gan, batch, shared);
  };
  TrainStep step(*devices, players, gan_fake, {});
  step(gan_batch(0));
  CHECK_THROWS_WITH(step(gan_batch(1)), Contains("no memory"));

  // A split that an earlier run has left does not cut it either.
  const auto ours = gan_devices(), whole = gan_devices();
  TrainStep with_split(*ours, gan_players(), gan_fake, {}), without(*whole, gan_players(), gan_fake, {});
  with_split.set_split(4);
  for (int64_t i = 0; i < 2; ++i) {
    with_split(gan_batch(i));
    without(gan_batch(i));
  }
  CHECK(same_gan_bits(copies_of_gan(*ours->module()), copies_of_gan(*whole->module())));
}

TEST_CASE("Players with averages, and frozen parameters of one of them", "[train][player]") {
  const auto devices = gan_devices();
  std::vector<Player> players = gan_players();
  players[1].ema_decay = 0.9;
  TrainStep step(*devices, players, gan_fake, {});
  const at::Tensor frozen = devices->module()->named_parameters()["discriminator.0.weight"];
  const at::Tensor before = frozen.detach().clone();
  step(gan_batch(0));
  CHECK_FALSE(frozen.equal(before));
  const at::Tensor after = frozen.detach().clone();
  frozen.set_requires_grad(false);
  step(gan_batch(1));
  CHECK(frozen.equal(after));
  CHECK(step.averages().size() == 4);
  CHECK(step.averages()[0].first.starts_with("generator."));
}

TEST_CASE("WGAN-GP in float64: a penalty with a second derivative, five steps of the critic for one of the generator",
          "[train][player]") {
  const auto fake = [](Gan& gan, const Batch& batch) { return gan->generator->forward(batch["z"].to(at::kDouble)); };
  const auto critic = [fake](Gan& gan, const Batch& batch) {
    const at::Tensor real = batch["x"].to(at::kDouble), made = fake(gan, batch).detach();
    const at::Tensor share = batch["z"].slice(1, 0, 1).to(at::kDouble).sigmoid();
    const at::Tensor mixed = (share * real + (1 - share) * made).requires_grad_();
    const at::Tensor slope =
        torch::autograd::grad({gan->discriminator->forward(mixed).sum()}, {mixed}, {}, true, /*create_graph=*/true)[0];
    return gan->discriminator->forward(made).mean() - gan->discriminator->forward(real).mean() +
           10 * (slope.norm(2, {1}) - 1).square().mean();
  };
  const auto generator = [fake](Gan& gan, const Batch& batch) {
    return -gan->discriminator->forward(fake(gan, batch)).mean();
  };
  const auto run = [&](const DeviceReplicatorOptions& options, int64_t rank, int64_t ranks) {
    static std::mutex making;
    const auto devices = DeviceReplicator::create(
                             [] {
                               const std::lock_guard lock(making);
                               torch::manual_seed(2);
                               Gan gan;
                               gan->to(at::kDouble);
                               return gan;
                             },
                             options)
                             .value();
    std::vector<Player> players = gan_players();
    players[0].loss = critic;
    players[1].loss = generator;
    players[1].every = 5;
    TrainStep step(*devices, players, nullptr, {});
    for (int64_t i = 0; i < 10; ++i) step(gan_batch(i).slice(12 * rank / ranks, 12 * (rank + 1) / ranks));
    return copies_of_gan(*devices->module());
  };
  const auto one = run({.device = at::kCPU}, 0, 1);

  torch::manual_seed(2);
  Gan gan;
  gan->to(at::kDouble);
  Adam d({.lr = 1e-2}), g({.lr = 5e-3});
  d.add_param_groups(d.groups_for(*gan->discriminator));
  g.add_param_groups(g.groups_for(*gan->generator));
  for (int64_t i = 0; i < 10; ++i) {
    d.zero_grad();
    critic(gan, gan_batch(i)).backward();
    d.step();
    if (i % 5 != 4) continue;
    g.zero_grad();
    generator(gan, gan_batch(i)).backward();
    g.step();
  }
  CHECK(same_gan_bits(one, copies_of_gan(*gan)));
  CHECK(one[0].scalar_type() == at::kDouble);

  for (const auto& other : on_two_ranks(run)) {
    for (size_t i = 0; i < one.size(); ++i) CHECK(at::allclose(other[i], one[i], 1e-9, 1e-12));
  }
}

TEST_CASE("Players that cannot be are refused in one line", "[train][player]") {
  const auto with = [](const std::function<void(std::vector<Player>&)>& change) {
    std::vector<Player> players = gan_players();
    change(players);
    return problem_of(players);
  };
  CHECK(with([](auto&) {}) == "");
  CHECK_THAT(with([](auto& players) { players.clear(); }), Contains("at least one"));
  CHECK_THAT(with([](auto& players) { players[1].name = "d"; }), Contains("the name of two players"));
  CHECK_THAT(with([](auto& players) { players[1].name = "a b"; }), Contains("no name of a player"));
  CHECK_THAT(with([](auto& players) { players[1].parameters = {"*"}; }), Contains("belongs to d"));
  CHECK_THAT(with([](auto& players) { players[1].parameters = {"generatr.*"}; }), Contains("does not have"));
  CHECK_THAT(with([](auto& players) { players[1].parameters.clear(); }), Contains("has no parameters"));
  CHECK_THAT(with([](auto& players) { players[1].optimizer = nullptr; }), Contains("no optimizer"));
  CHECK_THAT(with([](auto& players) { players[1].optimizer = players[0].optimizer; }), Contains("of another player"));
  CHECK_THAT(with([](auto& players) { players[1].loss = nullptr; }), Contains("no loss"));
  CHECK_THAT(with([](auto& players) { players[0].every = 2; }), Contains("is the first player"));
  CHECK_THAT(problem_of(gan_players(), {.grad_clip = 1}), Contains("grad_clip: belongs to a player"));
  const auto devices = gan_devices();
  TrainStep step(*devices, gan_players(), gan_fake, {});
  CHECK_THROWS_WITH(step(gan_batch(0), LossFunction(loss_of_g)), Contains("pass the batch alone"));
}
