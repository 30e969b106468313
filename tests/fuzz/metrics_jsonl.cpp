// The metrics.jsonl of a run that was killed: readable records are kept, a resume truncates the rest.
#include <algorithm>
#include <limits>

#include "target.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;

std::vector<std::string> fuzz::seeds() {
  const LogRecord first{.step = 1,
                        .epoch = 0.5,
                        .values = {{"loss", 2.25}, {"grad_norm", 1e300}},
                        .lr = {1e-3},
                        .gpu_memory_bytes = {1 << 30}};
  const LogRecord second{
      .step = 2, .split = "val", .values = {{"loss", std::numeric_limits<double>::quiet_NaN()}, {"a b", -1}}};
  return {to_json(first) + "\n" + to_json(second) + "\n", to_json(second) + "\n{\"step\":3,\"ep", "{\"step\":-1}\n"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = fuzz::as_text(data, size);
  const std::string path = fuzz::write_bytes("metrics.jsonl", bytes);
  const auto records = read_jsonl(path);
  fuzz::require(records.ok(), "broken records are skipped: " + records.status().ToString());
  std::string written;
  for (const LogRecord& record : *records) written += to_json(record) + "\n";
  const auto again = read_jsonl(fuzz::write_bytes("again.jsonl", written));
  fuzz::require(again.ok() && again->size() == records->size(), "a record that was read can be written");
  std::string twice;
  for (const LogRecord& record : *again) twice += to_json(record) + "\n";
  fuzz::require(twice == written, "and is read back");

  const int64_t step = records->empty() ? 0 : records->front().step;
  const auto later = std::find_if(records->begin(), records->end(), [&](const LogRecord& r) {
    return r.step > step || (r.step == step && r.split == "test");  // which is run again
  });
  const auto logger = JsonlLogger::open(path);
  fuzz::require(logger.ok() && (*logger)->rewind(step).ok(), "a resume truncates it");
  (*logger)->log({.step = step});
  fuzz::require((*logger)->flush().ok(), "and continues");
  const std::string kept = fuzz::read_bytes(path);
  const auto now = read_jsonl(path);
  const auto wanted = static_cast<size_t>(later - records->begin()) + 1;
  fuzz::require(now->size() == wanted && now->back().step == step, "no later step precedes the new one");
  const std::string_view before(kept.data(), kept.rfind('\n', kept.size() - 2) + 1);
  fuzz::require(bytes.starts_with(before), "kept records are unchanged");
  return 0;
}
