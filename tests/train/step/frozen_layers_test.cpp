// Layers that are frozen and unfrozen, and groups that the optimizer gets later, on replicas and ranks.
#include "train/step/changed_model.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Layers that are frozen and unfrozen between steps train as on one device", "[train][freeze]") {
  for (const bool keeps_gradients : {false, true}) {
    check_all_places(/*trains_norm=*/false, [&](DeviceReplicator& devices, const auto& take) {
      SGD optimizer({.lr = 0.1, .momentum = 0.9});
      TrainStep step(devices, optimizer, {.grad_clip = 0.5, .zero_grad_set_to_none = !keeps_gradients});
      SyncNormNetImpl& net = net_of(devices);
      take(step, 1);
      set_trained(*net.hidden, false);
      const at::Tensor frozen = net.hidden->weight.detach().clone();
      take(step, 2);
      take(step, 3);
      if (!net.hidden->weight.equal(frozen)) throw std::runtime_error("a frozen layer has moved");
      set_trained(*net.hidden, true);
      set_trained(*net.out, false);
      take(step, 4);
      if (net.hidden->weight.equal(frozen)) throw std::runtime_error("an unfrozen layer has not moved");
      set_trained(*net.out, true);
      take(step, 5);
    });
  }
}

TEST_CASE("A group that the optimizer gets after the step was made trains on every copy", "[train][freeze]") {
  check_all_places(/*trains_norm=*/false, [](DeviceReplicator& devices, const auto& take) {
    SyncNormNetImpl& net = net_of(devices);
    set_trained(*net.hidden, false);
    AdamW optimizer({.lr = 0.02});
    TrainStep step(devices, optimizer, {.ema_decay = 0.5});
    take(step, 1);
    set_trained(*net.hidden, true);
    ParamGroup group{.params = {}, .lr_multiple = 0.5, .name = "hidden"};
    for (const auto& item : net.hidden->named_parameters()) {
      group.params.push_back({"hidden." + item.key(), item.value()});
    }
    optimizer.add_param_group(group);
    const at::Tensor before = net.hidden->weight.detach().clone();
    take(step, 2);
    take(step, 3);
    if (net.hidden->weight.equal(before)) throw std::runtime_error("the layer has not moved");
    if (step.averages().size() != devices.module()->parameters().size()) throw std::runtime_error("no average");
    step.swap_averages();  // the averages are compared
  });
}

TEST_CASE("Layers may be frozen before the optimizer is made, on the first replica alone", "[train][freeze]") {
  check_all_places(/*trains_norm=*/false, [](DeviceReplicator& devices, const auto& take) {
    set_trained(*net_of(devices).hidden, false);
    const at::Tensor frozen = net_of(devices).hidden->weight.detach().clone();
    SGD optimizer({.lr = 0.1});
    TrainStep step(devices, optimizer);
    take(step, 1);
    if (!net_of(devices).hidden->weight.equal(frozen)) throw std::runtime_error("a frozen layer has moved");
  });
}

TEST_CASE("Ranks that freeze different layers end with an error of exit code 8", "[train][freeze][ranks]") {
  const auto texts =
      on_ranks(2,
               [](ProcessGroup& group) -> absl::Status {
                 try {
                   const auto devices =
                       DeviceReplicator::create([] { return torch::nn::Linear(8, 4); },
                                                {.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}})
                           .value();
                   SGD optimizer({.lr = 0.1});
                   TrainStep step(*devices, optimizer);
                   const LossFunction loss = make_loss_function([](torch::nn::Linear& model, const Batch& batch) {
                     return at::cross_entropy_loss(model->forward(batch["x"]), batch["y"]);
                   });
                   step(random_batch(4, 1), loss);
                   devices->module()->as<torch::nn::Linear>()->weight.set_requires_grad(group.rank() == 0);
                   devices->module()->as<torch::nn::Linear>()->bias.set_requires_grad(group.rank() == 1);
                   step(random_batch(4, 2), loss);
                   return absl::OkStatus();
                 } catch (...) {
                   return status_from_current_exception();
                 }
               },
               {.timeout = std::chrono::seconds(10)});
  for (const std::string& text : texts) {
    CHECK_THAT(text, Catch::StartsWith("error[dist.digest] requires_grad of weight: differs between ranks"));
  }
}

TEST_CASE("A rank that freezes a layer alone ends all ranks at the timeout", "[train][freeze][ranks]") {
  const auto texts =
      on_ranks(2,
               [](ProcessGroup& group) -> absl::Status {
                 try {
                   const auto devices =
                       DeviceReplicator::create([] { return make_net(false); },
                                                {.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}})
                           .value();
                   SGD optimizer({.lr = 0.1});
                   TrainStep step(*devices, optimizer);
                   if (group.rank() == 1) set_trained(*net_of(*devices).out, false);
                   step(random_batch(4, 1), loss_of_net());
                   return absl::OkStatus();
                 } catch (...) {
                   return status_from_current_exception();
                 }
               },
               {.timeout = std::chrono::seconds(6)});
  for (const std::string& text : texts) CHECK_THAT(text, Catch::StartsWith("error[dist.peer] "));
}

TEST_CASE("Sharded ranks refuse to freeze a layer or to add a group later, with the remedy", "[train][freeze]") {
  for (const bool adds : {false, true}) {
    const auto texts = on_ranks(2, [&](ProcessGroup& group) -> absl::Status {
      try {
        const auto devices =
            DeviceReplicator::create(
                [] { return make_net(false); },
                {.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}, .sharding = Sharding::kOptimizer})
                .value();
        SyncNormNetImpl& net = net_of(*devices);
        if (adds) set_trained(*net.out, false);  // before the state is divided: allowed
        SGD optimizer({.lr = 0.1});
        TrainStep step(*devices, optimizer);
        step(random_batch(4, 1), loss_of_net());
        if (adds) {
          optimizer.add_param_group({.params = {{"out.weight", net.out->weight}}});
        } else {
          set_trained(*net.out, false);
        }
        step(random_batch(4, 2), loss_of_net());
        return absl::OkStatus();
      } catch (...) {
        return status_from_current_exception();
      }
    });
    for (const std::string& text : texts) {
      CHECK_THAT(text, Catch::StartsWith(adds ? "error[train.frozen] a parameter group was added after"
                                              : "error[train.frozen] out.weight: was frozen or unfrozen after"));
    }
  }
}

TEST_CASE("A factory that returns shared models is refused for several replicas", "[train][replicas]") {
  const auto status_of = [](const std::function<std::shared_ptr<torch::nn::Module>()>& factory, int64_t replicas) {
    return DeviceReplicator::create(factory, {.cpu_replicas = replicas}).status();
  };
  const auto model = make_net(true);
  CHECK(status_of([&] { return model; }, 1).ok());
  const auto backbone = std::make_shared<torch::nn::LinearImpl>(8, 8);
  const at::Tensor table = at::ones({4});
  const auto with_module = [&] {
    auto net = std::make_shared<torch::nn::SequentialImpl>();
    net->push_back("backbone", backbone);
    return net;
  };
  const auto with_buffer = [&] {
    auto net = std::make_shared<torch::nn::LinearImpl>(8, 8);
    net->register_buffer("table", table.detach());
    return net;
  };
  const auto with_parameter = [&] {
    auto net = std::make_shared<torch::nn::LinearImpl>(8, 8);
    net->weight.set_data(backbone->weight.detach());
    return net;
  };
  const auto check = [&](const auto& factory, const std::string& shared) {
    const absl::Status status = status_of(factory, 2);
    CHECK(exit_code(status) == ExitCode::kUsage);
    CHECK_THAT(error_line(status),
               Catch::StartsWith("error[train.shared_model] the model factory: returned models that share modules or "
                                 "tensors (got '" +
                                 shared + "'"));
  };
  check([&] { return model; }, "the model");
  check(with_module, "module backbone");
  check(with_buffer, "buffer table");
  check(with_parameter, "parameter weight");
}

TEST_CASE("fit warns of parameters with gradients that the optimizer does not have", "[train][freeze]") {
  const auto devices = DeviceReplicator::create([] { return TinyNet(0.0); }).value();
  set_trained(*devices->module()->as<TinyNet>()->hidden, false);
  auto trainer = Trainer::create(*devices, SGD({.lr = 0.1}), {.max_steps = 1}).value();
  set_trained(*devices->module()->as<TinyNet>()->hidden, true);
  RecordingLogger logger;
  const auto loader = net_rows(24, 6);
  REQUIRE(trainer.fit(*loader, tiny_loss, {.logger = &logger}).ok());
  CHECK(count_lines(logger,
                    "warning: 2 parameters of the model have gradients but are not in the optimizer and stay "
                    "unchanged (hidden.weight, ...)") == 1);
}
