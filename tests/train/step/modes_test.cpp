// Modes of modules hold for all replicas and ranks, and evaluations restore them and compute with the saved statistics.
#include <map>

#include "optim/optimizer_parts.h"
#include "train/graph/step_graphs.h"
#include "train/step/changed_model.h"
#include "train/tape.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("fit trains each module in its own mode, on every replica, and evaluations restore it", "[train][modes]") {
  for (const int64_t replicas : {1, 2}) {
    CAPTURE(replicas);
    const auto devices = DeviceReplicator::create([] { return make_net(/*trains_norm=*/false); },
                                                  {.cpu_replicas = replicas, .share_weights = false})
                             .value();
    const auto loader = net_rows(24, 6), validation = net_rows(8, 4);
    auto trainer = Trainer::create(*devices, SGD({.lr = 0.1}), {.max_steps = 4, .eval_every = 2}).value();
    RecordingLogger logger;
    REQUIRE(trainer
                .fit(*loader,
                     [](SyncNormNet& net, const Batch& batch) {
                       if (at::GradMode::is_enabled() && (!net->is_training() || net->norm->is_training())) {
                         throw std::runtime_error("another mode");
                       }
                       return at::cross_entropy_loss(net->forward(batch["x"]), batch["y"]);
                     },
                     {.validation = validation.get(), .logger = &logger})
                .ok());
    for (int64_t replica = 0; replica < replicas; ++replica) {
      CHECK(net_of(*devices, replica).norm->running_mean.eq(0.1).all().item<bool>());
      CHECK_FALSE(net_of(*devices, replica).norm->is_training());
      CHECK(net_of(*devices, replica).is_training());
    }
    CHECK(count_lines(logger, "evaluation mode") == 1);
    CHECK(count_lines(logger,
                      "note: 1 of 3 layers with trained parameters are in evaluation mode and stay so (norm)") == 1);
  }
}

TEST_CASE("A model in evaluation mode is trained in it, with one warning and the right step in errors",
          "[train][modes]") {
  for (const int64_t replicas : {1, 2}) {
    const auto make = [] {
      TinyNet net(0.5);
      net->eval();
      return net;
    };
    const auto devices = DeviceReplicator::create(make, {.cpu_replicas = replicas}).value();
    const auto loader = net_rows(24, 6);
    auto trainer = Trainer::create(*devices, SGD({.lr = 0.1}), {.max_epochs = 1}).value();
    RecordingLogger logger;
    int step = 0;
    const auto result = trainer.fit(*loader,
                                    [&](TinyNet& net, const Batch& batch) {
                                      if (net->is_training() || net->drop->is_training())
                                        throw std::runtime_error("another mode");
                                      if (replicas == 1 && ++step == 3) throw std::runtime_error("third");
                                      return tiny_loss(net, batch);
                                    },
                                    {.logger = &logger});
    CHECK(count_lines(logger, "warning: the model is in evaluation mode") == 1);
    if (replicas == 1)
      CHECK_THAT(std::string(result.status().message()), Catch::Contains("step 3: ") && Catch::Contains("third"));
    if (replicas == 2) CHECK(result.ok());
  }
}

TEST_CASE("A callback that leaves modules in another mode does not change that of the next steps", "[train][modes]") {
  for (const bool calls_train : {true, false}) {
    CAPTURE(calls_train);
    const auto devices = DeviceReplicator::create([] { return make_net(/*trains_norm=*/false); }).value();
    const auto loader = net_rows(24, 6), validation = net_rows(8, 4);
    auto trainer = Trainer::create(*devices, SGD({.lr = 0.1}), {.max_steps = 4, .eval_every = 1}).value();
    RecordingLogger logger;
    const FitOptions fit{.validation = validation.get(),
                         .on_evaluation = [&](int64_t, Metrics&) { devices->module()->train(calls_train); },
                         .logger = &logger};
    REQUIRE(trainer.fit(*loader, loss_of_net(), fit).ok());
    CHECK(net_of(*devices).is_training());
    CHECK_FALSE(net_of(*devices).norm->is_training());
    CHECK(net_of(*devices).norm->running_mean.eq(0.1).all().item<bool>());
    CHECK(count_lines(logger, "on_evaluation left modules in another mode") == 1);
  }
}

TEST_CASE("The modes of the first replica hold for all, also if they change between steps", "[train][modes]") {
  check_all_places(/*trains_norm=*/false, [](DeviceReplicator& devices, const auto& take) {
    SGD optimizer({.lr = 0.1});
    TrainStep step(devices, optimizer);
    take(step, 1);
    devices.module()->eval();
    take(step, 2);
    devices.module()->train();
    net_of(devices).norm->eval();
    take(step, 3);
    for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
      if (!net_of(devices, replica).is_training() || net_of(devices, replica).norm->is_training()) {
        throw std::runtime_error("another mode");
      }
    }
  });
}

TEST_CASE("An evaluation on several replicas or ranks is that of the model that is saved", "[train][evaluate]") {
  const auto loss_of = [](const torch::nn::Module& trained) {
    const auto one = DeviceReplicator::create([] { return make_net(true); }).value();
    NamedTensors tensors = named_tensors(trained);
    const at::NoGradGuard no_grad;
    for (auto& [name, tensor] : named_tensors(*one->module())) {
      for (const auto& [other, value] : tensors) {
        if (name == other) at::Tensor(tensor).copy_(value);
      }
    }
    return evaluate(*one, *net_rows(16, 16), loss_of_net()).value().at("loss");
  };
  std::map<Place, std::vector<std::pair<double, double>>> losses;  // logged, and of the saved model
  std::mutex mutex;
  for (const Place place : {Place::kShared, Place::kOwn, Place::kRanks}) {
    double saved = 0;
    std::vector<double> logged;
    train_on(place, /*trains_norm=*/true, [&](DeviceReplicator& devices, const auto& take) {
      SGD optimizer({.lr = 0.5});
      TrainStep step(devices, optimizer);
      for (uint64_t seed = 1; seed < 4; ++seed) take(step, seed);
      const ProcessGroup* group = devices.process_group();
      const int64_t rank = group ? group->rank() : 0, ranks = group ? 2 : 1;
      const auto loader =
          Prefetcher::create(tiny_dataset(16),
                             DistributedSampler(SequentialSampler(16), {.rank = rank, .world_size = ranks}),
                             {.batch_size = 8})
              .value();
      const double loss = evaluate(devices, *loader, loss_of_net()).value().at("loss");
      const std::lock_guard lock(mutex);
      logged.push_back(loss);
      if (rank == 0) saved = loss_of(*devices.module());
    });
    INFO("place " << static_cast<int>(place));
    for (const double loss : logged) CHECK(loss == Approx(saved).epsilon(1e-6));
  }
}

TEST_CASE("A captured step is captured again when modes, frozen layers or groups change", "[train][step_graphs]") {
  const auto run = [](bool captured) {
    torch::manual_seed(1);
    const auto make = [] {
      BatchNormNet net;
      net->drop->eval();  // a step that draws on the CPU is not captured
      return net;
    };
    const auto devices = DeviceReplicator::create(make).value();
    BatchNormNetImpl& net = *devices->module()->as<BatchNormNetImpl>();
    set_trained(*net.out, false);
    SGD optimizer({.lr = 0.1, .momentum = 0.9, .capturable = true});
    const auto live = [&] {
      std::vector<at::Tensor> all = devices->module()->parameters();
      for (const at::Tensor& buffer : devices->module()->buffers()) all.push_back(buffer);
      for (const auto& [name, value] : optimizer.state_dict()) {
        if (const auto* tensor = std::get_if<at::Tensor>(&value)) all.push_back(*tensor);
      }
      all.push_back(optimizer.step_count());
      for (const at::Tensor& lr : trainkit::detail::OptimizerParts::of(optimizer).rates.on_device()) all.push_back(lr);
      return all;
    };
    TrainStepOptions options{.cuda_graph = captured ? CudaGraph::kAuto : CudaGraph::kOff};
    options.graph_backend = [live] { return std::make_unique<TapeBackend>(live); };
    TrainStep step(*devices, optimizer, options);
    const LossFunction loss = make_loss_function(loss_and_hits<BatchNormNet>);
    for (uint64_t i = 0; i < 32; ++i) {
      if (i == 8) net.norm->eval();
      if (i == 16) set_trained(*net.hidden, false);
      if (i == 24) {
        set_trained(*net.out, true);
        optimizer.add_param_group({.params = {{"out.weight", net.out->weight}, {"out.bias", net.out->bias}}});
      }
      step(random_batch(kNetRows, i), loss);
    }
    INFO(step.graph_reason());
    if (captured) CHECK(step.graph_captures() == 4);
    return live();
  };
  const auto eager = run(false), captured = run(true);
  for (size_t i = 0; i < eager.size(); ++i) CHECK(captured[i].equal(eager[i]));
}
