#include "trainkit/run_comparison.h"

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "core/machine/cgroup.h"
#include "logging/field_names.h"
#include "logging/tf_event.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/logging/sinks.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;
namespace fields = detail::fields;

std::vector<std::string> names_in(const std::string& folder,
                                  const std::function<bool(const fs::directory_entry&)>& keep) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (keep(entry)) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> checkpoints_of(const std::string& run) {
  return names_in(run + "/checkpoints", [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with("step-") && entry.is_directory();
  });
}

/// Returns whether two files have the same bytes. Reads them in blocks and adds the equal bytes to `bytes`.
bool same_bytes(const std::string& a, const std::string& b, int64_t& bytes) {
  std::ifstream one(a, std::ios::binary), two(b, std::ios::binary);
  std::vector<char> left(1 << 20), right(1 << 20);
  while (one && two) {
    one.read(left.data(), static_cast<std::streamsize>(left.size()));
    two.read(right.data(), static_cast<std::streamsize>(right.size()));
    if (one.gcount() != two.gcount() || !std::equal(left.begin(), left.begin() + one.gcount(), right.begin()))
      return false;
    bytes += one.gcount();
  }
  return one.eof() && two.eof();
}

/// Describes which tensors of two files differ: "'fc.weight' and 3 more of 12 tensors".
absl::StatusOr<std::string> tensor_difference(const std::string& a, const std::string& b) {
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile one, SafetensorsFile::open(a));
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile two, SafetensorsFile::open(b));
  if (one.names() != two.names()) return "the tensor names differ";
  std::string first;
  int64_t more = 0;
  for (const std::string& name : one.names()) {
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor left, one.tensor(name));
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor right, two.tensor(name));
    const bool alike = left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type();
    if (alike && at::equal(left, right)) continue;
    (first.empty() ? first = name : std::to_string(++more));
  }
  if (first.empty()) return "equal values, but other bytes in the file";
  return fmt::format("'{}'{} of {} tensors", first, more ? fmt::format(" and {} more", more) : "", one.names().size());
}

/// Formats a value of state.json for a message.
std::string text_of(const StateValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return fmt::format("{}", *number);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
    std::string text;
    for (const int64_t number : *list) text += fmt::format("{}{}", text.empty() ? "" : ", ", number);
    return text;
  }
  return "a tensor or a list";
}

bool same_value(const StateValue& a, const StateValue& b) {
  if (a.index() != b.index()) return false;
  if (const auto* tensor = std::get_if<at::Tensor>(&a)) {
    const auto& other = std::get<at::Tensor>(b);
    return tensor->sizes() == other.sizes() && tensor->scalar_type() == other.scalar_type() &&
           at::equal(*tensor, other);
  }
  if (const auto* number = std::get_if<double>(&a)) {
    return fmt::format("{}", *number) == fmt::format("{}", std::get<double>(b));  // NaN equals NaN
  }
  if (const auto* list = std::get_if<std::vector<double>>(&a)) return *list == std::get<std::vector<double>>(b);
  return text_of(a) == text_of(b);
}

bool is_row_order(const std::string& name) { return name.starts_with("rows.") || name.starts_with("loader."); }

/// Describes the first entry that differs between two states; empty if none does. With `row_order` it compares only the
/// entries about the order of rows, otherwise only the other entries.
std::string state_difference(const StateDict& a, const StateDict& b, bool row_order) {
  std::set<std::string> names;
  for (const StateDict* state : {&a, &b}) {
    for (const auto& [name, value] : *state) names.insert(name);
  }
  for (const std::string& name : names) {
    if (is_row_order(name) != row_order) continue;
    // Skip the digest of the rows' bytes: another data feed (--feed) delivers the same rows in another form.
    if (name == "loader.digest") continue;
    const auto left = a.find(name), right = b.find(name);
    if (left != a.end() && right != b.end() && same_value(left->second, right->second)) continue;
    return fmt::format("{}: {} and {}", name, left == a.end() ? "nothing" : text_of(left->second),
                       right == b.end() ? "nothing" : text_of(right->second));
  }
  return "";
}

absl::Status compare_checkpoints(const std::string& reference, const std::string& other, std::vector<Compared>& out) {
  const std::vector<std::string> ours = checkpoints_of(reference), theirs = checkpoints_of(other);
  Compared weights{.what = "weights"}, optimizer{.what = "optimizer"}, rows{.what = "order of rows"},
      state{.what = "other state"};
  int64_t weight_bytes = 0, optimizer_bytes = 0, checkpoints = 0, entries = 0, row_count = 0;
  for (const std::string& step : ours) {
    const std::string a = reference + "/checkpoints/" + step, b = other + "/checkpoints/" + step;
    if (!std::binary_search(theirs.begin(), theirs.end(), step)) {
      if (step == ours.back() && weights.difference.empty()) weights.difference = step + " is missing";
      continue;
    }
    ++checkpoints;
    const auto tensors = [&](const std::string& file, int64_t& bytes, Compared& compared) -> absl::Status {
      if (same_bytes(a + file, b + file, bytes) || !compared.difference.empty()) return absl::OkStatus();
      TRAINKIT_ASSIGN_OR_RETURN(const std::string which, tensor_difference(a + file, b + file));
      compared.difference = step + ": " + which;
      return absl::OkStatus();
    };
    TRAINKIT_RETURN_IF_ERROR(tensors("/model.safetensors", weight_bytes, weights));
    TRAINKIT_RETURN_IF_ERROR(tensors("/optimizer.safetensors", optimizer_bytes, optimizer));
    TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath one, resolve_checkpoint(a, reference));
    TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath two, resolve_checkpoint(b, other));
    TRAINKIT_ASSIGN_OR_RETURN(const StateDict left, load_checkpoint_state(one));
    TRAINKIT_ASSIGN_OR_RETURN(const StateDict right, load_checkpoint_state(two));
    entries = static_cast<int64_t>(left.size());
    if (const auto counts = get_state<std::vector<int64_t>>(left, "rows.counts"); counts.ok()) {
      row_count = 0;
      for (const int64_t count : *counts) row_count += count;
    }
    for (const bool row_order : {true, false}) {
      Compared& compared = row_order ? rows : state;
      const std::string difference = state_difference(left, right, row_order);
      if (!difference.empty() && compared.difference.empty()) compared.difference = step + ": " + difference;
    }
  }
  weights.amount = fmt::format("{} checkpoints, {}", checkpoints, format_size(weight_bytes));
  optimizer.amount = fmt::format("{} checkpoints, {}", checkpoints, format_size(optimizer_bytes));
  rows.amount = fmt::format("{} rows up to the last checkpoint", row_count);
  state.amount = fmt::format("{} checkpoints of {} entries", checkpoints, entries);
  out.insert(out.end(), {weights, optimizer, rows, state});
  return absl::OkStatus();
}

/// Returns whether a logged value depends on time or on the machine, or is in `ignored`.
bool is_measured(const std::string& name, const std::vector<std::string>& ignored) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  return ends("_per_second") || ends("_fraction") || ends("_seconds") || ends("_bytes") ||
         name == fields::kUtilisation || name == fields::kQueueDepth || name == fields::kTime ||
         std::find(ignored.begin(), ignored.end(), name) != ignored.end();
}

absl::StatusOr<Compared> compare_records(const std::string& reference, const std::string& other,
                                         const std::vector<std::string>& ignored) {
  Compared compared{.what = "logged scalars"};
  std::vector<std::vector<LogRecord>> runs;
  int64_t scalars = 0;
  for (const std::string& run : {reference, other}) {
    auto records = read_jsonl(run + "/metrics.jsonl");
    if (!records.ok()) {
      if (!absl::IsNotFound(records.status())) return records.status();
      records = std::vector<LogRecord>{};
    }
    for (LogRecord& record : *records) {
      std::erase_if(record.values, [&](const auto& value) { return is_measured(value.first, ignored); });
      record.gpu_memory_bytes.clear();
      record.gpu_utilisation.clear();
      if (runs.empty()) scalars += static_cast<int64_t>(record.values.size() + record.lr.size());
    }
    runs.push_back(std::move(*records));
  }
  compared.amount = fmt::format("{} records, {} values", runs[0].size(), scalars);
  std::set<std::pair<std::string, int64_t>> met;
  for (size_t i = 0; i < std::max(runs[0].size(), runs[1].size()) && compared.difference.empty(); ++i) {
    const std::string left = i < runs[0].size() ? to_json(runs[0][i]) : "nothing";
    const std::string right = i < runs[1].size() ? to_json(runs[1][i]) : "nothing";
    if (left != right) compared.difference = fmt::format("record {}: {} and {}", i + 1, left, right);
    if (i < runs[1].size() && !met.emplace(runs[1][i].split, runs[1][i].step).second && left != right) {
      compared.difference += fmt::format("; duplicate of step {}", runs[1][i].step);
    }
  }
  return compared;
}

/// Returns the step of every event with data in a folder of TensorBoard event files, in order. -1 marks an
/// incomplete event at the end of a file. Leaves out the marks that each file starts with (version, session start)
/// and descriptions of the run.
std::vector<int64_t> event_steps(const std::string& folder) {
  const auto is_mark = [](std::string_view event, int64_t step) {
    constexpr size_t kTime = 9;  // the wall time comes first
    detail::EventBuilder version(0, step), start(0, step);
    version.file_version();
    start.session_start();
    return event.substr(kTime) == version.finish().substr(kTime) || event.substr(kTime) == start.finish().substr(kTime);
  };
  std::vector<int64_t> steps;
  const auto files = names_in(folder, [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with("events.out.tfevents.");
  });
  for (const std::string& file : files) {
    const std::string bytes = detail::read_text(folder + "/" + file);
    size_t offset = 0;
    while (const auto event = detail::next_record(bytes, offset)) {
      const int64_t step = detail::event_step(*event).value_or(-1);
      if (event->size() >= 9 && !is_mark(*event, step) && !detail::event_is_description(*event)) steps.push_back(step);
    }
    if (offset != bytes.size()) steps.push_back(-1);
  }
  return steps;
}

Compared compare_events(const std::string& reference, const std::string& other) {
  Compared compared{.what = "TensorBoard"};
  const std::vector<int64_t> left = event_steps(reference + "/tensorboard"),
                             right = event_steps(other + "/tensorboard");
  if (left.empty() && right.empty()) return compared;
  compared.amount = fmt::format("{} events", left.size());
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    if (i < left.size() && i < right.size() && left[i] == right[i]) continue;
    const auto step = [i](const std::vector<int64_t>& steps) {
      return i >= steps.size() ? "nothing" : steps[i] < 0 ? "an incomplete event" : fmt::format("step {}", steps[i]);
    };
    compared.difference = fmt::format("event {}: {} and {}", i + 1, step(left), step(right));
    break;
  }
  return compared;
}

Compared compare_files(const std::string& reference, const std::string& other) {
  Compared compared{.what = "files"};
  const std::set<std::string> others = {
      "config.yaml", "summary.json",           "error.json", "run.json", "metrics.jsonl",
      "report.html", "best.before.safetensors"};
  auto files = names_in(reference, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    // The record of a text has the times of its files.
    return entry.is_regular_file() && !others.contains(name) && !name.ends_with(".tokens.json");
  });
  std::error_code none;
  for (const auto& entry : fs::recursive_directory_iterator(reference + "/results", none)) {
    if (entry.is_regular_file()) files.push_back(entry.path().lexically_relative(reference).string());
  }
  std::sort(files.begin(), files.end());
  std::string list;
  int64_t bytes = 0;
  for (const std::string& file : files) {
    list += (list.empty() ? "" : ", ") + file;
    if (same_bytes(reference + "/" + file, other + "/" + file, bytes) || !compared.difference.empty()) continue;
    compared.difference = file + (fs::exists(other + "/" + file) ? "" : " is missing");
  }
  if (!files.empty()) compared.amount = list;
  return compared;
}

}  // namespace

absl::StatusOr<std::vector<Compared>> compare_runs(const std::string& reference, const std::string& other,
                                                   const std::vector<std::string>& ignored) {
  std::vector<Compared> all;
  TRAINKIT_RETURN_IF_ERROR(compare_checkpoints(reference, other, all));
  TRAINKIT_ASSIGN_OR_RETURN(all.emplace_back(), compare_records(reference, other, ignored));
  all.push_back(compare_events(reference, other));
  all.push_back(compare_files(reference, other));
  return all;
}

}  // namespace trainkit::tool
