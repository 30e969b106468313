// The histograms of a run that was killed: whole lines are read, a resume truncates the rest.
#include <filesystem>

#include "logging/media.h"
#include "target.h"
#include "trainkit/logging/sinks.h"

namespace trainkit::fuzz::histograms {

std::vector<std::string> seeds() {
  const LogHistogram first{.step = 1, .tag = "weights/fc", .min = -1, .max = 2.5, .sum = 3, .counts = {1, 0, 5}};
  const LogHistogram second{.step = 2, .tag = "test/a b", .non_finite = 7};
  const std::string one = detail::to_json(first), two = detail::to_json(second);
  return {one + "\n" + two + "\n", two + "\n{\"step\":3,\"ta", one + "\n" + one};
}

int test_one_input(const uint8_t* data, size_t size) {
  const std::string_view bytes = as_text(data, size);
  const std::string path = write_bytes(detail::kHistogramFile, bytes);
  const std::vector<LogHistogram> all = detail::read_histograms(path);
  std::string written;
  for (const LogHistogram& h : all) written += detail::to_json(h) + "\n";
  std::string twice;
  const std::vector<LogHistogram> again = detail::read_histograms(write_bytes("again.jsonl", written));
  for (const LogHistogram& h : again) twice += detail::to_json(h) + "\n";
  require(again.size() == all.size() && twice == written, "a histogram that was read can be written and read back");

  const int64_t step = all.empty() ? 0 : all.front().step;
  MediaLogger logger(std::filesystem::path(path).parent_path());
  require(logger.rewind(step).ok(), "a resume truncates the file");
  require(bytes.starts_with(read_bytes(path)), "kept histograms are unchanged");
  for (const LogHistogram& h : detail::read_histograms(path)) require(h.step <= step, "no later step is kept");
  logger.log_histogram({.step = step, .tag = "next"});
  require(logger.flush().ok(), "and continues");
  require(detail::read_histograms(path).back().tag == "next", "with whole lines");
  return 0;
}

const Registered target("histograms", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::histograms
