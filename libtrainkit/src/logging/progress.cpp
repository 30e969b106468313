#include <absl/strings/ascii.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <utility>
#include <vector>

#include "core/machine/sigpipe.h"
#include "logging/field_names.h"
#include "trainkit/core/format.h"
#include "trainkit/logging/sinks.h"

namespace trainkit {
namespace {

namespace fields = detail::fields;

constexpr double kRedrawSeconds = 0.1;
constexpr double kRateMemorySeconds = 30;
constexpr int kMaxBar = 40, kMinBar = 8;
constexpr size_t kTableRows = 6;  // heading included

using Row = std::vector<std::string>;

/// Number of characters of UTF-8 text.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xc0) != 0x80; }));
}

bool is_row(const std::string& line) { return line.size() > 1 && line.front() == '|' && line.back() == '|'; }

bool is_rule(const std::string& line) {
  return is_row(line) && line.find_first_not_of("|-: ") == std::string::npos && line.find('-') != std::string::npos;
}

Row cells_of(const std::string& line) {
  Row cells;
  for (const absl::string_view cell : absl::StrSplit(absl::string_view(line).substr(1, line.size() - 2), '|')) {
    cells.emplace_back(absl::StripAsciiWhitespace(cell));
  }
  return cells;
}

/// Whether `cell` starts like a number, or is empty.
bool is_number(const std::string& cell) {
  return cell.empty() || cell == "-" || cell == "nan" || (cell[0] >= '0' && cell[0] <= '9') ||
         (cell.size() > 1 && (cell[0] == '-' || cell[0] == '+' || cell[0] == '.') && cell[1] >= '0' && cell[1] <= '9');
}

std::string columns(const std::vector<Row>& rows) {
  std::string out;
  std::vector<size_t> widths(rows.front().size(), 0);
  std::vector<bool> right(widths.size(), true);
  for (const Row& row : rows) {
    for (size_t i = 0; i < std::min(row.size(), widths.size()); ++i) {
      widths[i] = std::max(widths[i], width_of(row[i]));
      right[i] = right[i] && i > 0 && (&row == &rows.front() || is_number(row[i]));
    }
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < std::min(row.size(), widths.size()); ++i) {
      const std::string space(widths[i] - width_of(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (right[i] ? space + row[i] : row[i] + space);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

/// Replaces each Markdown table of `text` by columns aligned with spaces. A column of numbers is right-aligned, except
/// the first one. Other lines stay as they are.
std::string align_tables(std::string_view text) {
  std::string out;
  const std::vector<std::string> lines = absl::StrSplit(absl::string_view(text.data(), text.size()), '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i + 1 < lines.size() && is_row(lines[i]) && is_rule(lines[i + 1])) {
      std::vector<Row> rows = {cells_of(lines[i])};
      for (i += 2; i < lines.size() && is_row(lines[i]); ++i) rows.push_back(cells_of(lines[i]));
      out += columns(rows);
      --i;
      continue;
    }
    out += lines[i];
    if (i + 1 < lines.size()) out += '\n';
  }
  return out;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Writes all of `text`. If the reader has exited, returns false instead of raising SIGPIPE.
bool write_all(int fd, std::string_view text) {
  const detail::SigpipeBlocked blocked;
  bool ok = true;
  while (ok && !text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count > 0) text.remove_prefix(static_cast<size_t>(count));
    if (count < 0 && errno == EAGAIN) break;  // the terminal is stopped: skip this text
    ok = count > 0 || (count < 0 && errno == EINTR);
  }
  return ok;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value && *value) return ::strcasestr(value, "utf-8") || ::strcasestr(value, "utf8");
  }
  return false;
}

bool can_move_cursor(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) && term && *term && std::strcmp(term, "dumb") != 0;
}

/// Formats the first throughput in the record, for example "12.3k tokens/s".
std::string throughput(const LogRecord& record) {
  constexpr std::pair<const char*, const char*> kRates[] = {{fields::kTokensPerSecond, "tokens"},
                                                            {fields::kSamplesPerSecond, "rows"}};
  for (const auto& [name, unit] : kRates) {
    if (const double* rate = record.find(name)) {
      return fmt::format("{} {}/s", format_count(*rate), unit);
    }
  }
  return "";
}

}  // namespace

class ConsoleProgress::Impl {
 public:
  Impl(std::FILE* stream, ProgressOptions options)
      : stream_(stream), fd_(::fileno(stream)), options_(std::move(options)), utf8_(locale_is_utf8()) {
    using Style = ProgressOptions::Style;
    bar_ = options_.style == Style::kBar || (options_.style == Style::kAuto && can_move_cursor(fd_));
    if (!options_.clock) options_.clock = steady_seconds;
    started_ = options_.clock();
  }

  void begin(const RunPlan& plan) {
    plan_ = plan;
    step_ = plan.first_step;
    started_ = rate_time_ = options_.clock();
    rate_steps_ = rate_seconds_ = 0;
    drawn_at_.reset();
    table_.clear();
  }

  void log(const LogRecord& record) {
    if (record.split != "train") return print(evaluation_line(record));
    advance(record.step);
    fields_ = training_fields(record);
    if (bar_) return redraw(false);
    std::string line = "step " + position_of(record.step);  // later steps may have started already
    for (const std::string& field : fields_) line += " | " + field;
    const Remaining left = remaining();
    if (left.seconds) line += " | left " + format_duration(*left.seconds) + (left.by_time ? " of max_time" : "");
    write(line + "\n");
  }

  void print(std::string_view text) {
    std::string line = format_text(text);
    if (line.empty() || line.back() != '\n') line += '\n';
    if (!bar_ || !drawn_) return write(line);
    // Erase the table and the bar, print the line in their place, and draw them below it.
    write(to_table() + (table_.empty() ? "\x1b[K" : "\x1b[J") + line + table_lines());
    redraw(true);
  }

  void show_row(std::string_view row) {
    std::string line = format_text(row);
    if (!bar_) return write(line + "\n");
    const std::string up = drawn_ ? to_table() : "";
    if (!table_.empty() && line == table_.front()) return;  // the heading again
    table_.push_back(std::move(line));
    if (table_.size() > kTableRows) table_.erase(table_.begin() + 1);
    write(up + table_lines());
    redraw(true);
  }

  void tick(int64_t step) {
    advance(step);
    if (bar_) redraw(false);
  }

  void close() {
    if (bar_ && drawn_) {
      redraw(true);
      write("\n");
      drawn_ = false;
    }
  }

 private:
  void advance(int64_t step) {
    const double now = options_.clock();
    if (step <= step_) return;
    if (rate_time_ >= 0) {
      // Exponentially weighted steps and seconds, with the same decay; their ratio is the speed.
      const double passed = now - rate_time_, keep = std::exp(-passed / kRateMemorySeconds);
      rate_steps_ = rate_steps_ * keep + static_cast<double>(step - step_);
      rate_seconds_ = rate_seconds_ * keep + passed;
    }
    rate_time_ = now;
    step_ = step;
  }

  /// What remains of the limit that is reached first.
  struct Remaining {
    std::optional<double> seconds;
    bool by_time = false;
  };

  Remaining remaining() const {
    std::optional<double> steps;
    if (plan_.total_steps > step_ && rate_steps_ > 0) {
      steps = static_cast<double>(plan_.total_steps - step_) * rate_seconds_ / rate_steps_;
    }
    const double time = plan_.max_seconds - (options_.clock() - started_);
    const bool by_time = plan_.max_seconds > 0 && (steps ? time < *steps : plan_.total_steps == 0);
    return by_time ? Remaining{std::max(time, 0.0), true} : Remaining{steps, false};
  }

  std::string position_of(int64_t step) const {
    const bool by_steps = plan_.total_steps > 0 && !remaining().by_time;
    return by_steps ? fmt::format("{}/{}", step, plan_.total_steps) : std::to_string(step);
  }

  /// Moves the cursor from the bar to the first row of the table.
  std::string to_table() const { return table_.empty() ? "\r" : fmt::format("\r\x1b[{}A", table_.size()); }

  /// The table in the cursor's line and those below, each cut to the terminal's width.
  std::string table_lines() const {
    const auto room = static_cast<size_t>(std::max(columns() - 1, 1));
    std::string text;
    for (const std::string& row : table_) text += fmt::format("\r{}\x1b[K\n", row.substr(0, room));
    return text;
  }

  std::vector<std::string> training_fields(const LogRecord& record) const {
    std::vector<std::string> fields;
    std::string epoch = fmt::format("epoch {:.2f}", record.epoch);
    if (plan_.total_epochs > 0 && !remaining().by_time) epoch += fmt::format("/{:.4g}", plan_.total_epochs);
    fields.push_back(std::move(epoch));
    if (const double* loss = record.find(fields::kLoss)) fields.push_back("loss " + format_number(*loss));
    if (!record.lr.empty()) fields.push_back("lr " + fmt::format("{:.3g}", record.lr[0]));
    if (std::string rate = throughput(record); !rate.empty()) fields.push_back(std::move(rate));
    if (const double* wait = record.find(fields::kDataWaitFraction); wait && *wait >= 0.1) {
      fields.push_back(fmt::format("data wait {:.0f}%", *wait * 100));
    }
    return fields;
  }

  static std::string evaluation_line(const LogRecord& record) {
    std::string line = fmt::format("{} at step {}:", record.split, record.step);
    for (const auto& [name, value] : record.values) {
      const bool is_detail = name.find('.') != name.npos || name.ends_with("_seconds");
      if (!is_detail) line += fmt::format(" {} {}", name, format_number(value));
    }
    return line;
  }

  int columns() const {
    if (options_.width > 0) return options_.width;
    winsize size{};
    return ::ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }

  void redraw(bool now) {
    const double time = options_.clock();
    if (!now && drawn_at_ && time - *drawn_at_ < kRedrawSeconds) return;
    drawn_at_ = time;
    drawn_ = true;
    write(fmt::format("\r{}\x1b[K", bar_line(time)));
  }

  /// Returns the bar, at most columns() - 1 wide. Some terminals wrap if the last column is full.
  std::string bar_line(double time) const {
    const size_t room = static_cast<size_t>(std::max(columns() - 1, 1));
    const Remaining left = remaining();
    std::string text = fmt::format("{} [{}", position_of(step_), format_duration(time - started_));
    if (left.seconds) text += fmt::format("<{}", format_duration(*left.seconds));
    text += left.by_time ? " of max_time]" : "]";
    if (text.size() > room) return text.substr(0, room);
    for (const std::string& field : fields_) {
      if (text.size() + 1 + field.size() > room) break;
      text += " " + field;
    }
    if (plan_.total_steps <= 0 && !left.by_time) return text;
    const double share = left.by_time ? (time - started_) / plan_.max_seconds
                                      : static_cast<double>(step_) / static_cast<double>(plan_.total_steps);
    const double done = std::clamp(share, 0.0, 1.0);
    const int bar = std::min<int>(kMaxBar, static_cast<int>(room) - static_cast<int>(text.size()) - 6);
    if (bar < kMinBar) return text;
    const int filled = static_cast<int>(std::floor(done * bar));
    std::string cells;
    for (int i = 0; i < bar; ++i) cells += i < filled ? (utf8_ ? "━" : "#") : (utf8_ ? "─" : "-");
    return fmt::format("{:3d}% {} {}", static_cast<int>(std::floor(done * 100)), cells, text);
  }

  void write(std::string_view text) {
    if (silent_) return;
    std::fflush(stream_);  // keep the order with the program's own output
    silent_ = !write_all(fd_, text);
  }

  std::FILE* stream_;
  const int fd_;
  ProgressOptions options_;
  const bool utf8_;
  bool bar_ = false;
  bool silent_ = false;
  bool drawn_ = false;
  RunPlan plan_;
  int64_t step_ = 0;
  double started_ = 0;
  std::optional<double> drawn_at_;
  double rate_time_ = -1, rate_steps_ = 0, rate_seconds_ = 0;
  std::vector<std::string> fields_;
  std::vector<std::string> table_;  // heading and last rows, above the bar
};

ConsoleProgress::ConsoleProgress(std::FILE* stream, ProgressOptions options)
    : impl_(std::make_unique<Impl>(stream, std::move(options))) {}
ConsoleProgress::~ConsoleProgress() { impl_->close(); }

void ConsoleProgress::begin(const RunPlan& plan) { impl_->begin(plan); }
void ConsoleProgress::log(const LogRecord& record) { impl_->log(record); }
void ConsoleProgress::log_text(const LogText& text) { impl_->print(text.tag + ":\n" + align_tables(text.text)); }
void ConsoleProgress::print(std::string_view line) { impl_->print(line); }
void ConsoleProgress::show_row(std::string_view row) { impl_->show_row(row); }
void ConsoleProgress::tick(int64_t step) { impl_->tick(step); }
absl::Status ConsoleProgress::flush() { return absl::OkStatus(); }
absl::Status ConsoleProgress::close() { return impl_->close(), absl::OkStatus(); }
bool ConsoleProgress::optional() const { return true; }

}  // namespace trainkit
