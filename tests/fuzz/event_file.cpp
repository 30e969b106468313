// A TensorBoard event file of a run that was killed: after a resume its records are complete and of no later step.
#include <filesystem>

#include "logging/tf_event.h"
#include "target.h"
#include "trainkit/logging/sinks.h"

namespace trainkit::fuzz::event_file {

namespace {

/// Splits the input into events at each NUL NUL; each gets a record with correct checksums, except the last, which
/// stays unchanged.
std::string framed(std::string_view bytes) {
  std::string file;
  for (;;) {
    const size_t end = bytes.find(std::string_view("\0\0", 2));
    if (end == bytes.npos) return file + std::string(bytes);
    file += detail::frame_record(bytes.substr(0, end));
    bytes.remove_prefix(end + 2);
  }
}

std::vector<std::string> events(int64_t step) {
  detail::EventBuilder version(1e9, 0), mark(1e9, step), scalar(1e9, step), text(1e9, step);
  version.file_version();
  mark.session_start();
  scalar.scalar("train/loss", 2.5f);
  text.text("sample", "some text");
  return {version.finish(), mark.finish(), scalar.finish(), text.finish()};
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string end("\0\0", 2);
  std::string whole, cut;
  for (const int64_t step : {2, 3}) {
    for (const std::string& event : events(step)) whole += event + end, cut += detail::frame_record(event);
  }
  return {whole, cut, cut.substr(0, cut.size() - 5)};
}

int test_one_input(const uint8_t* data, size_t size) {
  constexpr int64_t kStep = 2;
  const std::string file = framed(as_text(data, size));
  size_t offset = 0, whole = 0;
  for (int records = 0; const auto event = detail::next_record(file, offset); ++records) {
    const bool is_mark = detail::event_is_session(*event);  // of the step after the resumed one
    const int64_t step = detail::event_step(*event).value_or(kStep + 1);
    if (step > kStep + (is_mark ? 1 : 0) || (step == kStep && detail::event_is_of(*event, "test")))
      break;  // a test is run again
    if (!is_mark && records > 0) whole = offset;
  }
  const std::string folder = fuzz::folder() + "/tensorboard";
  std::filesystem::create_directories(folder);
  const std::string path = write_bytes("tensorboard/events.out.tfevents.0000000001.host.1.trainkit", file);
  {
    auto logger = TensorBoardLogger::open(folder);
    require(logger.ok() && (*logger)->rewind(kStep).ok(), "a resume truncates it");
  }
  const std::string kept = std::filesystem::exists(path) ? read_bytes(path) : "";
  require(kept.size() <= file.size() && file.starts_with(kept), "kept records are unchanged");
  require(kept.size() == whole, "all complete records up to the step are kept");
  std::filesystem::remove_all(folder);
  return 0;
}

const Registered target("event_file", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::event_file
