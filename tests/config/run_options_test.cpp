// The rules between the shared flags: devices, precision, batches, and the folder that a run writes to.
#include "trainkit/config/run_options.h"

#include "config_test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

void make_checkpoint(const std::string& run) {
  std::filesystem::create_directories(run + "/checkpoints/step-00000040");
  write(run + "/checkpoints/step-00000040/manifest.json", "{}");
  write(run + "/checkpoints/latest", "40\n");
}

absl::Status start_in(const std::string& output_dir, std::vector<std::string> flags = {}) {
  Program program;
  flags.push_back("--output_dir=" + output_dir);
  return program.start(flags);
}

}  // namespace

TEST_CASE("Defaults of the shared flags are the trainers'", "[config][run_options]") {
  Program program;
  REQUIRE(program.start({}).ok());
  const RunOptions& run = program.run;
  CHECK(run.prefetch_factor == 2);
  CHECK(run.persistent_workers);
  CHECK(run.drop_last);
  CHECK(run.pin_memory);
  CHECK(run.timeout == std::chrono::seconds(60));
  CHECK(run.dist_timeout == std::chrono::seconds(120));
  CHECK(run.on_error == "fail");
  CHECK(run.num_workers.is_auto());
  CHECK(run.output_dir == "runs/transformer");
}

TEST_CASE("Every shared flag of the design is there", "[config][run_options]") {
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
                           "device",
                           "strategy",
                           "use_multi_gpu",
                           "gpu_ids",
                           "parallel",
                           "mixed_precision",
                           "precision",
                           "dist_timeout",
                           "dist_bind"}) {
    INFO(name);
    Program program;
    CHECK(program.parser.source(name) == "default");
  }
}

TEST_CASE("The guide's command lines are taken as they are written", "[config][run_options]") {
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
    Program program;
    const absl::Status status = program.start(line);
    INFO(error_text(status));
    CHECK(status.ok());
  }
}

TEST_CASE("auto is the first GPU where there is one", "[config][run_options]") {
  const auto resolve = [](const char* device, int gpus) {
    Program program;
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

TEST_CASE("Mixed precision is fp16 on a GPU and bf16 on a CPU, and --precision says otherwise",
          "[config][run_options]") {
  const c10::Device cpu(c10::kCPU), gpu(c10::kCUDA, 0);
  CHECK(resolve_precision({}, gpu) == c10::kFloat);
  CHECK(resolve_precision({.mixed_precision = true}, gpu) == c10::kHalf);
  CHECK(resolve_precision({.mixed_precision = true}, cpu) == c10::kBFloat16);
  CHECK(resolve_precision({.mixed_precision = true, .precision = "fp32"}, gpu) == c10::kFloat);
  CHECK(resolve_precision({.precision = "bf16"}, gpu) == c10::kBFloat16);
  CHECK(resolve_precision({.precision = "fp16"}, gpu) == c10::kHalf);
  // A default that the program chose by device does not contradict what the user gave.
  Program program;
  program.machine.cuda_devices = 1;
  REQUIRE(program.start({"--precision", "fp32"}).ok());
  program.parser.set_defaults({{"mixed_precision", "true"}}, "cuda");
  CHECK(check_run_options(program.parser, program.run, program.machine).ok());
}

TEST_CASE("Automatic workers are half the processors, at most 8 and two per GPU", "[config][run_options]") {
  CHECK(resolve_num_workers({}, {.cuda_devices = 0, .cpus = 1}) == 1);
  CHECK(resolve_num_workers({}, {.cuda_devices = 0, .cpus = 16}) == 2);
  CHECK(resolve_num_workers({}, {.cuda_devices = 3, .cpus = 8}) == 4);
  CHECK(resolve_num_workers({}, {.cuda_devices = 8, .cpus = 64}) == 8);
  CHECK(resolve_num_workers({.num_workers = {5}}, {.cuda_devices = 0, .cpus = 2}) == 5);
  CHECK(resolve_num_workers({.num_workers = {0}}, {.cuda_devices = 0, .cpus = 2}) == 0);
  CHECK(Machine::here().cpus >= 1);
}

TEST_CASE("A global batch decides the accumulation", "[config][run_options]") {
  Program program;
  REQUIRE(program.start({"--batch_size", "8", "--global_batch_size", "32"}).ok());
  CHECK(resolve_grad_accum_steps(program.run) == 4);
  CHECK(resolve_grad_accum_steps({.batch_size = {8}, .grad_accum_steps = 3}) == 3);
}

TEST_CASE("--no-use_multi_gpu sets gpu_ids aside", "[config][run_options]") {
  Program program;
  CHECK(program.start({"--gpu_ids", "0", "1", "--no-use_multi_gpu"}).ok());
}

TEST_CASE("A folder that holds a checkpoint is refused without --resume or --overwrite", "[config][run_options]") {
  const TempDir folder;
  const std::string run = folder / "run";
  make_checkpoint(run);
  check_error(start_in(run), ExitCode::kUsage, "cli.value");
  check_error(start_in(run, {"--dry_run"}), ExitCode::kUsage, "cli.value");
  CHECK_THAT(error_text(start_in(run)), Catch::Contains("--output_dir: holds the checkpoints of an earlier run"));
  const std::string file = write(folder / "run.yaml", "output_dir: run\n");
  Program program;
  check_error(program.start({"--config", file}), ExitCode::kConfig, "config.value");
  CHECK(start_in(run, {"--resume", "latest"}).ok());
  CHECK(std::filesystem::exists(run + "/checkpoints/step-00000040/manifest.json"));
}

TEST_CASE("A folder without a checkpoint is used as it is", "[config][run_options]") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "run/checkpoints/step-00000040.tmp");
  write(folder / "run/metrics.jsonl", "{}\n");
  write(folder / "run/checkpoints/notes.txt", "mine");
  CHECK(start_in(folder / "run").ok());
  CHECK(std::filesystem::exists(folder / "run/metrics.jsonl"));
  CHECK(start_in(folder / "new/deep").ok());
  CHECK(std::filesystem::is_directory(folder / "new/deep"));
}

TEST_CASE("--overwrite removes the earlier run and nothing else", "[config][run_options]") {
  const TempDir folder;
  const std::string run = folder / "run", outside = folder / "outside";
  make_checkpoint(run);
  std::filesystem::create_directories(run + "/tensorboard");
  std::filesystem::create_directories(outside);
  write(outside + "/keep.txt", "mine");
  for (const char* name : {"config.yaml", "metrics.jsonl", "tensorboard/events", "bad_samples.csv", "summary.json",
                           "error.json", "notes.txt", "checkpoints/best.txt"}) {
    write(run + "/" + name, "x");
  }
  std::filesystem::create_directory_symlink(outside, run + "/checkpoints/step-00000050");
  REQUIRE(start_in(run, {"--overwrite"}).ok());
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run)) {
    left.push_back(std::filesystem::relative(entry.path(), run).string());
  }
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"checkpoints", "checkpoints/best.txt", "notes.txt"});
  CHECK(std::filesystem::exists(outside + "/keep.txt"));
}

TEST_CASE("A dry run writes nothing", "[config][run_options]") {
  const TempDir folder;
  make_checkpoint(folder / "old");
  CHECK(start_in(folder / "new", {"--dry_run"}).ok());
  CHECK_FALSE(std::filesystem::exists(folder / "new"));
  CHECK(start_in(folder / "old", {"--dry_run", "--overwrite"}).ok());
  CHECK(std::filesystem::exists(folder / "old/checkpoints/step-00000040"));
}

TEST_CASE("An output folder that cannot be written to ends with exit code 6", "[config][run_options]") {
  const TempDir folder;
  const std::string file = write(folder / "file", "x");
  const absl::Status is_file = start_in(file);
  check_error(is_file, ExitCode::kStorage, "storage.output_dir");
  CHECK_THAT(error_line(is_file), Catch::Contains(file + ": output_dir: a file, not a folder"));
  check_error(start_in(file, {"--dry_run"}), ExitCode::kStorage, "storage.output_dir");
  check_error(start_in(file + "/below"), ExitCode::kStorage, "storage.output_dir");
  check_error(start_in("/proc/none/run"), ExitCode::kStorage, "storage.output_dir");
  check_error(start_in(folder / std::string(300, 'x')), ExitCode::kStorage, "storage.output_dir");
}
