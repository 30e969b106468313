// Trainer::fit and Trainer::begin.
#include <signal.h>
#include <torch/torch.h>

#include <filesystem>
#include <optional>

#include "feed.h"
#include "made.h"
#include "model.h"
#include "run.h"
#include "temp_dir.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/logger.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"

namespace trainkit::differential {
namespace {

/// Records what the Trainer logs.
class RecordLogger final : public Logger {
 public:
  explicit RecordLogger(Record& record) : record_(record) {}
  void log(const LogRecord& logged) override {
    const std::string place = logged.split + std::to_string(logged.step) + "/";
    for (const auto& [name, value] : logged.values) {
      const std::string what = name.substr(name.rfind('.') + 1);  // "p1.loss" is of a player
      const bool is_rate = name.find(".lr.") != std::string::npos;
      const bool is_of_episodes = what.starts_with("episode");
      if (what == "loss" || what == "grad_norm" || what == "metric" || is_rate || is_of_episodes) {
        put(record_, place + name, value);
      }
    }
    put(record_, place + "epoch", logged.epoch);
    if (logged.split == "train" && !logged.lr.empty()) put(record_, place + "lr", logged.lr.front());
  }
  absl::Status flush() override { return absl::OkStatus(); }
  absl::Status rewind(int64_t step) override {
    rewound = step;
    return absl::OkStatus();
  }
  int64_t rewound = -1;

 private:
  Record& record_;
};

/// Records the gradients before they are clipped, and the losses after each step.
class RecordEvents final : public Events {
 public:
  /// @param is_alone whether the loss of a step is that of all rows
  RecordEvents(Record& record, const Optimizers& optimizers, bool is_alone)
      : record_(record), optimizers_(optimizers), is_alone_(is_alone) {}
  bool reads_gradients() const override { return true; }
  absl::Status on_gradients(int64_t step, std::string_view player, DeviceReplicator&) override {
    put_gradients(record_, place_of(step), player, optimizers_);
    return absl::OkStatus();
  }
  absl::Status on_step(int64_t step, const StepMetrics& metrics) override {
    if (is_alone_) put(record_, place_of(step) + "step_loss", metrics.loss);
    return absl::OkStatus();
  }

 private:
  static std::string place_of(int64_t step) { return "train" + std::to_string(step) + "/"; }

  Record& record_;
  const Optimizers& optimizers_;
  const bool is_alone_;
};

struct Stopped : std::runtime_error {
  Stopped() : std::runtime_error("stopped, as planned") {}
};

/// All objects of a run.
class Training {
 public:
  Training(const Spec& spec, const Setup& setup)
      : spec_(spec),
        setup_(setup),
        devices_(make_devices(spec, setup)),
        loader_(make_loader(spec, spec.batch_size / ranks() / setup.micro_batches, rank(), ranks())),
        validation_(make_validation(spec, rank(), ranks())),
        logger_(record_),
        events_(record_, optimizers_, ranks() == 1) {
    if (!has_buffer(spec)) return;
    const bool joins = setup.joins > 1;
    made_ = std::make_unique<MadeSource>(
        spec, [this] { return devices_->module()->named_parameters()["head.weight"]; }, rank(),
        joins ? setup.joins : ranks(), joins);
  }

  Record operator()() {
    Trainer trainer = make_trainer();
    for (int64_t fit = 0; fit < spec_.fits; ++fit) {
      if (!fit_once(trainer, "fit" + std::to_string(fit + 1) + "/")) break;
    }
    put_state(record_, "end/", *devices_, optimizers_);
    for (const std::string& fault : made_ ? made_->faults() : std::vector<std::string>())
      put(record_, "fault/" + fault, 1);
    for (size_t i = 0; i < kept_.size(); ++i) put(record_, "kept/" + std::to_string(i), kept_[i]);
    if (setup_.resumes && logger_.rewound >= 0) put(record_, "resumed", static_cast<double>(logger_.rewound));
    return std::move(record_);
  }

 private:
  int64_t ranks() const { return setup_.group ? setup_.group->world_size() : 1; }
  int64_t rank() const { return setup_.group ? setup_.group->rank() : 0; }
  bool has_players() const { return !spec_.players.empty(); }

  Trainer make_trainer() {
    if (!has_players()) {
      auto trainer = Trainer::create(*devices_, make_optimizer(spec_, *devices_), options()).value();
      optimizers_ = {&trainer.optimizer()};
      return trainer;
    }
    std::vector<Player> players =
        make_players(spec_, *devices_, &kept_, [this](auto& model, const Batch& batch) { on_call(model, batch); });
    for (const Player& player : players) optimizers_.push_back(player.optimizer.get());
    return Trainer::create(*devices_, std::move(players), make_shared_of(spec_, setup_), options()).value();
  }

  TrainerOptions options() const {
    TrainerOptions options;
    options.max_epochs = spec_.epochs;
    options.max_steps = spec_.steps;
    options.precision = spec_.dtype == "bfloat16" ? Precision::kBf16 : Precision::kFp32;
    options.grad_accum_steps = spec_.accumulate * setup_.micro_batches;
    options.grad_clip = has_players() ? 0 : spec_.clip;
    options.ema_decay = has_players() ? 0 : spec_.ema;
    options.on_nonfinite = spec_.skip_nonfinite ? OnNonfinite::kSkip : OnNonfinite::kFail;
    options.max_nonfinite = 1000;
    options.schedule = has_players() ? nullptr : make_schedule(spec_);
    if (spec_.plateau > 0) options.plateau = PlateauOptions{.factor = 0.5, .patience = spec_.plateau - 1};
    options.log_every = 1;
    options.eval_every = spec_.evaluate_every;
    options.early_stopping = spec_.early_stopping;
    options.output_dir = setup_.folder;
    options.save_every = setup_.folder.empty() ? 0 : 2;
    if (setup_.resumes && std::filesystem::exists(setup_.folder + "/checkpoints/latest")) options.resume = "latest";
    return options;
  }

  /// Called before the loss function in training.
  void on_call(torch::nn::Module& model, const Batch& batch) {
    const std::string place = "call" + std::to_string(calls_++) + "/";
    if (spec_.oracle == "torch") {
      if (spec_.source.empty() || made_) put(record_, place + "rows", at::tensor(batch.row_indices(), at::kLong));
      for (const auto& parameter : model.named_parameters()) {
        if (!spec_.tied_head || parameter.key() != "head.weight") {
          put(record_, place + "param/" + parameter.key(), parameter.value());
        }
      }
    }
    if (setup_.stop_at == 0 || calls_ <= (setup_.stop_at - 1) * spec_.accumulate || setup_.resumes) return;
    if (setup_.kills) ::raise(SIGKILL);
    throw Stopped();
  }

  LossFunction loss() {
    return make_loss(spec_, &kept_, [this](auto& model, const Batch& batch) { on_call(model, batch); });
  }

  absl::StatusOr<TrainerResult> run_fit(Trainer& trainer, const FitOptions& fit) {
    BatchSource& source = made_ ? static_cast<BatchSource&>(*made_) : *loader_;
    return has_players() ? trainer.fit(source, fit) : trainer.fit(source, loss(), fit);
  }

  absl::StatusOr<Session> begin(Trainer& trainer, BatchSource* source, const FitOptions& fit) {
    if (source) return has_players() ? trainer.begin(*source, fit) : trainer.begin(*source, loss(), fit);
    return has_players() ? trainer.begin(fit) : trainer.begin(loss(), fit);
  }

  /// The loop of a session, with the changes of the program between its steps.
  absl::StatusOr<TrainerResult> run_session(Trainer& trainer, const FitOptions& fit) {
    std::optional<Feed> feed;
    if (!spec_.source.empty() && !made_) {
      feed.emplace(spec_, spec_.batch_size / ranks() / setup_.micro_batches, rank(), ranks());
    }
    BatchSource* source = loader_.get();
    if (feed) source = feed->queue();
    if (made_) source = made_.get();
    absl::StatusOr<Session> session = begin(trainer, source, fit);
    if (!session.ok()) return session.status();
    if (feed) feed->start();
    if (made_) made_->start();
    int64_t done = -1, next = session->progress().step * spec_.accumulate;
    for (bool goes_on = true; goes_on;) {
      const Progress progress = session->progress();
      if (!progress.has_ended && std::exchange(done, progress.step) != progress.step) {
        if (const absl::Status changed = change(*session); !changed.ok()) return changed;
      }
      if (made_ && !progress.has_ended) made_->prepare(spec_.accumulate);
      const bool passes = feed && !feed->queue();
      const auto stepped = passes ? session->step(feed->batch(next++)) : session->step();
      if (!stepped.ok()) return stepped.status();
      goes_on = *stepped;
    }
    return session->finish();
  }

  /// Makes the changes that are due after the steps so far.
  absl::Status change(Session& session) {
    absl::Status status;
    for (const ChangeSpec& change : spec_.changes) {
      if (change.after != session.progress().step) continue;
      const std::string player = has_players() ? "p" + std::to_string(change.player) : "";
      if (change.what != "lr") {
        status.Update(session.set_trainable("l" + std::to_string(change.layer) + ".*", change.what == "thaw"));
      } else {
        status.Update(change.group.empty() ? session.set_lr(player, change.lr)
                                           : session.set_lr(player, change.group, change.lr));
      }
    }
    return status;
  }

  /// Returns whether the fit ended, instead of being stopped as planned.
  bool fit_once(Trainer& trainer, const std::string& place) {
    std::unique_ptr<BestModel> best;
    FitOptions fit{.validation = validation_.get(), .logger = &logger_};
    if (made_) fit.state = made_->states();
    if (spec_.best) {
      best = std::make_unique<BestModel>(
          BestModel::open(setup_.folder.empty() ? own_folder_.emplace().path().string() : setup_.folder,
                          setup_.resumes ? trainer.options().resume : "", {})
              .value());
      fit.on_evaluation = [&](int64_t step, Metrics& metrics) {
        offered_.Update(best->offer(step, metrics.at("loss"), *devices_->module()));
      };
    }
    if (spec_.events) fit.events = &events_;
    if (has_players()) fit.validation_loss = make_loss(spec_);
    const auto result = spec_.loop == "session" ? run_session(trainer, fit) : run_fit(trainer, fit);
    if (!result.ok() && setup_.stop_at > 0 && !setup_.resumes) return false;
    if (!result.ok()) throw absl::BadStatusOrAccess(result.status());
    if (!offered_.ok()) throw absl::BadStatusOrAccess(offered_);
    put(record_, place + "steps", static_cast<double>(result->steps));
    put(record_, place + "epochs", result->epochs);
    if (result->steps_run > 0) put(record_, place + "loss", result->loss);
    put(record_, place + "reason", static_cast<double>(result->reason));
    if (spec_.oracle != "torch" || spec_.dtype == "float64") {  // rounding may decide between two steps
      put(record_, place + "best_step", static_cast<double>(result->best_step));
    }
    for (const auto& [name, value] : result->evaluation) put(record_, place + "evaluation/" + name, value);
    for (const auto& [name, value] : result->best_evaluation) put(record_, place + "best/" + name, value);
    put_state(record_, place, *devices_, optimizers_);
    if (best && !best->restore(*devices_->module()).ok()) put(record_, "error/best", 1);
    if (best) devices_->synchronize();
    return true;
  }

  const Spec& spec_;
  const Setup& setup_;
  Record record_;
  std::unique_ptr<DeviceReplicator> devices_;
  std::unique_ptr<Prefetcher> loader_, validation_;
  std::unique_ptr<MadeSource> made_;  // instead of the loader
  RecordLogger logger_;
  Optimizers optimizers_;  // by player
  RecordEvents events_;
  std::optional<test::TempDir> own_folder_;  // of the best weights, without a folder of the run
  std::vector<at::Tensor> kept_;
  absl::Status offered_;
  std::atomic<int64_t> calls_ = 0;
};

}  // namespace

Record run_trainer(const Spec& spec, const Setup& setup) {
  torch::manual_seed(spec.seed + static_cast<uint64_t>(spec.number));
  return Training(spec, setup)();
}

}  // namespace trainkit::differential
