// trainkit report and trainkit watch as a user runs them.
#include <httplib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include "apps/program.h"
#include "apps/runs.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

Ended run_tool(const TempDir& dir, const std::vector<std::string>& words) {
  return run_to_end("trainkit", words, dir.path().string());
}

std::string line_of(int step) {
  return R"({"step":)" + std::to_string(step) +
         R"(,"epoch":0.5,"split":"train","loss":1.5,"samples_per_second":9})"
         "\n";
}

/// Makes the folder of a run that has logged `steps` records.
std::string make_run(const TempDir& dir, const std::string& name, int steps = 3) {
  fs::create_directories(dir / name);
  std::ofstream file(dir / (name + "/metrics.jsonl"));
  for (int step = 1; step <= steps; ++step) file << line_of(step);
  return dir / name;
}

/// trainkit watch on a run, and its address.
struct Watch {
  Watch(const TempDir& dir, const std::string& run, const std::vector<std::string>& more = {})
      : program("trainkit", words(run, more), dir.path().string()) {
    const std::regex address("http://127\\.0\\.0\\.1:([0-9]+)(/[0-9a-f]{32}/)\n");
    std::smatch found;
    for (std::string text; !std::regex_search(text = program.output(), found, address);) {
      if (program.poll()) throw std::runtime_error(program.errors());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const std::string text = program.output();
    std::regex_search(text, found, address);
    port = std::stoi(found[1]);
    path = found[2];
  }
  static std::vector<std::string> words(const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"watch", run};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  httplib::Client client() const { return httplib::Client("127.0.0.1", port); }
  Program program;
  int port = 0;
  std::string path;
};

/// Local addresses of the listening TCP sockets of a process, in the hexadecimal form of /proc.
std::vector<std::string> listening(pid_t pid) {
  std::vector<std::string> addresses;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/net/" + table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queue, timer, retry, uid, timeout, inode;
      fields >> number >> local >> remote >> state >> queue >> timer >> retry >> uid >> timeout >> inode;
      if (state != "0A") continue;
      for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
        std::error_code ignored;
        if (fs::read_symlink(entry.path(), ignored) == "socket:[" + inode + "]") addresses.push_back(local);
      }
    }
  }
  return addresses;
}

}  // namespace

TEST_CASE("trainkit report writes a page into the run's folder, or where --out says") {
  const TempDir dir;
  const std::string run = make_run(dir, "demo");
  const Ended one = run_tool(dir, {"report", run});
  INFO(one.errors);
  REQUIRE(one.code == 0);
  CHECK_THAT(one.output, Contains("wrote " + run + "/report.html ("));
  CHECK_THAT(read_text(run + "/report.html"), Contains("<h1>demo"));
  make_run(dir, "other");
  const Ended both =
      run_tool(dir, {"report", dir.path().string(), "--out", dir / "all.html", "--csv", dir / "all.csv"});
  INFO(both.errors);
  REQUIRE(both.code == 0);
  CHECK_THAT(read_text(dir / "all.html"), Contains("2 runs"));
  CHECK(run_tool(dir, {"report", run, "--out", dir / "all.html", "--csv", dir / "all.csv"}).code ==
        0);  // replaces them
  REQUIRE(run_tool(dir, {"report", dir.path().string(), "--out", dir / "all.html", "--csv", dir / "all.csv"}).code ==
          0);
  CHECK_THAT(read_text(dir / "all.csv"), Contains("run,outcome,steps,") && Contains("\ndemo,") && Contains("\nother,"));
}

TEST_CASE("trainkit report and watch reject what is no run, and bad flags") {
  const TempDir dir;
  const std::string run = make_run(dir, "demo");
  const auto check = [&](const std::vector<std::string>& words, int code, const std::string& message) {
    const Ended ended = run_tool(dir, words);
    INFO(ended.errors);
    CHECK(ended.code == code);
    CHECK_THAT(ended.errors, Contains(message));
  };
  for (const char* command : {"report", "watch"}) {
    check({command}, 2, "error[cli.word] RUN: not given");
    check({command, dir / "none"}, 2, "error[run.none] " + dir / "none" + ": no such folder");
    check({command, run, "--nothing"}, 2, "error[cli.unknown]");
    CHECK_THAT(run_tool(dir, {command, "--help"}).output, Contains("RUN [RUN...]"));
  }
  check({"report", run, "--out"}, 2, "error[cli.missing]");
  check({"report", run, "--csv"}, 2, "error[cli.missing]");
  check({"report", run, "--out", dir / "no/such/file.html"}, 6, "no/such");
  check({"report", run, "--csv", dir / "no/such/file.csv"}, 6, "no/such");
  const std::string records = read_text(run + "/metrics.jsonl");
  REQUIRE(!records.empty());
  for (const char* flag : {"--out", "--csv"}) {
    check({"report", run, flag, run + "/metrics.jsonl"}, 2,
          std::string("error[cli.value] ") + flag + ": the file exists and is not a report");
  }
  CHECK(read_text(run + "/metrics.jsonl") == records);
  for (const char* port : {"-1", "65536", "http", ""})
    check({"watch", run, "--port", port}, 2, "error[cli.value] --port");
  const Watch other(dir, run);
  fs::create_directories(dir / "second");  // the output files of `other` are in use
  Program taken("trainkit", {"watch", run, "--port", std::to_string(other.port)}, dir / "second");
  CHECK(taken.wait() == 2);
  CHECK_THAT(taken.errors(), Contains("--port: cannot listen on 127.0.0.1"));
}

TEST_CASE("trainkit watch listens on loopback alone and needs its token") {
  const TempDir dir;
  const std::string run = make_run(dir, "demo");
  Watch watch(dir, run);
  const std::vector<std::string> addresses = listening(watch.program.pid());
  REQUIRE(addresses.size() == 1);
  CHECK(addresses[0].starts_with("0100007F:"));  // 127.0.0.1
  httplib::Client client = watch.client();
  const auto status = [&](const httplib::Result& result) { return result ? result->status : -1; };
  const auto page = client.Get(watch.path.c_str());
  REQUIRE(status(page) == 200);
  CHECK_THAT(page->body, Contains("<h1>demo") && Contains("data-live=\"body\""));
  CHECK(page->get_header_value("Cache-Control") == "no-store");
  std::string wrong = watch.path;
  wrong[5] = wrong[5] == 'a' ? 'b' : 'a';
  for (const std::string& path :
       {std::string("/"), std::string("/body"), wrong, wrong + "body", watch.path.substr(0, 20)}) {
    INFO(path);
    const auto refused = client.Get(path.c_str());
    CHECK(status(refused) == 403);
    CHECK_THAT(refused->body, !Contains("demo"));
  }
  // A page of another site that has pointed its name to this machine.
  CHECK(status(client.Get(watch.path.c_str(), {{"Host", "evil.example"}})) == 403);
  CHECK(status(client.Get((watch.path + "../../etc/passwd").c_str())) != 200);
  CHECK(status(client.Get((watch.path + "metrics.jsonl").c_str())) == 404);
  for (const char* method : {"POST", "PUT", "DELETE"}) {
    httplib::Request request;
    request.method = method;
    request.path = watch.path;
    INFO(method);
    CHECK(status(client.send(request)) == 405);
  }
  const std::string before = folder_contents(run);
  client.Get((watch.path + "body").c_str());
  CHECK(folder_contents(run) == before);
  watch.program.kill(SIGINT);
  CHECK(watch.program.wait() == 0);
}

TEST_CASE("The page of trainkit watch follows metrics.jsonl") {
  const TempDir dir;
  const std::string run = make_run(dir, "demo");
  const Watch watch(dir, run);
  httplib::Client client = watch.client();
  const std::string path = watch.path + "body";
  const auto first = client.Get(path.c_str());
  REQUIRE(first);
  CHECK_THAT(first->body, Contains("at step 3") && !Contains("at step 4"));
  const auto same = client.Get(path.c_str(), {{"If-None-Match", first->get_header_value("ETag")}});
  CHECK(same->status == 304);
  std::ofstream(run + "/metrics.jsonl", std::ios::app) << line_of(4);
  const auto grown = client.Get(path.c_str(), {{"If-None-Match", first->get_header_value("ETag")}});
  REQUIRE(grown);
  CHECK(grown->status == 200);
  CHECK_THAT(grown->body, Contains("at step 4"));
  fs::create_directories(run + "/checkpoints/step-00000004");
  CHECK_THAT(client.Get(path.c_str())->body, Contains("1 checkpoint kept"));
  fs::remove(run + "/metrics.jsonl");  // --overwrite starts the run again
  CHECK_THAT(client.Get(path.c_str())->body, Contains("No report"));
}

TEST_CASE("trainkit watch shows memory, checkpoints and the end of a run that trains") {
  const TempDir dir;
  REQUIRE(run_to_end("trainkit-transformer", {"--make_demo_data", dir / "text"}, dir.path().string()).code == 0);
  fs::create_directories(dir / "trainer");
  Program trainer("trainkit-transformer", {"--input",      dir / "text/demo.txt",
                                           "--output_dir", dir / "run",
                                           "--hidden_dim", "16",
                                           "--n_layers",   "1",
                                           "--n_heads",    "2",
                                           "--block_size", "16",
                                           "--device",     "cpu",
                                           "--max_steps",  "100000000",
                                           "--epochs",     "1000000",
                                           "--log_every",  "20",
                                           "--save_every", "20",
                                           "--eval_every", "20"},
                  dir / "trainer");
  while (!fs::exists(dir / "run/run.json") && !trainer.poll())
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const Watch watch(dir, dir / "run");
  httplib::Client client = watch.client();
  const auto page_with = [&](const std::vector<std::string>& texts) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    std::string body;
    while (std::chrono::steady_clock::now() < deadline) {
      if (const auto answer = client.Get((watch.path + "body").c_str())) body = answer->body;
      const auto shown = [&](const std::string& text) { return body.find(text) != body.npos; };
      if (std::all_of(texts.begin(), texts.end(), shown)) return body;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return body + trainer.errors();
  };
  CHECK_THAT(
      page_with({">running<", "memory at the peak of a step", "checkpoints kept", "Text generated by the model"}),
      Contains(">running<") && Contains("memory at the peak of a step") && Contains("checkpoints kept") &&
          Contains("Text generated by the model"));
  trainer.kill(SIGTERM);
  CHECK(trainer.wait() == 143);
  CHECK_THAT(page_with({">stopped<"}), Contains("by signal 15"));
}
