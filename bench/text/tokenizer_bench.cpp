// GPT-2's tokens of a text by one thread and by two, in turns within a repetition.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "made_up.h"

namespace {

using namespace trainkit;

double seconds_of(const Gpt2Tokenizer& tokenizer, const std::string& text, int threads) {
  at::set_num_threads(threads);
  const auto start = std::chrono::steady_clock::now();
  if (!tokenizer.encode(text, [](std::span<const TokenId>) { return absl::OkStatus(); }).ok()) std::abort();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Two threads that each encode the whole text, which have nothing in common but the machine.
double seconds_of_two(const Gpt2Tokenizer& tokenizer, const std::string& text) {
  at::set_num_threads(1);
  const auto start = std::chrono::steady_clock::now();
  std::thread other([&] { seconds_of(tokenizer, text, 1); });
  seconds_of(tokenizer, text, 1);
  other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// two_threads is the time of one thread divided by that of two. two_texts is what the machine gives: twice the time of
/// one thread divided by that of two threads with a text each. The rate is that of two threads.
void BM_Gpt2Tokens(benchmark::State& state) {
  const std::string text = bench::made_up_text(8);
  const auto tokenizer = bench::pairs_of_letters();
  const int before = at::get_num_threads();
  double one = 0, two = 0, texts = 0;
  for (auto _ : state) {
    one += seconds_of(*tokenizer, text, 1);
    texts += seconds_of_two(*tokenizer, text);
    const double seconds = seconds_of(*tokenizer, text, 2);
    two += seconds;
    state.SetIterationTime(seconds);
  }
  at::set_num_threads(before);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["two_threads"] = one / two;
  state.counters["two_texts"] = 2 * one / texts;
}
BENCHMARK(BM_Gpt2Tokens)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
