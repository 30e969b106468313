#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>

#include "test_util.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;
using Style = ProgressOptions::Style;

namespace {

/// A stream whose text can be taken out.
class Screen {
 public:
  Screen() : stream_(std::tmpfile()) {}
  ~Screen() { std::fclose(stream_); }
  std::FILE* stream() const { return stream_; }
  std::string take() {
    std::string text(1 << 16, '\0');
    const ssize_t size = pread(fileno(stream_), text.data(), text.size(), taken_);
    text.resize(size);
    taken_ += size;
    return text;
  }

 private:
  std::FILE* stream_;
  off_t taken_ = 0;
};

/// The visible last line of a terminal.
std::string last_line(std::string text) {
  text = text.substr(text.rfind('\r') + 1);
  const size_t erase = text.find("\x1b[K");
  return text.substr(0, erase);
}

LogRecord record(int64_t step) {
  return {.step = step, .epoch = 1.85, .values = {{"loss", 2.10341}, {"tokens_per_second", 12345}}, .lr = {9.55e-4}};
}

/// LANG selects the characters of the bar.
struct Locale {
  explicit Locale(const char* value) { setenv("LC_ALL", value, 1); }
  ~Locale() { unsetenv("LC_ALL"); }
};

}  // namespace

TEST_CASE("Without a terminal each training record is a plain line", "[logging][progress]") {
  Screen screen;
  double now = 100;
  ConsoleProgress progress(screen.stream(), {.clock = [&] { return now; }});
  progress.begin({.total_steps = 2000, .total_epochs = 5});
  now = 141;
  progress.log(record(740));
  progress.tick(745);
  CHECK(screen.take() == "step 740/2000 | epoch 1.85/5 | loss 2.1034 | lr 0.000955 | 12.3k tokens/s | left 1:10\n");
  progress.log({.step = 740, .split = "val", .values = {{"loss", 1.99}, {"perplexity", 7.3155}, {"recall.Corn", 0.5}}});
  CHECK(screen.take() == "val at step 740: loss 1.9900 perplexity 7.3155\n");
  progress.print("saved");
  progress.log_text({.step = 740, .tag = "sample", .text = "To be,\nor"});
  CHECK(screen.take() == "saved\nsample:\nTo be,\nor\n");
  CHECK(progress.close().ok());
  CHECK(screen.take().empty());
}

TEST_CASE("A line names the step of its values, also after later steps", "[logging][progress]") {
  Screen screen;
  ConsoleProgress progress(screen.stream(), {.clock = [] { return 100.0; }});
  progress.begin({.total_steps = 2000, .total_epochs = 5});
  progress.tick(749);  // the device ends steps later than the host starts them
  progress.log(record(740));
  CHECK_THAT(screen.take(), Catch::StartsWith("step 740/2000 | "));
}

TEST_CASE("A run of unknown length shows no total and no remaining time", "[logging][progress]") {
  Screen screen;
  ConsoleProgress progress(screen.stream());
  progress.begin({});
  progress.log({.step = 3, .epoch = 0.1, .values = {{"samples_per_second", 812}, {"data_wait_fraction", 0.43}}});
  CHECK(screen.take() == "step 3 | epoch 0.10 | 812 rows/s | data wait 43%\n");
}

TEST_CASE("The bar shows step, time, epoch, loss, lr and throughput on one line", "[logging][progress]") {
  Screen screen;
  double now = 100;
  Locale locale("C");
  ConsoleProgress progress(screen.stream(), {.style = Style::kBar, .width = 120, .clock = [&] { return now; }});
  progress.begin({.total_steps = 2000, .total_epochs = 5});
  now = 141;
  progress.log(record(740));
  CHECK(last_line(screen.take()) ==
        " 37% ##############-------------------------- 740/2000 [0:41<1:10] epoch 1.85/5 loss 2.1034 lr 0.000955 12.3k "
        "tokens/s");
}

TEST_CASE("The bar is drawn at most ten times per second and moves between records", "[logging][progress]") {
  Screen screen;
  double now = 0;
  ConsoleProgress progress(screen.stream(), {.style = Style::kBar, .width = 100, .clock = [&] { return now; }});
  progress.begin({.total_steps = 1000});
  int drawn = 0;
  for (int64_t step = 1; step <= 1000; ++step) {
    now += 0.001;
    progress.tick(step);
    drawn += !screen.take().empty();
  }
  CHECK(drawn == 10);
  now += 1;
  progress.tick(1001);
  CHECK(last_line(screen.take()).find("1001/1000 [0:02]") != std::string::npos);
}

TEST_CASE("The bar fits any width: the bar itself is dropped first, then fields from the right",
          "[logging][progress]") {
  for (int width = 1; width <= 200; ++width) {
    Screen screen;
    Locale locale("en_US.UTF-8");
    double now = 0;
    ConsoleProgress progress(screen.stream(), {.style = Style::kBar, .width = width, .clock = [&] { return now; }});
    progress.begin({.total_steps = 2000});
    now = 41;
    progress.log(record(740));
    const std::string line = last_line(screen.take());
    const auto cells = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
    REQUIRE(cells < std::max(width, 2));
    if (width > 90) REQUIRE(line.find("━") != std::string::npos);
    if (width < 70) REQUIRE(line.find("━") == std::string::npos);
    if (width > 46) REQUIRE(line.find("loss 2.1034") != std::string::npos);
    if (width > 21) REQUIRE(line.find("740/2000 [0:41<1:10]") != std::string::npos);
  }
}

TEST_CASE("Lines appear above the bar, which stays last and remains at the end", "[logging][progress]") {
  Screen screen;
  double now = 0;
  ConsoleProgress progress(screen.stream(), {.style = Style::kBar, .width = 60, .clock = [&] { return now; }});
  progress.print("before the first bar");
  CHECK(screen.take() == "before the first bar\n");
  progress.begin({.total_steps = 10});
  now = 1;
  progress.tick(1);
  const std::string bar = last_line(screen.take());
  progress.print("saved\x1b[2J");
  CHECK(screen.take() == "\r\x1b[Ksaved\\x1b[2J\n\r" + bar + "\x1b[K");
  CHECK(progress.close().ok());
  CHECK(screen.take() == "\r" + bar + "\x1b[K\n");
  CHECK(progress.close().ok());
  CHECK(screen.take().empty());
}

TEST_CASE("The remaining time follows the present speed", "[logging][progress]") {
  Screen screen;
  double now = 0;
  ConsoleProgress progress(screen.stream(), {.style = Style::kLines, .clock = [&] { return now; }});
  progress.begin({.total_steps = 100'000});
  for (int64_t step = 1; step <= 600; ++step) now += 1, progress.tick(step);           // one step per second
  for (int64_t step = 610; step <= 10'000; step += 10) now += 1, progress.tick(step);  // then ten per second
  progress.log({.step = 10'000});
  CHECK(screen.take().ends_with("left 2:30:00\n"));
}

TEST_CASE("A resumed run does not count earlier steps for its speed", "[logging][progress]") {
  Screen screen;
  double now = 0;
  ConsoleProgress progress(screen.stream(), {.style = Style::kLines, .clock = [&] { return now; }});
  progress.begin({.first_step = 1000, .total_steps = 1100});
  now = 10;
  progress.log({.step = 1010});
  CHECK(screen.take().ends_with("left 1:30\n"));
}

TEST_CASE("The limit that will end the run gives the remaining time", "[logging][progress]") {
  Screen screen;
  double now = 0;
  ConsoleProgress lines(screen.stream(), {.style = Style::kLines, .clock = [&] { return now; }});
  lines.begin({.total_steps = 2000, .total_epochs = 5, .max_seconds = 60});
  now = 41;
  lines.log(record(740));  // at this speed 2,000 steps take longer than a minute
  CHECK(screen.take() ==
        "step 740 | epoch 1.85 | loss 2.1034 | lr 0.000955 | 12.3k tokens/s | left 0:19 of max_time\n");
  lines.begin({.total_steps = 2000, .total_epochs = 5, .max_seconds = 3600});
  now = 82;
  lines.log(record(740));
  CHECK_THAT(screen.take(), Catch::Contains("step 740/2000 | epoch 1.85/5") && Catch::EndsWith("left 1:10\n"));

  Locale locale("C");
  now = 0;
  ConsoleProgress bar(screen.stream(), {.style = Style::kBar, .width = 110, .clock = [&] { return now; }});
  bar.begin({.total_steps = 2000, .max_seconds = 60});
  now = 15;
  bar.tick(10);
  CHECK(last_line(screen.take()) == " 25% ##########------------------------------ 10 [0:15<0:45 of max_time]");
}

TEST_CASE("A Markdown table becomes aligned columns", "[logging][progress]") {
  Screen screen;
  ConsoleProgress progress(screen.stream());
  progress.log_text({.step = 3,
                     .tag = "test",
                     .text = "scores\n\n| class | pixels | recall |\n|---|---|---|\n| Lettuce 7wk | 719 | 100.00% |\n"
                             "| Ma\u00efs | 21 | 5.00% |\n| empty |  | nan |\nafter | it"});
  CHECK(screen.take() ==
        "test:\nscores\n\n"
        "class        pixels   recall\n"
        "Lettuce 7wk     719  100.00%\n"
        "Ma\u00efs             21    5.00%\n"
        "empty                    nan\n"
        "after | it\n");
}

/// What a terminal of any size shows after `output`: "\r", "\n", and the sequences to move up and to clear.
static std::vector<std::string> on_terminal(const std::string& output) {
  std::vector<std::string> lines(1);
  size_t row = 0, column = 0;
  for (size_t i = 0; i < output.size(); ++i) {
    if (output[i] == '\r') {
      column = 0;
    } else if (output[i] == '\n') {
      if (++row == lines.size()) lines.emplace_back();
      column = 0;
    } else if (output.compare(i, 2, "\x1b[") == 0) {
      const size_t end = output.find_first_of("AJK", i);
      if (output[end] == 'A') {
        row -= std::stoul(output.substr(i + 2, end - i - 2));
      } else {
        lines[row].resize(column);
        if (output[end] == 'J') lines.resize(row + 1);
      }
      i = end;
    } else {
      if (lines[row].size() <= column) lines[row].resize(column + 1, ' ');
      lines[row][column++] = output[i];
    }
  }
  return lines;
}

TEST_CASE("A live table is redrawn in place above the bar; elsewhere its rows are lines", "[logging][progress]") {
  Screen screen;
  double now = 0;
  ConsoleProgress progress(screen.stream(), {.style = Style::kBar, .width = 60, .clock = [&] { return now; }});
  progress.begin({.total_steps = 100});
  std::string output;
  for (int i = 1; i <= 12; ++i) {
    now += 1;
    progress.tick(i);
    if (i % 5 == 1) progress.show_row("monitor  busy");  // the heading is repeated now and then
    progress.show_row("monitor  row " + std::to_string(i) + (i == 12 ? std::string(100, '.') : ""));
    if (i == 9) progress.print("saved");
    output += screen.take();
  }
  progress.log({.step = 12, .split = "val", .values = {{"loss", 1}}});
  CHECK(progress.close().ok());
  const std::vector<std::string> lines = on_terminal(output + screen.take());
  REQUIRE(lines.size() == 10);
  CHECK(lines[0] == "saved");
  CHECK(lines[1] == "val at step 12: loss 1.0000");
  CHECK(lines[2] == "monitor  busy");
  for (int i = 8; i <= 12; ++i) CHECK(lines[i - 5].starts_with("monitor  row " + std::to_string(i)));
  CHECK(lines[7].size() == 59);
  CHECK(lines[8].starts_with(" 12% "));
  CHECK(lines[9].empty());

  ConsoleProgress plain(screen.stream());
  plain.show_row("monitor  busy");
  plain.show_row("monitor  row 1");
  CHECK(screen.take() == "monitor  busy\nmonitor  row 1\n");
}

TEST_CASE("Secrets are masked on screen", "[logging][progress]") {
  Screen screen;
  ConsoleProgress progress(screen.stream());
  progress.print("WANDB_API_KEY=canary https://u:canary@host");
  CHECK(screen.take() == "WANDB_API_KEY=*** https://***@host\n");
}

TEST_CASE("A reader that closes the pipe raises no signal and ends nothing", "[logging][progress]") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  std::FILE* stream = fdopen(ends[1], "w");
  close(ends[0]);
  {
    ConsoleProgress progress(stream);  // SIGPIPE has its default action here and would end this program
    progress.print("nobody reads this");
    progress.log(record(1));
    CHECK(progress.flush().ok());
    sigset_t pending;
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGPIPE) == 0);
  }
  fclose(stream);
}

TEST_CASE("A closed stream prints nothing", "[logging][progress]") {
  std::FILE* stream = std::tmpfile();
  close(fileno(stream));
  ConsoleProgress progress(stream);
  progress.print("nowhere");
  CHECK(progress.close().ok());
  fclose(stream);
}

TEST_CASE("A terminal gets a bar of its width, a dumb terminal gets lines", "[logging][progress]") {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  std::FILE* stream = std::fopen(ptsname(terminal), "w");
  REQUIRE(stream);
  const winsize size{.ws_row = 24, .ws_col = 50, .ws_xpixel = 0, .ws_ypixel = 0};
  REQUIRE(ioctl(terminal, TIOCSWINSZ, &size) == 0);
  const auto shown = [&](const char* term) {
    setenv("TERM", term, 1);
    ConsoleProgress progress(stream);
    progress.begin({.total_steps = 2000});
    progress.log(record(740));
    std::string text(4096, '\0');
    text.resize(std::max<ssize_t>(0, ::read(terminal, text.data(), text.size())));
    return text;
  };
  const std::string before = test::environment("TERM");
  const std::string bar = shown("xterm-256color");
  CHECK(bar.starts_with("\r740/2000 ["));
  CHECK(last_line(bar).size() < 50);
  tcflush(terminal, TCIOFLUSH);
  fflush(stream);
  const std::string lines = shown("dumb");
  CHECK(lines.find("step 740/2000 | ") != std::string::npos);
  CHECK(lines.find("\x1b[K") == std::string::npos);
  before.empty() ? unsetenv("TERM") : setenv("TERM", before.c_str(), 1);
  fclose(stream);
  close(terminal);
}
