#include "monitor/diagnosis.h"

#include "test_util.h"

namespace trainkit {
namespace {

/// 100 batches in 10 seconds in which the step waited for the share `wait`. The readers together spent `read` seconds
/// in reads, `cpu` of them on a CPU core.
Observation seen(double wait, double read = 0, double cpu = 0) {
  Observation observation{.seconds = 10};
  observation.loader.batches = 100;
  observation.loader.wait_seconds = 10 * wait;
  observation.loader.consumer_seconds = 10 * (1 - wait);
  observation.loader.read_seconds = read;
  observation.readers.cpu_seconds = cpu;
  return observation;
}

/// The causes and remedies that apply: "swing --num_workers".
std::string rows(const Observation& observation, const LoaderSettings& settings) {
  std::string text;
  for (const Advice& advice : diagnose(observation, settings)) {
    text += (text.empty() ? "" : ", ") + std::string(to_string(advice.row)) + " " + advice.flag;
  }
  return text;
}

std::string text(const Observation& observation, const LoaderSettings& settings) {
  const auto advice = diagnose(observation, settings);
  return advice.empty() ? "" : advice[0].text;
}

TEST_CASE("The diagnosis gives the cause of waiting for data in one sentence, with the setting to change",
          "[logging][diagnosis]") {
  CHECK(text(seen(0.04, 20, 20), {.num_workers = 2, .cpus = 8}).empty());
  CHECK(text(seen(0.43, 19, 19), {.num_workers = 2, .cpus = 8}) ==
        "data wait 43%: the 2 readers are always busy; raise --num_workers from 2 to 4");
  CHECK(text(seen(0.10, 10, 10), {.num_workers = 1, .cpus = 2}) ==
        "data wait 10%: the reader is always busy; raise --num_workers from 1 to 2");
  CHECK(text(seen(0.50, 19, 19), {.num_workers = 2, .cpus = 2}) ==
        "data wait 50%: the 2 readers are always busy decoding, and 2 CPUs cannot keep up; make rows cheaper to "
        "read (store them decoded, cache them)");
  CHECK(text(seen(0.95, 20, 20), {.num_workers = 2, .cpus = 8}) ==
        "data wait 95%: the 2 readers are always busy decoding, and 8 CPUs cannot keep up; make rows cheaper to "
        "read (store them decoded, cache them), and raise --num_workers from 2 to 8");
  CHECK(text(seen(0.50, 20, 2), {.num_workers = 2, .cpus = 2}) ==
        "data wait 50%: the 2 readers are waiting for storage 90% of the time; raise --num_workers from 2 to 4 "
        "(waiting readers need no CPU), or move the data to a faster disk");
  CHECK(text(seen(0.20, 8, 8), {.num_workers = 4, .prefetch_factor = 2, .cpus = 8}) ==
        "data wait 20%: the 4 readers are idle at times, the ring is too short for rows of uneven cost; raise "
        "--prefetch_factor from 2 to 4");
  CHECK(text(seen(0.60, 6), {.num_workers = 0, .cpus = 8}) ==
        "data wait 60%: the training thread reads the rows itself; set --num_workers to 2");
  CHECK(text(seen(1.00, 10), {.num_workers = 0, .cpus = 4}) ==
        "data wait 100%: the training thread reads the rows itself; set --num_workers to 4");
}

TEST_CASE("Readers that wait for a CPU core do not wait for storage", "[logging][diagnosis]") {
  Observation queueing = seen(0.50, 20, 4);
  CHECK(rows(queueing, {.num_workers = 2, .cpus = 8}) == "slow_storage --num_workers");
  queueing.readers.queued_seconds = 16;
  CHECK(rows(queueing, {.num_workers = 2, .cpus = 8}) == "too_few_workers --num_workers");
}

TEST_CASE("A GPU below 70 percent with idle readers needs prefetching of four batches each", "[logging][diagnosis]") {
  Observation observation = seen(0.4, 8, 8);
  observation.gpu_utilisation = 0.55;
  const LoaderSettings settings{.num_workers = 4, .prefetch_factor = 2, .on_gpu = true, .pinned = true, .cpus = 8};
  CHECK(rows(observation, settings) == "short_ring --prefetch_factor");
  CHECK(text(observation, settings).ends_with("raise --prefetch_factor from 2 to 4"));
}

TEST_CASE("A periodic swing needs more workers", "[logging][diagnosis]") {
  Observation observation = seen(0.5, 10, 10);
  observation.swing = Swing{.min = 0.09, .max = 0.90, .period = 9};
  CHECK(text(observation, {.num_workers = 2, .cpus = 8}) ==
        "data wait 50%: the load swings between 9% and 90% every 9.0 s; raise --num_workers from 2 to 4");
  CHECK(rows(observation, {.num_workers = 2, .cpus = 8}) == "swing --num_workers");
  observation.loader.wait_seconds = 0.1;  // a swing of the step itself is not caused by the loader
  CHECK(rows(observation, {.num_workers = 2, .cpus = 8}).empty());
}

TEST_CASE("Epochs that begin without a ready batch need persistent workers", "[logging][diagnosis]") {
  LoaderSettings settings{.num_workers = 2, .persistent_workers = false, .batches_per_epoch = 10, .cpus = 8};
  CHECK(rows(seen(0.3, 6, 6), settings) == "epoch_start --persistent_workers");
  settings.persistent_workers = true;
  CHECK(rows(seen(0.3, 6, 6), settings) == "short_ring --prefetch_factor");
}

TEST_CASE("Low memory needs a smaller batch, or fewer workers if it is the host's", "[logging][diagnosis]") {
  const LoaderSettings settings{.batch_size = 32, .num_workers = 8, .on_gpu = true, .pinned = true, .cpus = 16};
  Observation observation = seen(0.01);
  observation.gpu = GpuMemory{.total_bytes = int64_t{80} << 30, .free_bytes = int64_t{20} << 30};
  observation.host = {.total_bytes = int64_t{64} << 30, .available_bytes = int64_t{8} << 30};
  CHECK(rows(observation, settings).empty());
  observation.host.available_bytes = int64_t{3} << 30;
  CHECK(text(observation, settings).ends_with("lower --num_workers from 8 to 4, or --batch_size"));
  observation.gpu->retries = 3;
  CHECK(text(observation, settings).find("3 allocation retries; lower --batch_size from 32 to 16") !=
        std::string::npos);
  observation.gpu = GpuMemory{.total_bytes = int64_t{80} << 30, .free_bytes = int64_t{3} << 30};
  CHECK(rows(observation, settings) == "memory --batch_size");
}

TEST_CASE("A wait of half the timeout needs a longer timeout", "[logging][diagnosis]") {
  Observation observation = seen(0.01);
  observation.loader.longest_wait_seconds = 29;
  CHECK(rows(observation, {.num_workers = 2, .timeout_seconds = 60, .cpus = 8}).empty());
  CHECK(rows(observation, {.num_workers = 2, .timeout_seconds = 0, .cpus = 8}).empty());
  observation.loader.longest_wait_seconds = 45;
  CHECK(text(observation, {.num_workers = 2, .timeout_seconds = 60, .cpus = 8}) ==
        "a wait for data took 45 s of the 60 s allowed; raise --timeout to 120");
}

TEST_CASE("Copies from pageable memory need --pin_memory", "[logging][diagnosis]") {
  Observation observation = seen(0.01);
  observation.steps.copy_seconds = 2;
  const LoaderSettings pageable{.num_workers = 2, .on_gpu = true, .pinned = false, .cpus = 8};
  CHECK(rows(observation, pageable) == "pinned_memory --pin_memory");
  LoaderSettings pinned = pageable;
  pinned.pinned = true;
  CHECK(rows(observation, pinned).empty());
  LoaderSettings cpu = pageable;
  cpu.on_gpu = false;
  CHECK(rows(observation, cpu).empty());
  observation.steps.copy_seconds = 0;
  observation.gpu_utilisation = 0.9;
  CHECK(rows(observation, pageable).empty());
  observation.gpu_utilisation = 0.6;
  CHECK(rows(observation, pageable).starts_with("pinned_memory --pin_memory"));
}

TEST_CASE("A batch is too small if the GPU idles or the update or all-reduce dominates", "[logging][diagnosis]") {
  const LoaderSettings gpu{.batch_size = 16, .num_workers = 2, .on_gpu = true, .pinned = true, .cpus = 8};
  Observation observation = seen(0.01);
  observation.gpu_utilisation = 0.75;
  CHECK(rows(observation, gpu).empty());
  observation.gpu_utilisation = 0.35;
  CHECK(text(observation, gpu) ==
        "the GPU works 35% of the time and does not wait for data, the batch is too small for it; raise --batch_size "
        "from 16 to 32");
  Observation brief{.seconds = 4, .gpu_utilisation = 0.35};  // too short for the driver's mean
  brief.loader.batches = 100;
  CHECK(rows(brief, gpu).empty());

  const LoaderSettings cpu{.batch_size = 16, .num_workers = 2, .cpus = 8};
  observation = seen(0.01);
  observation.steps.update_seconds = 3;
  CHECK(rows(observation, cpu).empty());
  observation.steps.update_seconds = 6;
  CHECK(rows(observation, cpu) == "small_batch --batch_size");
  observation.steps = {.reduce_seconds = 4};
  CHECK(rows(observation, cpu) == "small_batch --batch_size");
  observation.steps = {.reduce_seconds = 2};
  CHECK(rows(observation, cpu).empty());
}

TEST_CASE("Other processes that take the processors are reported with the threads that are left",
          "[logging][diagnosis]") {
  const LoaderSettings settings{.batch_size = 16, .num_workers = 1, .cpus = 4, .threads = 4};
  Observation observation = seen(0.01);  // of 10 s
  observation.processors = {.used = 20, .waited = 10, .others = 14, .all = 40};
  CHECK(rows(observation, settings) == "busy_machine --threads");
  CHECK(text(observation, settings) ==
        "other processes use 35% of the processors, and threads of this one waited 33% of their time for a processor; "
        "lower --threads from 4 to 2, stop the others, or reserve processors with taskset");
  LoaderSettings one = settings;
  one.threads = 1;
  CHECK(rows(observation, one) == "busy_machine ");
  observation.processors.waited = 1;  // the scheduler finds a processor for every thread
  CHECK(rows(observation, settings).empty());
  observation.processors = {.used = 20, .waited = 10, .others = 1, .all = 40};  // too many threads of our own
  CHECK(rows(observation, settings).empty());
  observation.processors = {.used = 1, .waited = 1, .others = 20, .all = 40};  // hardly any work
  CHECK(rows(observation, settings).empty());
}

TEST_CASE("A few batches are not enough for advice", "[logging][diagnosis]") {
  Observation few = seen(0.9, 10, 10);
  few.loader.batches = 9;
  CHECK(rows(few, {.num_workers = 1, .cpus = 4}).empty());
  CHECK(rows({}, {}).empty());
}

TEST_CASE("The time shares of a step add up to its time", "[logging][diagnosis]") {
  Observation observation = seen(0.25);
  observation.loader.copy_seconds = 0.5;
  observation.steps = {.copy_seconds = 0.5, .reduce_seconds = 2, .update_seconds = 1};
  const StepSplit split = split_of(observation.seconds, observation.loader, observation.steps);
  CHECK(split.wait == Approx(0.25));
  CHECK(split.copy == Approx(0.1));
  CHECK(split.reduce == Approx(0.2));
  CHECK(split.compute == Approx(0.45));
  CHECK(split.update == Approx(0.1));
  CHECK(split_of(0, observation.loader, observation.steps).compute == 0);
}

TEST_CASE("The difference of two observations is the activity between them", "[logging][diagnosis]") {
  PrefetcherStats before = seen(0.9, 10).loader, after = before;
  after.batches += 20;
  after.rows += 320;
  after.wait_seconds += 1;
  after.consumer_seconds += 3;
  after.read_seconds += 2;
  after.copy_seconds += 0.5;
  after.ready_batches += 40;
  const PrefetcherStats between = difference(after, before);
  CHECK(between.batches == 20);
  CHECK(between.rows == 320);
  CHECK(between.wait_fraction() == Approx(0.25));
  CHECK(between.read_seconds == Approx(2));
  CHECK(between.copy_seconds == Approx(0.5));
  CHECK(between.ready_batches == 40);
  CHECK(between.allocations == 0);
}

}  // namespace
}  // namespace trainkit
