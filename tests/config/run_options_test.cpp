// Rules between the shared flags: devices, precision, batches, and the output folder.
#include "trainkit/app/run_options.h"

#include "config_test_util.h"
#include "trainkit/app/placement.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Defaults of the shared flags are the trainers'", "[config][run_options]") {
  TrainerFlags program;
  REQUIRE(program.start({}).ok());
  const RunOptions& run = program.run;
  CHECK(run.prefetch_factor.is_auto());
  CHECK(run.persistent_workers);
  CHECK(run.drop_last);
  CHECK(run.pin_memory);
  CHECK(run.timeout == std::chrono::seconds(60));
  CHECK(run.dist_timeout == std::chrono::seconds(120));
  CHECK(run.on_error == OnError::kFail);
  CHECK(run.num_workers.is_auto());
  CHECK(run.output_dir == "runs/transformer");
}

TEST_CASE("Every shared flag of the design exists", "[config][run_options]") {
  for (const char* name : {"config",
                           "preset",
                           "print_config",
                           "data_dir",
                           "num_workers",
                           "prefetch_factor",
                           "persistent_workers",
                           "drop_last",
                           "timeout",
                           "pin_memory",
                           "on_error",
                           "max_bad_samples",
                           "make_demo_data",
                           "output_dir",
                           "seed",
                           "epochs",
                           "epoch",
                           "max_epochs",
                           "max_steps",
                           "max_time",
                           "log_every",
                           "eval_every",
                           "save_every",
                           "keep_last",
                           "keep_every",
                           "on_save_error",
                           "tensorboard_dir",
                           "resume",
                           "init_from",
                           "overwrite",
                           "dry_run",
                           "monitor",
                           "use_tensorboard",
                           "use-wandb",
                           "cudnn_benchmark",
                           "batch_size",
                           "global_batch_size",
                           "grad_accum_steps",
                           "accumulation_steps",
                           "gradient_accumulation_steps",
                           "lr",
                           "auto_scale_lr",
                           "weight_decay",
                           "grad_clip",
                           "scheduler",
                           "warmup_steps",
                           "patience",
                           "factor",
                           "early_stopping",
                           "on_nonfinite",
                           "max_nonfinite",
                           "device",
                           "strategy",
                           "use_multi_gpu",
                           "gpu_ids",
                           "parallel",
                           "mixed_precision",
                           "precision",
                           "float32_matmul_precision",
                           "cuda_graph",
                           "dist_timeout",
                           "dist_bind",
                           "dist_shared_memory",
                           "grad_compression"}) {
    INFO(name);
    TrainerFlags program;
    CHECK(program.parser.source(name) == "default");
  }
}

TEST_CASE("The guide's command lines are accepted unchanged", "[config][run_options]") {
  for (const std::vector<std::string>& line : std::vector<std::vector<std::string>>{
           {"--batch-size", "16", "--hidden-dim", "256", "--n-layers", "3", "--max-epochs", "100"},
           {"--batch-size", "8"},
           {"--device", "cpu"},
           {"--use-wandb"},
           {"--no-mixed-precision"},
           {"--gradient-checkpointing"},
           {"--batch-size", "32", "--hidden-dim", "512", "--n-layers", "6"},
           {"--batch_size", "16", "--epochs", "150", "--num_workers", "8", "--scheduler", "plateau", "--patience", "10",
            "--factor", "0.5", "--parallel", "1", "--auto_scale_lr"}}) {
    TrainerFlags program;
    const absl::Status status = program.start(line);
    INFO(error_text(status));
    CHECK(status.ok());
  }
}

TEST_CASE("auto selects the first GPU if there is one", "[config][run_options]") {
  const auto resolve = [](const char* device, int gpus) {
    TrainerFlags program;
    program.run.device = device;
    return resolve_device(program.parser, program.run, {.cuda_devices = gpus});
  };
  CHECK(resolve("auto", 0).value() == c10::Device(c10::kCPU));
  CHECK(resolve("auto", 2).value() == c10::Device(c10::kCUDA, 0));
  CHECK(resolve("cpu", 2).value() == c10::Device(c10::kCPU));
  CHECK(resolve("cuda", 2).value() == c10::Device(c10::kCUDA, 0));
  CHECK(resolve("cuda:1", 2).value() == c10::Device(c10::kCUDA, 1));
  check_error(resolve("cuda:2", 2).status(), ExitCode::kUsage, "cli.value");
  CHECK_THAT(error_line(resolve("cuda:2", 2).status()),
             Catch::Contains("no such GPU (got 'cuda:2', expected cuda:0..cuda:1)"));
}

TEST_CASE("Mixed precision is fp16 on a GPU and bf16 on a CPU, and --precision overrides it", "[config][run_options]") {
  const c10::Device cpu(c10::kCPU), gpu(c10::kCUDA, 0);
  CHECK(resolve_precision({}, gpu) == Precision::kFp32);
  CHECK(resolve_precision({.mixed_precision = true}, gpu) == Precision::kFp16);
  CHECK(resolve_precision({.mixed_precision = true}, cpu) == Precision::kBf16);
  CHECK(resolve_precision({.mixed_precision = true, .precision = Precision::kFp32}, gpu) == Precision::kFp32);
  CHECK(resolve_precision({.precision = Precision::kBf16}, gpu) == Precision::kBf16);
  CHECK(resolve_precision({.precision = Precision::kFp16}, gpu) == Precision::kFp16);
  // A default that the program chose by device does not conflict with a user's value.
  TrainerFlags program;
  program.machine.cuda_devices = 1;
  REQUIRE(program.start({"--precision", "fp32"}).ok());
  program.parser.set_defaults({{"mixed_precision", "true"}}, "cuda");
  CHECK(check_run_options(program.parser, program.run, program.machine).ok());
}

namespace {

/// Workers of a process that trains on `devices`.
int workers(size_t devices, const MachineInfo& machine, IntOrAuto given = {}) {
  return resolve_num_workers({.num_workers = given}, {.devices = std::vector(devices, c10::Device(c10::kCPU))},
                             machine);
}

}  // namespace

TEST_CASE("Automatic workers are half the processors, at most 8 and two per device", "[config][run_options]") {
  CHECK(workers(1, {.cpus = 1}) == 1);
  CHECK(workers(1, {.cpus = 16}) == 2);
  CHECK(workers(3, {.cuda_devices = 3, .cpus = 8}) == 4);
  CHECK(workers(8, {.cuda_devices = 8, .cpus = 64}) == 8);
  CHECK(workers(1, {.cpus = 2}, {5}) == 5);
  CHECK(workers(1, {.cpus = 2}, {0}) == 0);
  CHECK(MachineInfo::here().cpus >= 1);
}

TEST_CASE("Automatic workers count the devices in use, not the visible GPUs", "[config][run_options]") {
  const MachineInfo eight_gpus{.cuda_devices = 8, .cpus = 64};
  for (const auto& [flags, expected] :
       std::vector<std::pair<std::vector<std::string>, int>>{{{}, 2},
                                                             {{"--device", "cuda:3"}, 2},
                                                             {{"--device", "cpu"}, 2},
                                                             {{"--use_multi_gpu", "--gpu_ids", "1", "2", "3"}, 6},
                                                             {{"--parallel", "2"}, 4},
                                                             {{"--device", "cpu", "--parallel", "3"}, 6},
                                                             {{"--use_multi_gpu"}, 8}}) {
    TrainerFlags program;
    REQUIRE(program.parser.parse(flags).ok());
    const Placement placement = resolve_devices(program.parser, program.run, eight_gpus).value();
    CHECK(resolve_num_workers(program.run, placement, eight_gpus) == expected);
  }
}

TEST_CASE("Workers chosen by auto are shared by the ranks of a machine", "[config][run_options]") {
  CHECK(workers(1, {.cuda_devices = 4, .cpus = 64, .ranks = 8, .local_ranks = 4}) == 2);
  CHECK(workers(1, {.cuda_devices = 8, .cpus = 64, .ranks = 2, .local_ranks = 2}) == 2);
  CHECK(workers(1, {.cpus = 2, .ranks = 2, .local_ranks = 2}) == 1);
  CHECK(workers(1, {.cuda_devices = 4, .cpus = 64, .ranks = 4, .local_ranks = 4}, {3}) == 3);
}

namespace {

/// "dp 2: cpu cpu" for the flags, or the text of the error.
std::string devices_of(const std::vector<std::string>& flags, const MachineInfo& machine) {
  TrainerFlags program;
  if (const auto request = program.parser.parse(flags); !request.ok()) return error_line(request.status());
  const auto placement = resolve_devices(program.parser, program.run, machine);
  if (!placement.ok()) return error_line(placement.status());
  std::string text = name_of(placement->strategy) + (" " + std::to_string(placement->batch.replicas)) + ":";
  for (const c10::Device device : placement->devices) text += " " + device.str();
  return text;
}

MachineInfo rank_of(int64_t local_rank, int64_t local_ranks, int64_t ranks, int cuda_devices) {
  return {
      .cuda_devices = cuda_devices, .cpus = 8, .ranks = ranks, .local_ranks = local_ranks, .local_rank = local_rank};
}

}  // namespace

TEST_CASE("The strategy depends on the requested devices and the launcher", "[config][run_options]") {
  const MachineInfo cpu{.cuda_devices = 0, .cpus = 4}, gpus{.cuda_devices = 4, .cpus = 16};
  CHECK(devices_of({}, cpu) == "single 1: cpu");
  CHECK(devices_of({"--parallel", "3"}, cpu) == "dp 3: cpu cpu cpu");
  CHECK(devices_of({"--strategy", "dp"}, cpu) == "dp 1: cpu");
  CHECK(devices_of({}, gpus) == "single 1: cuda:0");
  CHECK(devices_of({"--use_multi_gpu"}, gpus) == "dp 4: cuda:0 cuda:1 cuda:2 cuda:3");
  CHECK(devices_of({"--use_multi_gpu", "--gpu_ids", "2", "0"}, gpus) == "dp 2: cuda:2 cuda:0");
  CHECK(devices_of({"--gpu_ids", "2", "0", "--no-use_multi_gpu"}, gpus) == "single 1: cuda:0");
  CHECK(devices_of({"--parallel", "2"}, gpus) == "dp 2: cuda:0 cuda:1");
  CHECK(devices_of({"--parallel", "6", "--device", "cpu"}, gpus) == "dp 6: cpu cpu cpu cpu cpu cpu");
  CHECK(devices_of({"--device", "cuda:3"}, gpus) == "single 1: cuda:3");

  CHECK(devices_of({}, rank_of(1, 2, 2, 0)) == "ddp 2: cpu");
  CHECK(devices_of({}, rank_of(0, 1, 1, 0)) == "ddp 1: cpu");
  CHECK(devices_of({}, rank_of(3, 4, 8, 4)) == "ddp 8: cuda:3");
  CHECK(devices_of({"--use_multi_gpu", "--gpu_ids", "2", "0"}, rank_of(1, 2, 2, 4)) == "ddp 2: cuda:0");
  CHECK(devices_of({}, rank_of(3, 4, 4, 1)) == "ddp 4: cuda:0");  // each rank has its own CUDA_VISIBLE_DEVICES
  CHECK(devices_of({"--device", "cuda:1"}, rank_of(0, 1, 2, 4)) == "ddp 2: cuda:1");
  CHECK(devices_of({"--device", "cpu"}, rank_of(3, 4, 4, 2)) == "ddp 4: cpu");
  CHECK(devices_of({"--strategy", "single"}, rank_of(0, 1, 1, 0)) == "single 1: cpu");
}

TEST_CASE("Missing devices, and flags that conflict with each other or the launcher, are refused",
          "[config][run_options]") {
  const MachineInfo cpu{.cuda_devices = 0, .cpus = 4}, gpus{.cuda_devices = 2, .cpus = 16};
  struct Case {
    std::vector<std::string> flags;
    MachineInfo machine;
    const char* text;
  };
  const std::vector<Case> cases = {
      {{"--parallel", "3"}, gpus, "--parallel: more devices than available (got '3', expected at most 2"},
      {{"--use_multi_gpu", "--gpu_ids", "0", "2"}, gpus, "--gpu_ids: no GPU 2"},
      {{"--use_multi_gpu"}, cpu, "--use_multi_gpu: no GPU on this machine"},
      {{"--use_multi_gpu", "--device", "cpu"}, gpus, "--use_multi_gpu: contradicts --device"},
      {{"--use_multi_gpu", "--device", "cuda:1"}, gpus, "--device: names one GPU, but several are requested"},
      {{"--use_multi_gpu", "--gpu_ids", "0", "1", "--parallel", "3"}, gpus, "--parallel: contradicts --use_multi_gpu"},
      {{"--strategy", "single", "--parallel", "2"}, gpus, "--strategy: contradicts the 2 devices requested"},
      {{"--strategy", "ddp"}, gpus, "--strategy: needs a launcher"},
      {{"--strategy", "single"}, rank_of(0, 2, 2, 2), "--strategy: the launcher has started 2 ranks"},
      {{"--strategy", "dp"}, rank_of(0, 2, 2, 2), "--strategy: the launcher has started 2 ranks"},
      {{"--parallel", "3"}, rank_of(0, 2, 2, 0), "--parallel: does not match the launcher"},
      {{"--device", "cuda:0"}, rank_of(1, 2, 2, 2), "--device: names one GPU for all ranks"},
      {{"--use_multi_gpu", "--gpu_ids", "1"}, rank_of(1, 2, 2, 2), "--gpu_ids: fewer GPUs than ranks"},
      {{}, rank_of(3, 4, 4, 3), "error[dist.env] LOCAL_RANK: fewer GPUs than ranks"},
  };
  for (const Case& bad : cases) {
    INFO(bad.text);
    CHECK_THAT(devices_of(bad.flags, bad.machine), Catch::Contains(bad.text));
  }
}

TEST_CASE("A global batch sets the batch per device and the accumulation", "[config][run_options]") {
  const auto plan = [](std::vector<std::string> flags, int64_t replicas, int64_t global = 0) -> std::vector<int64_t> {
    TrainerFlags program;
    REQUIRE(program.parser.parse(flags).ok());
    const auto batch = resolve_batch(program.parser, program.run, replicas, global);
    if (!batch.ok()) return {-static_cast<int64_t>(exit_code(batch.status()))};
    CHECK(batch->replicas == replicas);
    return {batch->batch_size, batch->grad_accum_steps, batch->global_batch_size()};
  };
  CHECK(plan({"--batch_size", "8", "--global_batch_size", "32"}, 1) == std::vector<int64_t>{8, 4, 32});
  CHECK(plan({"--batch_size", "8", "--grad_accum_steps", "3"}, 2) == std::vector<int64_t>{8, 3, 48});
  CHECK(plan({"--batch_size", "8", "--global_batch_size", "32"}, 2) == std::vector<int64_t>{8, 2, 32});
  CHECK(plan({"--batch_size", "8", "--global_batch_size", "32"}, 4) == std::vector<int64_t>{8, 1, 32});
  CHECK(plan({"--batch_size", "8", "--global_batch_size", "32"}, 8) == std::vector<int64_t>{4, 1, 32});
  CHECK(plan({"--batch_size", "8", "--global_batch_size", "24"}, 2) == std::vector<int64_t>{6, 2, 24});
  CHECK(plan({"--batch_size", "8", "--global_batch_size", "32"}, 3) == std::vector<int64_t>{-8});
  // A default batch per device follows; 16 here.
  CHECK(plan({"--global_batch_size", "30"}, 1) == std::vector<int64_t>{15, 2, 30});
  CHECK(plan({"--global_batch_size", "48"}, 1) == std::vector<int64_t>{16, 3, 48});
  // The global batch of a resumed run takes precedence over the flags on another number of devices.
  CHECK(plan({"--batch_size", "8", "--grad_accum_steps", "4"}, 4, 32) == std::vector<int64_t>{8, 1, 32});
  CHECK(plan({"--batch_size", "8", "--grad_accum_steps", "4"}, 3, 32) == std::vector<int64_t>{-8});
}

TEST_CASE("--auto_scale_lr multiplies the learning rate by the number of devices", "[config][run_options]") {
  CHECK(resolve_lr({.lr = 0.1}, 4) == 0.1);
  CHECK(resolve_lr({.lr = 0.1, .auto_scale_lr = true}, 4) == 0.4);
  CHECK(resolve_lr({.lr = 0.1, .auto_scale_lr = true}, 1) == 0.1);
}

TEST_CASE("--no-use_multi_gpu disables gpu_ids", "[config][run_options]") {
  TrainerFlags program;
  CHECK(program.start({"--gpu_ids", "0", "1", "--no-use_multi_gpu"}).ok());
}

TEST_CASE("An output folder that cannot be written to ends with exit code 6", "[config][run_options]") {
  const TempDir folder;
  const std::string file = write(folder / "file", "x");
  const absl::Status is_file = start_in(file);
  check_error(is_file, ExitCode::kStorage, "storage.output_dir");
  CHECK_THAT(error_line(is_file), Catch::Contains(file + ": output_dir: is a file, expected a folder"));
  check_error(start_in(file, {"--dry_run"}), ExitCode::kStorage, "storage.output_dir");
  check_error(start_in(file + "/below"), ExitCode::kStorage, "storage.output_dir");
  check_error(start_in("/proc/none/run"), ExitCode::kStorage, "storage.output_dir");
  check_error(start_in(folder / std::string(300, 'x')), ExitCode::kStorage, "storage.output_dir");
}
