// Writes and reads weights, compared with a bare write, read and memcpy of the same bytes. Ours and the floor alternate
// within one repetition; the counters are ratios of their times, higher is better.
#include <ATen/Functions.h>
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "trainkit/io/safetensors.h"

namespace {

using namespace trainkit;

/// A folder on the measured disk: TRAINKIT_BENCH_DIR, or the folder for temporary files.
class Folder {
 public:
  Folder() {
    const char* chosen = std::getenv("TRAINKIT_BENCH_DIR");
    std::string name =
        (chosen ? std::string(chosen) : std::filesystem::temp_directory_path().string()) + "/trainkit-bench-XXXXXX";
    if (!mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// 64 tensors with `bytes` bytes in total.
NamedTensors tensors_of(int64_t bytes) {
  NamedTensors tensors;
  for (int i = 0; i < 64; ++i)
    tensors.emplace_back(std::string("layer.").append(std::to_string(i)), at::rand({bytes / 64 / 4}));
  return tensors;
}

template <class Work>
double seconds(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void require(bool ok) {
  if (!ok) std::abort();
}

void plain_write(const std::string& path, const NamedTensors& tensors) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  for (const auto& [name, tensor] : tensors) {
    require(write(file, tensor.const_data_ptr(), tensor.nbytes()) == static_cast<ssize_t>(tensor.nbytes()));
  }
  require(fsync(file) == 0 && close(file) == 0);
}

/// Reads a whole file into newly allocated memory, as a tensor's is.
void plain_read(const std::string& path, int64_t bytes) {
  const int file = open(path.c_str(), O_RDONLY);
  const at::Tensor memory = at::empty({bytes}, at::kByte);
  for (int64_t at = 0; at < bytes;) {
    const ssize_t got = pread(file, static_cast<char*>(memory.data_ptr()) + at, static_cast<size_t>(bytes - at), at);
    require(got > 0);
    at += got;
  }
  close(file);
}

void report(benchmark::State& state, int64_t bytes, double ours, double floor, const char* name) {
  state.counters["bytes_per_second"] = benchmark::Counter(static_cast<double>(bytes * state.iterations()) / ours);
  state.counters[name] = floor / ours;
}

void BM_SaveSafetensors(benchmark::State& state) {
  const Folder folder;
  const NamedTensors tensors = tensors_of(state.range(0));
  plain_write(folder / "floor", tensors);
  double ours = 0, floor = 0;
  for (auto _ : state) {
    const double once = seconds([&] { require(save_safetensors(Fs::posix(), folder / "ours", tensors).ok()); });
    floor += seconds([&] { plain_write(folder / "floor", tensors); });
    state.SetIterationTime(once);
    ours += once;
  }
  report(state, state.range(0), ours, floor, "over_plain_write");
}
BENCHMARK(BM_SaveSafetensors)->Arg(1 << 20)->Arg(256 << 20)->UseManualTime()->Unit(benchmark::kMillisecond);

void BM_LoadSafetensors(benchmark::State& state) {
  const Folder folder;
  const NamedTensors tensors = tensors_of(state.range(0));
  require(save_safetensors(Fs::posix(), folder / "ours", tensors).ok());
  plain_write(folder / "floor", tensors);
  double ours = 0, floor = 0;
  for (auto _ : state) {
    const double once =
        seconds([&] { benchmark::DoNotOptimize(SafetensorsFile::open(folder / "ours")->tensors().value()); });
    floor += seconds([&] { plain_read(folder / "floor", state.range(0)); });
    state.SetIterationTime(once);
    ours += once;
  }
  report(state, state.range(0), ours, floor, "over_plain_read");
}
BENCHMARK(BM_LoadSafetensors)->Arg(1 << 20)->Arg(256 << 20)->UseManualTime()->Unit(benchmark::kMillisecond);

void BM_Digest(benchmark::State& state) {
  const auto size = static_cast<size_t>(state.range(0));
  const std::string bytes(size, 'x');
  std::string copy(size, '\0');
  double ours = 0, floor = 0;
  for (auto _ : state) {
    const double once = seconds([&] { benchmark::DoNotOptimize(Digest::of(bytes)); });
    floor += seconds([&] { benchmark::DoNotOptimize(std::memcpy(copy.data(), bytes.data(), size)); });
    state.SetIterationTime(once);
    ours += once;
  }
  report(state, state.range(0), ours, floor, "over_memcpy");
}
BENCHMARK(BM_Digest)->Arg(64 << 20)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
