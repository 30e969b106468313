// The flags of RunOptions: names, help, bounds and choices.
#include "trainkit/app/run_options.h"

namespace trainkit {
namespace {

using namespace modes;

OptionSpec bounded(OptionSpec spec, double min, double max) {
  spec.min = min, spec.max = max;
  return spec;
}

/// The spec of a flag that these modes use. Without it, a flag is one of training.
OptionSpec in(std::vector<std::string> used_in, OptionSpec spec) {
  spec.modes = std::move(used_in);
  return spec;
}

/// The spec of a flag that needs another one to have an effect.
OptionSpec with(OptionNeed need, OptionSpec spec) {
  spec.needs.push_back(std::move(need));
  return spec;
}

OptionNeed workers() { return {"num_workers", {"0"}, /*excludes=*/true}; }
OptionNeed checkpoints() { return {"save_every", {"0"}, /*excludes=*/true}; }
OptionNeed ranks() { return {"strategy", {"ddp"}}; }
OptionNeed several_devices() { return {"parallel", {"1"}, /*excludes=*/true}; }

void add_data_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = [](const char* help) { return OptionSpec{.help = help, .group = "Data", .modes = {kTrain}}; };
  const auto range = [&](double min, double max, const char* help) { return bounded(spec(help), min, max); };
  OptionSpec folder = spec("Data set folder.");
  folder.path = PathKind::kInput;
  parser.add("data_dir", &o.data_dir, folder);
  parser.add("num_workers", &o.num_workers,
             in({kTrain, kRows}, range(0, 1024, "Data-loader threads; 0 reads in the calling thread.")));
  parser.add(
      "threads", &o.threads,
      in({kTrain, kRun}, range(1, 1024,
                               "LibTorch threads (intra-op) of each process; auto: the processors that busy loader "
                               "workers and other ranks leave. Lower it on a machine with other load. The last bits of "
                               "the results depend on it.")));
  parser.add("prefetch_factor", &o.prefetch_factor,
             with(workers(),
                  range(1, 64, "Batches that each worker prefetches; auto: 2, then 4 if the loop waited for data.")));
  parser.add("persistent_workers", &o.persistent_workers,
             with(workers(), spec("Keep workers and their memory between epochs.")));
  parser.add("drop_last", &o.drop_last,
             spec("Use only the rows of full batches of --batch_size in each epoch; unless given, not with "
                  "fewer rows than one batch."));
  parser.add("timeout", &o.timeout,
             in({kTrain, kRows}, with(workers(), range(0, 1e6, "Maximum wait for a batch; 0 means unlimited."))));
  parser.add("pin_memory", &o.pin_memory,
             in({kTrain, kRows}, spec("Keep batches in page-locked memory if CUDA is used.")));
  parser.add("on_error", &o.on_error,
             {{"fail", OnError::kFail}, {"skip", OnError::kSkip}, {"replace", OnError::kReplace}},
             spec("Policy for unreadable rows."));
  parser.add(
      "max_bad_samples", &o.max_bad_samples,
      with({"on_error", {"fail"}, true},
           range(-1, 1e15, "Maximum number of different unreadable rows, else the run fails; -1 means unlimited.")));
  OptionSpec demo = spec("Write a small data set in the trainer's formats to this folder and exit.");
  demo.path = PathKind::kOutput, demo.flag_only = true;
  parser.add("make_demo_data", &o.make_demo_data, in({kDemoData}, demo));
}

void add_progress_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = [](const char* help) { return OptionSpec{.help = help, .group = "Run", .modes = {kTrain}}; };
  const auto path = [&](PathKind kind, const char* help) {
    OptionSpec s = spec(help);
    s.path = kind;
    return s;
  };
  const auto count = [&](double min, const char* help) { return bounded(spec(help), min, 1e15); };
  parser.add("output_dir", &o.output_dir, path(PathKind::kOutput, "Output folder of the run."));
  parser.add("seed", &o.seed, in({kTrain, kDemoData}, spec("Random seed.")));
  OptionSpec epochs = count(1, "Number of epochs.");
  epochs.aliases = {"epoch", "max_epochs"};
  parser.add("epochs", &o.epochs, epochs);
  parser.add("max_steps", &o.max_steps, count(0, "Maximum number of optimizer steps; 0 means unlimited."));
  parser.add("max_time", &o.max_time, count(0, "Maximum duration of the run; 0 means unlimited."));
  parser.add("log_every", &o.log_every, count(0, "Steps between log records; 0 disables them."));
  parser.add("eval_every", &o.eval_every,
             count(0, "Steps between evaluations; 0 disables them; unset: once per epoch."));
  parser.add("save_every", &o.save_every,
             count(0, "Steps between checkpoints; 0 disables them, including the final one; unset: once per epoch."));
  parser.add("keep_last", &o.keep_last,
             with(checkpoints(), count(0, "Number of newest checkpoints to keep; 0 keeps all.")));
  parser.add("keep_every", &o.keep_every,
             with(checkpoints(), count(0, "Steps between checkpoints that are kept permanently; 0 disables them.")));
  parser.add("on_save_error", &o.on_save_error, {{"fail", OnSaveError::kFail}, {"continue", OnSaveError::kContinue}},
             spec("Policy for checkpoints that cannot be written."));
  parser.add("tensorboard_dir", &o.tensorboard_dir,
             with({"use_tensorboard", {"true"}},
                  path(PathKind::kOutput, "Folder of TensorBoard event files; unset: <output_dir>/tensorboard.")));
  OptionSpec resume = path(
      PathKind::kInput,
      "Resume from `latest`, a run folder or a checkpoint. `latest` is the newest one of --output_dir; a checkpoint is "
      "checkpoints/ or one step-...");
  resume.path_words = {"latest"};
  parser.add("resume", &o.resume, resume);
  parser.add("init_from", &o.init_from,
             path(PathKind::kInput, "Initialise the weights from this run folder, safetensors or PyTorch file."));
  parser.add("overwrite", &o.overwrite, spec("Remove the files of an earlier run from --output_dir."));
  parser.add("dry_run", &o.dry_run, spec("Check everything and print the plan without training."));
  parser.add("json", &o.json,
             {.help = "With --dry_run: print the plan as JSON.",
              .group = "Run",
              .flag_only = true,
              .modes = {kTrain},
              .needs = {{"dry_run", {"true"}}}});
  parser.add("monitor", &o.monitor, spec("Show a live table of devices, memory and data loader."));
  OptionSpec profile = spec("Write this step and the next 10 as a trace for Perfetto, profile.json; 0: none.");
  profile.min = 0, profile.metavar = "STEP", profile.flag_only = true;
  parser.add("profile", &o.profile, profile);
  parser.add("use_tensorboard", &o.use_tensorboard, spec("Write TensorBoard event files."));
  parser.add("use_wandb", &o.use_wandb, spec("Log to Weights & Biases through its Python client."));
  parser.add("cudnn_benchmark", &o.cudnn_benchmark, spec("Let cuDNN benchmark its algorithms and use the fastest."));
}

void add_optimization_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = [](const char* help) {
    return OptionSpec{.help = help, .group = "Optimization", .modes = {kTrain}};
  };
  const auto range = [&](double min, double max, const char* help) { return bounded(spec(help), min, max); };
  parser.add("batch_size", &o.batch_size,
             in({kTrain, kRows},
                range(1, 1 << 20, "Rows per device and micro-batch; auto: the largest that fits into memory.")));
  parser.add("global_batch_size", &o.global_batch_size,
             range(1, 1 << 30, "Rows per optimizer step, over all devices and micro-batches."));
  OptionSpec accumulation = range(1, 1 << 20, "Gradient accumulation: micro-batches per optimizer step.");
  accumulation.aliases = {"accumulation_steps", "gradient_accumulation_steps"};
  parser.add("grad_accum_steps", &o.grad_accum_steps, accumulation);
  OptionSpec lr = spec("Learning rate.");
  lr.above = 0, lr.max = 1e6;
  parser.add("lr", &o.lr, lr);
  parser.add("auto_scale_lr", &o.auto_scale_lr, spec("Multiply the learning rate by the number of devices."));
  parser.add("weight_decay", &o.weight_decay, range(0, 1e6, "Decoupled weight decay."));
  parser.add("grad_clip", &o.grad_clip, range(0, 1e12, "Maximum norm of the gradients; 0 disables clipping."));
  parser.add("ema", &o.ema,
             range(0, 0.9999999,
                   "Decay of an exponential moving average of the weights, such as 0.999; the average is "
                   "evaluated, saved and tested. 0 disables it."));
  OptionSpec scheduler = spec("Learning-rate schedule after the warm-up.");
  scheduler.choices = {"constant", "linear", "cosine", "cosine_restarts", "step", "one_cycle", "plateau"};
  parser.add("scheduler", &o.scheduler, scheduler);
  parser.add("warmup_steps", &o.warmup_steps,
             range(0, 1e15, "Steps of linear learning-rate warm-up; unless given, at most a tenth of the run."));
  parser.add(
      "patience", &o.patience,
      with({"scheduler", {"plateau"}},
           range(0, 1e9, "Scheduler plateau: evaluations without improvement before the learning rate is reduced.")));
  OptionSpec factor = spec("Scheduler plateau: factor of each learning-rate reduction.");
  factor.above = 0, factor.max = 1;
  parser.add("factor", &o.factor, with({"scheduler", {"plateau"}}, factor));
  parser.add("early_stopping", &o.early_stopping,
             range(0, 1e9, "Evaluations without improvement that end the run; 0 disables early stopping."));
  parser.add("on_nonfinite", &o.on_nonfinite,
             {{"fail", OnNonfinite::kFail}, {"skip", OnNonfinite::kSkip}, {"rollback", OnNonfinite::kRollback}},
             spec("Policy for steps with a non-finite loss or gradient."));
  parser.add("max_nonfinite", &o.max_nonfinite,
             with({"on_nonfinite", {"fail"}, true},
                  range(1, 1e9, "Consecutive skipped steps, or rollbacks to one checkpoint, that end the run.")));
}

OptionSpec device_spec(const char* help) { return {.help = help, .group = "Devices", .modes = {kTrain}}; }

/// Which devices compute, and in which precision.
void add_device_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = device_spec;
  OptionSpec device = spec("Device to compute on.");
  device.metavar = "auto|cpu|cuda|cuda:N";
  parser.add("device", &o.device, in({kTrain, kDevice}, device));
  parser.add(
      "strategy", &o.strategy,
      {{"auto", Strategy::kAuto},
       {"single", Strategy::kSingle},
       {"dp", Strategy::kDataParallel},
       {"ddp", Strategy::kDistributed}},
      in({kTrain, kRows}, spec("Parallelism: one device, a thread per device (dp) or a process per device (ddp).")));
  parser.add("use_multi_gpu", &o.use_multi_gpu, in({kTrain, kRows}, spec("Use all GPUs, or --gpu_ids.")));
  OptionSpec gpus = spec("GPUs to use, for example 0 1 2.");
  gpus.min = 0, gpus.max = 127, gpus.max_items = 128, gpus.unique_items = true;
  parser.add("gpu_ids", &o.gpu_ids, in({kTrain, kRows}, gpus));
  OptionSpec parallel = spec("Number of devices; with --device cpu, of logical replicas.");
  parallel.min = 1, parallel.max = 128;
  parser.add("parallel", &o.parallel, in({kTrain, kRows}, parallel));
  parser.add("mixed_precision", &o.mixed_precision,
             in({kTrain, kDevice}, spec("Mixed precision: fp16 with loss scaling on CUDA, bf16 on the CPU.")));
  parser.add("precision", &o.precision,
             {{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}},
             in({kTrain, kDevice}, spec("Data type of the computation; unset: as --mixed_precision.")));
  OptionSpec matmul =
      spec("Products in float32; high: as TF32 on GPUs, faster and less exact; medium: also as bfloat16.");
  matmul.choices = {"highest", "high", "medium"};
  parser.add("float32_matmul_precision", &o.float32_matmul_precision, matmul);
  parser.add("cuda_graph", &o.cuda_graph,
             {{"auto", CudaGraph::kAuto}, {"on", CudaGraph::kOn}, {"off", CudaGraph::kOff}},
             spec("Capture a step as one CUDA graph; auto: where possible, on: or fail, off: never."));
}

/// What the devices of a run exchange, and the memory of each.
void add_cluster_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = device_spec;
  OptionSpec dist_timeout = spec("Maximum wait for another rank.");
  dist_timeout.above = 0, dist_timeout.max = 1e6;
  parser.add("dist_timeout", &o.dist_timeout, with(ranks(), dist_timeout));
  OptionSpec dist_bind = spec("Address that ranks connect to; loopback: this machine only.");
  dist_bind.metavar = "ADDRESS";
  parser.add("dist_bind", &o.dist_bind, with(ranks(), dist_bind));
  parser.add("dist_shared_memory", &o.dist_shared_memory,
             with(ranks(), spec("All-reduce CPU tensors of one machine in shared memory instead of over sockets.")));
  parser.add("grad_compression", &o.grad_compression,
             {{"none", GradientCompression::kNone},
              {"fp16", GradientCompression::kFp16},
              {"bf16", GradientCompression::kBf16}},
             spec("Data type of the gradients that ddp sends; 16 bits halve the traffic and lose precision."));
  parser.add("shard", &o.shard,
             {{"none", Sharding::kNone}, {"optimizer", Sharding::kOptimizer}, {"gradients", Sharding::kGradients}},
             with(several_devices(), spec("What the ranks of ddp, or the GPUs of dp, divide among them: the "
                                          "optimizer's state, or gradients too. Less memory per GPU, same result.")));
  parser.add("sync_batchnorm", &o.sync_batchnorm, {{"auto", std::nullopt}, {"on", true}, {"off", false}},
             with(several_devices(), spec("Normalise batches over the rows of all devices; auto: below 16 rows per "
                                          "device. Each such layer waits for all.")));
  parser.add("plan_memory", &o.plan_memory, spec("Predict the memory of a step before the run."));
  OptionSpec memory = spec("Memory of each device in the plan, for example 24GiB; unset: the free memory.");
  memory.metavar = "SIZE";
  parser.add("gpu_memory", &o.gpu_memory, memory);
  OptionSpec measure = spec("Run a few steps before the run to time them and to check that the batch fits.");
  measure.flag_only = true;
  parser.add("measure", &o.measure, measure);
  OptionSpec plan_devices =
      spec("With --dry_run: number of devices in the plan, also more than this machine has; 0: those of the run.");
  plan_devices.min = 0, plan_devices.max = 1 << 20, plan_devices.flag_only = true;
  parser.add("plan_devices", &o.plan_devices, with({"dry_run", {"true"}}, plan_devices));
}

}  // namespace

void add_run_flags(ConfigParser& parser, RunOptions& options) {
  add_data_flags(parser, options);
  add_progress_flags(parser, options);
  add_optimization_flags(parser, options);
  add_device_flags(parser, options);
  add_cluster_flags(parser, options);
}

}  // namespace trainkit
