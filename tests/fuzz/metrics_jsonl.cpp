// The metrics.jsonl of a run that was killed: readable records are kept, a resume truncates the rest.
#include <algorithm>
#include <limits>

#include "target.h"
#include "trainkit/logging/sinks.h"

namespace trainkit::fuzz::metrics_jsonl {

std::vector<std::string> seeds() {
  const LogRecord first{.step = 1,
                        .epoch = 0.5,
                        .values = {{"loss", 2.25}, {"grad_norm", 1e300}},
                        .lr = {1e-3},
                        .gpu_memory_bytes = {1 << 30}};
  const LogRecord second{
      .step = 2, .split = "val", .values = {{"loss", std::numeric_limits<double>::quiet_NaN()}, {"a b", -1}}};
  return {to_json(first) + "\n" + to_json(second) + "\n", to_json(second) + "\n{\"step\":3,\"ep", "{\"step\":-1}\n"};
}

int test_one_input(const uint8_t* data, size_t size) {
  const std::string_view bytes = as_text(data, size);
  const std::string path = write_bytes("metrics.jsonl", bytes);
  const auto records = read_jsonl(path);
  require(records.ok(), "broken records are skipped: " + records.status().ToString());
  std::string written;
  for (const LogRecord& record : *records) written += to_json(record) + "\n";
  const auto again = read_jsonl(write_bytes("again.jsonl", written));
  require(again.ok() && again->size() == records->size(), "a record that was read can be written");
  std::string twice;
  for (const LogRecord& record : *again) twice += to_json(record) + "\n";
  require(twice == written, "and is read back");

  const int64_t step = records->empty() ? 0 : records->front().step;
  const auto later = std::find_if(records->begin(), records->end(), [&](const LogRecord& r) {
    return r.step > step || (r.step == step && r.split == "test");  // which is run again
  });
  const auto logger = JsonlLogger::open(path);
  require(logger.ok() && (*logger)->rewind(step).ok(), "a resume truncates it");
  (*logger)->log({.step = step});
  require((*logger)->flush().ok(), "and continues");
  const std::string kept = read_bytes(path);
  const auto now = read_jsonl(path);
  const auto wanted = static_cast<size_t>(later - records->begin()) + 1;
  require(now->size() == wanted && now->back().step == step, "no later step precedes the new one");
  const std::string_view before(kept.data(), kept.rfind('\n', kept.size() - 2) + 1);
  require(bytes.starts_with(before), "kept records are unchanged");
  return 0;
}

const Registered target("metrics_jsonl", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::metrics_jsonl
