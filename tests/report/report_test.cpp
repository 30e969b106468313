// The report of a run: what it shows, what it escapes, and how large it gets.
#include "report/report.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "report/report_data.h"
#include "report/reported_run.h"
#include "report/run_file.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/fs.h"
#include "trainkit/logging/sinks.h"
#include "trainkit/report/summary.h"

using namespace trainkit;
using namespace trainkit::detail;
using Catch::Contains;
using trainkit::test::page_of;
using trainkit::test::TempDir;
using trainkit::test::train_record;
using trainkit::test::val_record;
using trainkit::test::write_records;
using trainkit::test::write_text;
namespace fs = std::filesystem;

namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("A report shows the curves, the best score and the settings that are not defaults", "[logging][report]") {
  const TempDir dir;
  const std::string run = dir / "demo";
  std::vector<LogRecord> records;
  for (int64_t step = 10; step <= 200; step += 10) {
    records.push_back(train_record(step, 4.0 / static_cast<double>(step)));
    if (step % 100 == 0) records.push_back(val_record(step, 5.0 / static_cast<double>(step)));
  }
  write_records(run, records, 1.7e9);
  write_text(run + "/config.yaml",
             "# trainkit-hsi 0.1.0\n\n# Run\nlr: 0.01                    # --lr\nseed: 7       # default\n");
  REQUIRE(write_summary(run, {.exit_reason = "max_steps",
                              .steps = 200,
                              .wall_seconds = 21,
                              .effective_fraction = 0.9,
                              .predicted_memory_bytes = 1 << 20,
                              .real_memory_bytes = 1 << 20,
                              .best_metrics = {{"val_loss", 0.025}},
                              .best_step = 200,
                              .warnings = {"no test pixel of Oats"}})
              .ok());
  fs::create_directories(run + "/checkpoints/step-00000200");
  const std::string page = page_of(run);
  CHECK_THAT(page, Contains("<div class=\"tiles odd\" style=\"--wide:6;--middle:3\">"));  // full rows
  for (const char* text : {"<h1>demo",
                           "finished",
                           "max_steps",
                           "best validation loss",
                           "0.025000",
                           "at step 200",
                           "1.00 MiB",
                           "predicted 1.00 MiB (+0.0%)",
                           "no test pixel of Oats",
                           "Rows per second",
                           "Learning rate",
                           "Gradient norm",
                           "Validation scores",
                           "Where the time went",
                           "<code>lr</code>",
                           "--lr",
                           "differ from the defaults (1 of 2)",
                           "step-00000200",
                           "1 checkpoint kept",
                           "evaluation, 0.25 s"}) {
    CHECK_THAT(page, Contains(text));
  }
  // Nothing is loaded from elsewhere.
  for (const char* text : {"http://", "https://", "src=\"/", "@import", "url("}) CHECK_THAT(page, !Contains(text));
  CHECK_THAT(page, Contains("default-src 'none'"));
}

TEST_CASE("Names, texts and errors of a run cannot become markup of its report", "[logging][report]") {
  const TempDir dir;
  const std::string evil = "<img src=x onerror=alert(1)>&\"'</script><script>alert(2)</script>";
  const std::string run = dir / "a<b>&'run";
  LogRecord record = val_record(10, 1);
  record.values.emplace_back(evil, 0.5);
  write_records(run, {train_record(5, 1), train_record(10, 1), record, val_record(20, 1)});
  write_text(run + "/config.yaml", "# x\nname: '" + evil + "'   # --" + evil + "\n");
  REQUIRE(
      write_error(
          run,
          to_status({.exit_code = ExitCode::kData, .id = "data.scene", .where = evil, .problem = evil, .hint = evil}))
          .ok());
  const nlohmann::json results = {
      {"tiles", {{{"value", evil}, {"name", evil}, {"note", evil}}}},
      {"sections",
       {{{"title", evil},
         {"blocks",
          {{{"type", "table"}, {"caption", evil}, {"columns", {evil}}, {"rows", {{evil}}}},
           {{"type", "matrix"}, {"caption", evil}, {"labels", {evil}}, {"counts", {{1}}}},
           {{"type", "legend"}, {"items", {{{"name", evil}, {"color", "#000000;" + evil}}}}},
           {{"type", "chart"},
            {"title", evil},
            {"x_label", evil},
            {"series", {{{"name", evil}, {"points", {{0.1, 0.2}, {0.3, 0.4}}}}}}},
           {{"type", "pictures"}, {"items", {{{"file", "../../secret.png"}, {"caption", evil}, {"alt", evil}}}}},
           {{"type", "texts"}, {"items", {{{"title", evil}, {"text", evil}}}}}}}}}}};
  write_text(run + "/results/report.json", results.dump());
  const std::string page = page_of(run);
  CHECK_THAT(page, !Contains("<img src=x") && !Contains("<script>alert") && !Contains("a<b>"));
  CHECK_THAT(page, Contains("&lt;img src=x onerror=alert(1)&gt;"));
  // One script runs, the page's own; the others are data.
  CHECK(count_of(page, "<script") == 1 + count_of(page, "<script type=\"application/json\">"));
  CHECK(count_of(page, "<script") == count_of(page, "</script>"));
}

TEST_CASE("A text of a run cannot name the nonce of the page's script", "[logging][report]") {
  const TempDir dir;
  write_records(dir / "run", {train_record(5, 1)});
  const auto nonce = [](const std::string& page) {
    const size_t at = page.find("<script nonce=\"") + 15;
    return page.substr(at, page.find('"', at) - at);
  };
  const std::string before = nonce(page_of(dir / "run"));
  CHECK(before.size() == 32);
  LogRecord record = val_record(10, 1);
  record.values.emplace_back(before, 0.5);
  write_records(dir / "run", {train_record(5, 1), record});
  CHECK(nonce(page_of(dir / "run")) != before);
}

TEST_CASE("A run without records, with one record or without evaluations has a report", "[logging][report]") {
  const TempDir dir;
  write_records(dir / "empty", {});
  CHECK_THAT(page_of(dir / "empty"), Contains("No record was logged"));
  write_records(dir / "one", {train_record(1, 2.5)});
  CHECK_THAT(page_of(dir / "one"), Contains("training loss") && Contains("2.5000"));
  write_records(dir / "unevaluated", {train_record(1, 2.5), train_record(2, 2.25)});
  CHECK_THAT(page_of(dir / "unevaluated"), !Contains("best validation") && Contains("train, smoothed"));
}

TEST_CASE("A report has the advice, the command, the machine, and charts of all that was measured",
          "[logging][report]") {
  const TempDir dir;
  const std::string run = dir / "run";
  std::vector<LogRecord> records;
  for (int64_t step = 1; step <= 10; ++step) {
    LogRecord record = train_record(step, 1);
    for (const char* name : {"loss_scale", "queue_depth", "host_memory_bytes"}) record.values.emplace_back(name, 4096);
    record.gpu_memory_bytes = {1 << 20};
    records.push_back(std::move(record));
  }
  write_records(run, records);
  const nlohmann::json session = {{"command", {"/opt/bin/trainkit-x", "--lr", "it's"}},
                                  {"folder", "/data/my runs"},
                                  {"host", {{"name", "node7"}, {"processor", "EPYC"}, {"processors", 8}}},
                                  {"versions", {{"libtorch", "2.11.0"}}},
                                  {"commit", std::string(40, 'a')},
                                  {"utilisation", {{"advice", {"raise --num_workers from 2 to 4"}}}}};
  write_text(run + "/run.json", nlohmann::json{{"program", "trainkit-x"}, {"sessions", {session}}}.dump());
  const std::string page = page_of(run);
  for (const char* text : {"Advice of the monitor", "raise --num_workers from 2 to 4", "Repeat this run",
                           "cd &#39;/data/my runs&#39;\ntrainkit-x --lr", "node7", "EPYC, 8 usable", "libtorch 2.11.0",
                           "aaaaaaaaaaaaaaaaaaaa", "<b>Loss scale</b>", "<b>Devices and processors</b>",
                           "<b>Memory</b>", "<b>Batches ready in the queue</b>"}) {
    CHECK_THAT(page, Contains(text));
  }
}

TEST_CASE("run.json has the commit of a checkout, of a worktree and of packed branches", "[logging][report]") {
  const TempDir dir;
  const std::string first(40, 'a'), second(40, 'b'), third(40, 'c');
  const auto commit_in = [&](const std::string& folder) {
    const fs::path before = fs::current_path();
    fs::create_directories(folder);
    fs::create_directories(dir / "out");
    fs::current_path(folder);
    const absl::Status begun = begin_session(dir / "out", {.program = "x"});
    fs::current_path(before);
    REQUIRE(begun.ok());
    return read_json_file(dir / "out/run.json")["sessions"][0].value("commit", "");
  };
  CHECK(commit_in(dir / "plain").empty());
  write_text(dir / "repository/.git/HEAD", "ref: refs/heads/main\n");
  write_text(dir / "repository/.git/refs/heads/main", first + "\n");
  CHECK(commit_in(dir / "repository/deep/folder") == first);
  write_text(dir / "repository/.git/worktrees/w/HEAD", "ref: refs/heads/side\n");
  write_text(dir / "repository/.git/worktrees/w/commondir", "../..\n");
  write_text(dir / "repository/.git/packed-refs", "# pack-refs\n" + second + " refs/heads/side\n");
  write_text(dir / "worktree/.git", "gitdir: " + dir / "repository/.git/worktrees/w" + "\n");
  CHECK(commit_in(dir / "worktree/src") == second);
  write_text(dir / "repository/.git/worktrees/w/HEAD", third + "\n");  // detached
  CHECK(commit_in(dir / "worktree") == third);
}

TEST_CASE("The report of a run of any length stays below 2 MB", "[logging][report]") {
  const TempDir dir;
  std::vector<LogRecord> records;
  for (int64_t step = 1; step <= 50'000; ++step) {
    LogRecord record = train_record(step, 1 + std::sin(static_cast<double>(step)));
    for (const char* name :
         {"processor_wait_fraction", "other_processes_fraction", "queue_depth", "host_memory_bytes"}) {
      record.values.emplace_back(name, 0.123456789 * static_cast<double>(step % 97));
    }
    record.gpu_memory_bytes.assign(8, step);
    record.gpu_utilisation.assign(8, 0.5);
    records.push_back(std::move(record));
    if (step % 10 != 0) continue;
    records.push_back(val_record(step, 1));
    for (int i = 0; i < 30; ++i) records.back().values.emplace_back("score" + std::to_string(i), 0.5 + i * step);
  }
  write_records(dir / "long", records, 1.7e9);
  // Pictures are left out when they are too large.
  fs::create_directories(dir / "long/results");
  const at::Tensor noise = torch::randint(0, 256, {700, 700, 3}, torch::kByte);
  nlohmann::json items = nlohmann::json::array();
  for (int i = 0; i < 4; ++i) {
    const std::string name = std::to_string(i) + ".png";
    REQUIRE(write_png(dir / ("long/results/" + name), i == 0 ? noise.slice(0, 0, 200) : noise).ok());
    items.push_back({{"file", name}, {"caption", "map"}, {"alt", "map"}});
  }
  const nlohmann::json results = {
      {"sections", {{{"title", "Maps"}, {"blocks", {{{"type", "pictures"}, {"items", items}}}}}}}};
  write_text(dir / "long/results/report.json", results.dump());
  const std::string page = page_of(dir / "long");
  CHECK(page.size() > 200'000);
  CHECK(page.size() < 2'000'000);
  CHECK(count_of(page, "data:image/png") == 1);
  CHECK_THAT(page, Contains("see results/1.png"));
}

TEST_CASE("Damaged files of a run leave out their parts of the report", "[logging][report]") {
  const TempDir dir;
  const std::string run = dir / "run";
  for (const char* text : {"", "{", "[]", "null", "7", "\"x\"", R"({"sessions":7})", R"({"sessions":[7,null,"a",[]]})",
                           R"({"sessions":[{"started":"a","settings":[[1]],"command":[7],"facts":[["a"]]}]})",
                           R"({"tiles":[7],"sections":[7,{"blocks":[7,{"type":"table","columns":[1],"rows":[7,[2,3]]},)"
                           R"({"type":"matrix","labels":["a"],"counts":[7]},{"type":"pictures","items":[7]}]}]})"}) {
    write_records(run, {train_record(1, 1)});
    for (const char* name : {"run.json", "summary.json", "error.json", "results/report.json", "config.yaml"}) {
      write_text(run + "/" + name, text);
    }
    INFO(text);
    CHECK_THAT(page_of(run), Contains("<b>Loss</b>"));
  }
}

TEST_CASE("A folder that is no run is exit code 2", "[logging][report]") {
  const TempDir dir;
  for (const std::string& folder : {dir / "none", dir.path().string()}) {
    const absl::Status status = render_report({folder}).status();
    CHECK(exit_code(status) == ExitCode::kUsage);
    CHECK_THAT(error_line(status), Contains("error[run.none] " + folder));
    CHECK(find_runs(folder).status() == status);
    CHECK_FALSE(write_report(folder).ok());
  }
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("Several runs are overlaid, with tables of what differed and what came out", "[logging][report]") {
  const TempDir dir;
  for (const char* name : {"a", "b"}) {
    const double loss = name[0] == 'a' ? 0.5 : 0.25;
    write_records(dir / name, {train_record(10, 1), val_record(10, loss), train_record(20, 1), val_record(20, loss)});
    write_text(dir / (std::string(name) + "/config.yaml"),
               std::string("# x\nlr: ") + (name[0] == 'a' ? "0.1" : "0.2") + "   # --lr\nseed: 7   # default\n");
    REQUIRE(write_summary(dir / name, {.steps = 20, .best_metrics = {{"val_loss", loss}}, .best_step = 10}).ok());
  }
  CHECK(find_runs(dir.path().string()).value() == std::vector<std::string>{dir / "a", dir / "b"});
  const std::string page = render_report({dir / "a", dir / "b"}).value();
  CHECK_THAT(page, Contains("2 runs") && Contains("What differed") && Contains("What came out") &&
                       Contains("Validation loss") && Contains("best_val_loss") && !Contains("seed"));
  CHECK(report_csv({dir / "a", dir / "b"}).value() ==
        "run,outcome,steps,seconds,rate_per_second,best_step,best_val_loss,lr\n"
        "a,finished: finished,20,0.5,800,10,0.50000,0.1\n"
        "b,finished: finished,20,0.5,800,10,0.25000,0.2\n");
  // The settings explain the outcome, of which the loss differs most: 0.25 of 0.5.
  const size_t settings = page.find("What differed"), outcome = page.find("What came out");
  CHECK(settings < outcome);
  CHECK(page.find("best_val_loss", outcome) < page.find("<th scope=\"row\">program", outcome));
  CHECK(page.find("best_val_loss", outcome) < page.find("<th scope=\"row\">steps", outcome));
}

TEST_CASE("A comparison shows figures of one kind in one format", "[logging][report]") {
  const TempDir dir;
  for (const char* name : {"a", "b"}) {
    const double share = name[0] == 'a' ? 0.5 : 0.75;
    LogRecord record = val_record(10, 1);
    record.values.emplace_back("accuracy", share);
    write_records(dir / name, {train_record(10, 1), record});
    REQUIRE(write_summary(dir / name, {.steps = 10,
                                       .best_metrics = {{"val_accuracy", share}},
                                       .best_step = 10,
                                       .scores = {{"real_memory_bytes", share * (1 << 30)}}})
                .ok());
  }
  const std::string page = render_report({dir / "a", dir / "b"}).value();
  CHECK_THAT(page, Contains(">50%<") && Contains(">75%<") && Contains(">512 MiB<"));
}

TEST_CASE("run.json lists each file before it has its name, and its digest when the session ends",
          "[logging][report]") {
  const TempDir dir;
  const std::string run = dir / "run";
  fs::create_directories(run + "/results");
  const auto files = [&] { return listed_files(read_json_file(run + "/run.json")); };
  const auto save = [&](const std::string& name, const std::string& text) {
    REQUIRE(write_file_atomically(Fs::posix(), run + "/" + name, text).ok());
  };
  REQUIRE(begin_session(run, {.program = "trainkit-x", .files = {"metrics.jsonl"}}).ok());
  CHECK(files() == nlohmann::json::parse(R"({"metrics.jsonl":null})"));
  save("results/scores.json", "first");
  save("results/scores.json", "second");
  save("report.html", "page");  // trainkit report may write it again
  REQUIRE(write_file_atomically(Fs::posix(), dir / "elsewhere", "text").ok());
  const Directory folder = Fs::posix().open_directory(run).value();
  CHECK_FALSE(write_file_atomically(folder, "failed", [](WritableFile&) { return absl::InternalError("x"); }).ok());
  CHECK(files() ==
        nlohmann::ordered_json::parse(R"({"metrics.jsonl":null,"results/scores.json":null,"report.html":null})"));
  REQUIRE(end_session(run, {.exit_reason = "max_steps"}, {}).ok());
  CHECK(files()["results/scores.json"] == Digest::of("second"));
  CHECK(files()["report.html"].is_null());
  save("results/scores.json", "third");
  CHECK(files()["results/scores.json"].is_null());
  // A run of an earlier version stays one: a list of some of its files would make the others foreign.
  auto earlier = read_json_file(run + "/run.json");
  earlier.erase("files");
  write_text(run + "/run.json", earlier.dump());
  REQUIRE(begin_session(run, {.program = "trainkit-x", .resume_step = 9, .files = {"metrics.jsonl"}}).ok());
  save("results/scores.json", "fourth");
  CHECK(files().is_null());
  // The common folder of several runs.
  REQUIRE(write_file_list(dir / "run/results", "trainkit-x", {{"config.yaml", "1"}, {"summary.json", ""}}).ok());
  CHECK(find_runs(dir / "run/results").status() != absl::OkStatus());
}

TEST_CASE("run.json keeps each session of a run, and ends only its own", "[logging][report]") {
  const TempDir dir;
  const std::string run = dir.path().string();
  const auto sessions = [&] { return read_json_file(run + "/run.json")["sessions"]; };
  REQUIRE(begin_session(run, {.program = "trainkit-x", .config = "lr: 1   # --lr\nseed: 2   # default\n"}).ok());
  REQUIRE(describe_session(run, {{"data", "9 rows"}}, "oa", true).ok());
  REQUIRE(sessions().size() == 1);
  CHECK(sessions()[0]["settings"] == nlohmann::json::parse(R"([["lr","1","--lr"]])"));
  CHECK(sessions()[0]["facts"] == nlohmann::json::parse(R"([["data","9 rows"]])"));
  CHECK(sessions()[0]["command"].size() >= 1);
  CHECK_FALSE(sessions()[0].contains("ended"));
  CHECK(load_run(run).value().outcome().kind == Outcome::Kind::kRunning);
  // The monitor's reports during the run.
  const auto log = open_session_log(run);
  log->log_monitor({.predicted_step_bytes = 1 << 20, .real_step_bytes = 2 << 20});
  REQUIRE(log->flush().ok());
  CHECK_FALSE(sessions()[0].contains("utilisation"));
  CHECK_THAT(page_of(run), Contains("memory at the peak of a step") && Contains("predicted 1.00 MiB (-50.0%)"));
  log->log_monitor({.seconds = 2, .advice = {{Bottleneck::kSlowDecode, "", "early advice"}}});
  CHECK_THAT(page_of(run), Contains("Advice of the monitor") && Contains("early advice"));
  MonitorReport monitor{.seconds = 3};
  monitor.advice = {{Bottleneck::kSlowDecode, "--num_workers", "raise --num_workers"}};
  REQUIRE(end_session(run, {.exit_reason = "signal", .exit_code = 143, .steps = 9, .wall_seconds = 2}, monitor).ok());
  CHECK(sessions()[0]["utilisation"]["advice"][0] == "raise --num_workers");
  CHECK(load_run(run).value().outcome().reason == "by signal 15");
  REQUIRE(begin_session(run, {.program = "trainkit-x", .resume_step = 9, .changes = {"lr: 1 -> 2 (--lr)"}}).ok());
  REQUIRE(sessions().size() == 2);
  CHECK(sessions()[1]["first_step"] == 9);
  REQUIRE(end_session(run, {.exit_reason = "error", .exit_code = 4}, {}).ok());
  CHECK(load_run(run).value().outcome().kind == Outcome::Kind::kFailed);
  CHECK_THAT(page_of(run), Contains("lr: 1 -&gt; 2 (--lr)"));
  // A new run in the same folder replaces the file.
  REQUIRE(begin_session(run, {.program = "trainkit-x"}).ok());
  CHECK(sessions().size() == 1);
  // A session of another process is not changed: it may still run.
  auto other = read_json_file(run + "/run.json");
  other["sessions"][0]["pid"] = 1;
  write_text(run + "/run.json", other.dump());
  REQUIRE(end_session(run, {.exit_reason = "error"}, {}).ok());
  CHECK_FALSE(sessions()[0].contains("ended"));
  CHECK(load_run(run).value().outcome().word == "killed");
}

TEST_CASE("A report shows the newest pictures and histograms of each name", "[logging][report]") {
  const TempDir dir;
  const std::string run = dir / "demo";
  write_records(run, {train_record(10, 2), train_record(20, 1)});
  CHECK_THAT(page_of(run), !Contains("Pictures") && !Contains("Histograms"));
  MediaLogger media(run + "/media");
  for (int64_t step = 10; step <= 60; step += 10) {
    media.image("val/<q9>", step, at::full({3, 4, 4}, step, at::kByte));
    media.histogram("weights", step, at::arange(step));
  }
  REQUIRE(media.flush().ok());
  const std::string page = page_of(run);
  CHECK_THAT(page, Contains("Pictures") && Contains("Histograms") && Contains("weights"));
  CHECK_THAT(page, Contains("val/&lt;q9&gt;, step 60") && Contains("val/&lt;q9&gt;, step 30") && !Contains("<q9>"));
  CHECK_THAT(page, !Contains("val/&lt;q9&gt;, step 20"));  // the newest four
  CHECK(count_of(page, "data:image/png;base64,") == 4);
  CHECK_THAT(page, Contains("step 10") && Contains("step 60"));  // the first and the newest histogram
  write_text(run + "/media/large.step-00000060.png", std::string(400'000, 'x'));
  CHECK_THAT(page_of(run), Contains("see media/large.step-00000060.png"));
}
