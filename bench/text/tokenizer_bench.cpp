// GPT-2's tokens of a text by one thread and by two, in turns within a repetition.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdlib>

#include "made_up.h"

namespace {

using namespace trainkit;

double seconds_of(const Gpt2Tokenizer& tokenizer, const std::string& text, int threads) {
  at::set_num_threads(threads);
  const auto start = std::chrono::steady_clock::now();
  if (!tokenizer.encode(text, [](std::span<const TokenId>) { return absl::OkStatus(); }).ok()) std::abort();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The counter is the time of one thread divided by that of two. The rate is that of two threads.
void BM_Gpt2Tokens(benchmark::State& state) {
  const std::string text = bench::made_up_text(8);
  const auto tokenizer = bench::pairs_of_letters();
  const int before = at::get_num_threads();
  double one = 0, two = 0;
  for (auto _ : state) {
    one += seconds_of(*tokenizer, text, 1);
    const double seconds = seconds_of(*tokenizer, text, 2);
    two += seconds;
    state.SetIterationTime(seconds);
  }
  at::set_num_threads(before);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["two_threads"] = one / two;
}
BENCHMARK(BM_Gpt2Tokens)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
