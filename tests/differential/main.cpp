// differential: runs random training programs and compares them with PyTorch and with the library on one device. See
// docs/differential.md.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>

#include "coverage.h"
#include "lane.h"
#include "shrink.h"

using namespace trainkit::differential;

namespace {

constexpr const char* kUsage = R"(usage: differential [OPTIONS] [COUNT]

Runs COUNT random training programs (default 200), and compares each with PyTorch or with the library on one device.

  --seed S        seed of the programs (default 1)
  --first N       number of the first program (default 0): ranges can be run apart
  --jobs J        processes side by side (default: one per processor)
  --spec JSON     checks one program instead
  --file FILE     checks the programs of a file instead, one in each line
  --show          prints the programs and runs none
  --limit SEC     time after which a program hangs (default 20); more on a busy machine
  --no-shrink     prints failing programs as they were drawn
  --coverage      counts what COUNT programs contain and runs none
  --summary FILE  adds a line of JSON with the counts to FILE

Exit code: 0 without a difference, 1 with one, 2 for wrong arguments.
)";

struct Options {
  uint64_t seed = 1;
  int64_t first = 0, count = 200, jobs = sysconf(_SC_NPROCESSORS_ONLN);
  int limit = 20;
  bool shows = false, shrinks = true, covers = false;
  std::string spec, file, summary;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 < argc) return argv[++i];
      std::cerr << kUsage;
      std::exit(2);
    };
    if (name == "--seed")
      options.seed = std::stoull(value());
    else if (name == "--first")
      options.first = std::stoll(value());
    else if (name == "--jobs")
      options.jobs = std::max<int64_t>(1, std::stoll(value()));
    else if (name == "--spec")
      options.spec = value();
    else if (name == "--file")
      options.file = value();
    else if (name == "--summary")
      options.summary = value();
    else if (name == "--limit")
      options.limit = std::stoi(value());
    else if (name == "--show")
      options.shows = true;
    else if (name == "--no-shrink")
      options.shrinks = false;
    else if (name == "--coverage")
      options.covers = true;
    else if (!name.empty() && name.find_first_not_of("0123456789") == std::string::npos)
      options.count = std::stoll(name);
    else {
      (name == "--help" ? std::cout : std::cerr) << kUsage;
      std::exit(name == "--help" ? 0 : 2);
    }
  }
  return options;
}

std::vector<Spec> programs_of(const Options& options) {
  std::vector<Spec> programs;
  const auto add = [&](const std::string& line) {
    if (!line.empty() && line.front() == '{') programs.push_back(spec_from_json(nlohmann::json::parse(line)));
  };
  if (!options.spec.empty()) {
    add(options.spec);
  } else if (!options.file.empty()) {
    std::ifstream file(options.file);
    for (std::string line; std::getline(file, line);) add(line);
  } else {
    for (int64_t i = 0; i < options.count; ++i) programs.push_back(draw(options.seed, options.first + i));
  }
  return programs;
}

/// Counts of a lane: programs, failures, and programs by oracle.
using Counts = std::map<std::string, int64_t>;

void report(const Spec& spec, const std::vector<std::string>& lines, const Spec& small) {
  std::string text = fmt::format("FAILED: program {} of seed {}\n", spec.number, spec.seed);
  for (size_t i = 0; i < std::min<size_t>(lines.size(), 4); ++i) text += "    " + lines[i] + "\n";
  text += "    as a test, a line of tests/differential/found.jsonl:\n" + to_short_json(small).dump() + "\n";
  std::cout << text << std::flush;
}

Counts run_lane(const Options& options, const std::vector<Spec>& programs, int64_t lane_number) {
  const char* python = std::getenv("TRAINKIT_PYTHON");
  Lane lane(python ? python : "", options.limit);
  Counts counts;
  for (size_t i = static_cast<size_t>(lane_number); i < programs.size(); i += static_cast<size_t>(options.jobs)) {
    const Spec& spec = programs[i];
    ++counts["programs"];
    ++counts["oracle " + spec.oracle];
    if (spec.oracle == "torch" && !python) {
      ++counts["skipped"];
      continue;
    }
    const std::vector<std::string> lines = lane.check(spec);
    if (lines.empty()) continue;
    ++counts["failed"];
    const auto check = [&](const Spec& some) { return lane.check(some); };
    report(spec, lines, options.shrinks ? shrink(spec, check) : spec);
  }
  return counts;
}

/// Runs the lanes in processes of their own, and adds up their counts.
Counts run_lanes(const Options& options, const std::vector<Spec>& programs) {
  std::vector<std::pair<pid_t, int>> lanes;
  for (int64_t lane = 0; lane < options.jobs; ++lane) {
    int ends[2];
    if (::pipe(ends) != 0) std::exit(2);
    std::cout.flush();
    const pid_t pid = ::fork();
    if (pid == 0) {
      const std::string text = nlohmann::json(run_lane(options, programs, lane)).dump();
      std::exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 2);
    }
    ::close(ends[1]);
    lanes.emplace_back(pid, ends[0]);
  }
  Counts sum;
  for (const auto& [pid, descriptor] : lanes) {
    std::string text(4096, '\0');
    const ssize_t got = ::read(descriptor, text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    ::waitpid(pid, nullptr, 0);
    if (text.empty()) ++sum["failed"], ++sum["lost lanes"];
    if (text.empty()) continue;
    for (const auto& [name, count] : nlohmann::json::parse(text).get<Counts>()) sum[name] += count;
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.covers) return print_coverage(options.seed, options.count) ? 0 : 1;
  const std::vector<Spec> programs = programs_of(options);
  if (options.shows) {
    for (const Spec& spec : programs) std::cout << to_short_json(spec).dump() << "\n";
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  const Counts counts = run_lanes(options, programs);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  fmt::print("{} in {:.0f} s\n", text, seconds);
  if (counts.contains("skipped")) {
    fmt::print("skipped: {} programs need a Python with torch (TRAINKIT_PYTHON)\n", counts.at("skipped"));
  }
  if (!options.summary.empty()) {
    nlohmann::json line = counts;
    line["seed"] = options.seed;
    line["first"] = options.first;
    std::ofstream(options.summary, std::ios::app) << line.dump() << "\n";
  }
  return counts.contains("failed") ? 1 : 0;
}
