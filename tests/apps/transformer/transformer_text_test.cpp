// The texts of trainkit-transformer as a user gives them: JSON lines, line ends, a validation text, several inputs.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "apps/continued.h"
#include "apps/interruptions.h"
#include "apps/transformer/text_place.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

Ended run_texts(const Place& place, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-transformer", flags, place.dir.path().string());
}

/// Flags of a run on `input` instead of the place's text.
std::vector<std::string> flags_for(const Place& place, const std::string& name, const std::string& input,
                                   const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = place.flags(name, more);
  set_flag(flags, "--input", input);
  return flags;
}

std::string write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

/// Sentences of the demonstration text, one JSON object per line.
std::string json_lines(const std::string& field, uint64_t seed) {
  std::string lines, text = demo_text(8'000, seed);
  for (size_t begin = 0, end = 0; (end = text.find("\n\n", begin)) != text.npos; begin = end + 2) {
    lines += nlohmann::json{{field, text.substr(begin, end - begin)}}.dump() + "\n";
  }
  return lines;
}

/// Flags of a run on two texts, mixed by weight.
std::vector<std::string> mixed_flags(const Place& place, const std::string& name,
                                     const std::vector<std::string>& more = {}) {
  write(place.dir / "a.txt", demo_text(6'000, 3));
  write(place.dir / "b:c.jsonl", json_lines("text", 4));
  std::vector<std::string> flags = flags_for(place, name, place.dir / "a.txt:0.7", more);
  flags.insert(flags.begin() + 2, place.dir / "b:c.jsonl:0.3");
  return flags;
}

double val_loss(const std::string& folder) {
  return nlohmann::json::parse(read_text(folder + "/summary.json")).at("final").at("val_loss").get<double>();
}

}  // namespace

TEST_CASE("A run trains on a field of JSON lines, continues on them, and refuses other documents",
          "[apps][transformer][text]") {
  const Place place;
  const std::string file = write(place.dir / "a.jsonl", json_lines("body", 1));
  const Ended first = run_texts(place, flags_for(place, "run", file, {"--jsonl_field", "body", "--max_steps", "4"}));
  INFO(first.output << first.errors);
  REQUIRE(first.code == 0);
  const auto resume = [&] {
    return run_texts(place, {"--output_dir", place.dir / "run", "--resume", "latest", "--max_steps", "6"});
  };
  const Ended again = resume();
  INFO(again.errors);
  CHECK(again.code == 0);
  const Ended scored = run_texts(place, {"evaluate", place.dir / "run", "--input", file});
  INFO(scored.output << scored.errors);
  CHECK(scored.code == 0);
  write(place.dir / "two.jsonl", "{\"body\": \"the\"}\n{\"body\": \"the\"}\n");
  const Ended two = run_texts(place, {"evaluate", place.dir / "run", "--input", place.dir / "two.jsonl"});
  INFO(two.output << two.errors);
  const auto number = [&](const std::string& name) {
    return std::stod(two.output.substr(two.output.find(name) + name.size()));
  };
  // Predicted are 5 bytes, of all but the first character, and the ends of the documents.
  CHECK(number("\ntokens ") == 7);
  CHECK(number("\nbits per byte ") == Approx(number("\nloss ") / std::log(2.0) * 7 / 5).epsilon(1e-4));
  const auto files = files_of(place.dir / "run");
  write(file, json_lines("body", 2));
  const Ended refused = resume();
  CHECK(refused.code == 4);
  CHECK_THAT(refused.errors, Catch::Contains("data.changed"));
  CHECK(files_of(place.dir / "run") == files);
}

TEST_CASE("A run reports the CRLF line ends of its text, or converts them and equals a run on LF",
          "[apps][transformer][text]") {
  const Place place;
  const std::string text = read_text(place.dir / "text.txt");
  std::string crlf;
  int64_t lines = 0;
  for (const char c : text) crlf += c == '\n' ? ++lines, "\r\n" : std::string(1, c);
  const std::string file = write(place.dir / "crlf.txt", crlf), count = std::to_string(lines) + " CRLF line ends ";
  const Ended kept = run_texts(place, flags_for(place, "kept", file, {"--dry_run"}));
  INFO(kept.output << kept.errors);
  CHECK_THAT(kept.output, Catch::Contains(count + "(--normalize_newlines converts them)"));
  const Ended converted =
      run_texts(place, flags_for(place, "converted", file, {"--normalize_newlines", "--max_steps", "4"}));
  CHECK_THAT(converted.output, Catch::Contains(count + "converted to LF"));
  const Ended plain = run_texts(place, place.flags("plain", {"--max_steps", "4"}));
  CHECK_THAT(plain.output, !Catch::Contains("CRLF"));
  CHECK(losses(place.dir / "converted") == losses(place.dir / "plain"));
  CHECK(read_text(place.dir / "converted/tokenizer.json") == read_text(place.dir / "plain/tokenizer.json"));
}

TEST_CASE("A validation text is scored in the run, by evaluate, and checked when the run continues",
          "[apps][transformer][text]") {
  const Place place;
  const std::string other = write(place.dir / "val.txt", demo_text(3'000, 5)), folder = place.dir / "run";
  const Ended first = run_texts(place, place.flags("run", {"--validation_input", other, "--max_steps", "4"}));
  INFO(first.output << first.errors);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.output, Catch::Contains("val.txt: ") && !Catch::Contains("tokens are for validation"));
  const double loss = val_loss(folder);
  for (const std::vector<std::string>& input : {std::vector<std::string>{}, {"--input", other}}) {
    std::vector<std::string> words = {"evaluate", folder};
    words.insert(words.end(), input.begin(), input.end());
    const Ended scored = run_texts(place, words);
    INFO(scored.output << scored.errors);
    REQUIRE(scored.code == 0);
    const size_t at = scored.output.find("\nloss ");
    REQUIRE(at != std::string::npos);
    CHECK(std::stod(scored.output.substr(at + 6)) == Approx(loss).margin(1e-6));
  }
  const auto files = files_of(folder);
  const auto resume = [&] {
    return run_texts(place, {"--output_dir", folder, "--resume", "latest", "--max_steps", "6"});
  };
  write(other, demo_text(3'000, 6));
  const Ended refused = resume();
  CHECK(refused.code == 4);
  CHECK_THAT(refused.errors, Catch::Contains("data.changed"));
  CHECK(files_of(folder) == files);
  write(other, demo_text(3'000, 5));
  CHECK(resume().code == 0);
}

TEST_CASE("--eval_max_rows shortens the evaluations of a run, and evaluate only if it is given there",
          "[apps][transformer][text]") {
  const Place place;
  const std::string other = write(place.dir / "val.txt", demo_text(3'000, 5));
  const Ended first =
      run_texts(place, place.flags("run", {"--validation_input", other, "--max_steps", "2", "--eval_max_rows", "7"}));
  INFO(first.output << first.errors);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.output, Catch::Contains("7 windows, evenly spaced"));
  const auto evaluate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"evaluate", place.dir / "run"});
    const Ended scored = run_texts(place, more);
    INFO(scored.output << scored.errors);
    REQUIRE(scored.code == 0);
    return scored.output;
  };
  const std::string some = evaluate({"--eval_max_rows", "7"}), all = evaluate({});
  CHECK_THAT(some, Catch::Contains("tokens         112 predicted"));
  CHECK(std::stod(some.substr(some.find("\nloss ") + 6)) == Approx(val_loss(place.dir / "run")).margin(1e-6));
  CHECK_THAT(all, !Catch::Contains("tokens         112 predicted"));
}

TEST_CASE("Inputs are mixed by weight, and the run reports their shares", "[apps][transformer][text]") {
  const Place place;
  const Ended ended = run_texts(place, mixed_flags(place, "run", {"--epochs", "2", "--eval_every", "0"}));
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("a.txt 70.") && Catch::Contains("passes per epoch"));
  const size_t at = ended.output.find("mixture of ");
  REQUIRE(at != std::string::npos);
  CHECK_THAT(ended.output.substr(at), Catch::Contains("(weight 70.00 %)") && Catch::Contains("(weight 30.00 %)"));
  const auto scores = nlohmann::json::parse(read_text(place.dir / "run/summary.json"));
  const std::string text = scores.dump();
  REQUIRE(text.find("input_share_1") != std::string::npos);
  const auto rows = std::stoll(ended.output.substr(at + 11));
  CHECK(rows % 4 == 0);  // two epochs of full batches
  CHECK(rows > 1000);
  CHECK(std::stod(text.substr(text.find("input_share_1") + 15)) == Approx(0.7).margin(0.005));
  CHECK(std::stod(text.substr(text.find("input_share_2") + 15)) == Approx(0.3).margin(0.005));
}

TEST_CASE("A mixture does not depend on workers, and replicas share its rows", "[apps][transformer][text]") {
  const Place place;
  const auto trained = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> flags = mixed_flags(place, name, {"--max_steps", "30"});
    set_flag(flags, "--log_every", "1");
    set_flag(flags, "--dropout", "0");
    set_flag(flags, "--batch_size", "6");
    for (size_t i = 0; i < more.size(); i += 2) set_flag(flags, more[i], more[i + 1]);
    const Ended ended = run_texts(place, flags);
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    return losses(place.dir / name);
  };
  const auto alone = trained("w0", {"--num_workers", "0"});
  REQUIRE(alone.size() > 30);
  CHECK(trained("w1", {"--num_workers", "1"}) == alone);
  CHECK(trained("w4", {"--num_workers", "4"}) == alone);
  for (const std::string replicas : {"2", "3"}) {
    const auto shared =
        trained("r" + replicas, {"--parallel", replicas, "--batch_size", std::to_string(6 / std::stoi(replicas))});
    REQUIRE(shared.size() == alone.size());
    for (size_t i = 0; i < alone.size(); ++i) CHECK(shared[i].loss == Approx(alone[i].loss).epsilon(1e-4));
  }
}

TEST_CASE("A run on a mixture that is killed at any moment continues with the same bits", "[apps][transformer][text]") {
  const Place place;
  verify_resume("trainkit-transformer",
                mixed_flags(place, "", {"--max_steps", "300", "--save_every", "20", "--eval_every", "100"}), place.dir,
                {.count = 3});
  verify_resume("trainkit-transformer", mixed_flags(place, "", {"--max_steps", "60", "--save_every", "20"}), place.dir,
                Interruptions{.count = 1, .ranks = 3});
}

TEST_CASE("A run packs documents, and evaluate gives its validation loss", "[apps][transformer][text]") {
  const Place place;
  const std::string file = write(place.dir / "a.jsonl", json_lines("text", 1));
  const std::string other = write(place.dir / "val.jsonl", json_lines("text", 2));
  const auto trained = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> flags = flags_for(place, name, file, {"--pack_documents", "--validation_input", other});
    set_flag(flags, "--block_size", "64");
    set_flag(flags, "--dropout", "0");
    set_flag(flags, "--max_steps", "12");
    for (size_t i = 0; i < more.size(); i += 2) set_flag(flags, more[i], more[i + 1]);
    const Ended ended = run_texts(place, flags);
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    CHECK_THAT(ended.output, Catch::Contains("of the positions have a target"));
    return losses(place.dir / name);
  };
  const auto first = trained("run", {});
  const Ended scored = run_texts(place, {"evaluate", place.dir / "run"});
  INFO(scored.output << scored.errors);
  REQUIRE(scored.code == 0);
  CHECK(std::stod(scored.output.substr(scored.output.find("\nloss ") + 6)) ==
        Approx(val_loss(place.dir / "run")).margin(1e-6));
  // A step of the same rows, however they are divided, has the same loss.
  for (const std::vector<std::string>& division :
       {std::vector<std::string>{"--batch_size", "8", "--grad_accum_steps", "1"},
        {"--batch_size", "1", "--grad_accum_steps", "8"},
        {"--batch_size", "2", "--grad_accum_steps", "2", "--parallel", "2"}}) {
    const auto other_division = trained("division" + division.back() + division[1], division);
    REQUIRE(other_division.size() == first.size());
    for (size_t i = 0; i < first.size(); ++i) CHECK(other_division[i].loss == Approx(first[i].loss).epsilon(1e-4));
  }
}

TEST_CASE("A run on packed documents that is killed continues with the same bits", "[apps][transformer][text]") {
  const Place place;
  std::vector<std::string> flags =
      mixed_flags(place, "", {"--pack_documents", "--max_steps", "200", "--save_every", "20", "--eval_every", "100"});
  set_flag(flags, "--hidden_dim", "32");  // heads of 16 values: fused blocks
  set_flag(flags, "--dropout", "0");
  verify_resume("trainkit-transformer", flags, place.dir, {.count = 2});
}

TEST_CASE("Faulty texts and flags about them end with one line and no file", "[apps][transformer][text]") {
  const Place place;
  const std::string text = place.dir / "text.txt", lines = write(place.dir / "a.jsonl", "{\"body\": \"a\"}\n");
  std::vector<std::string> long_windows = flags_for(place, "run", write(place.dir / "b.jsonl", json_lines("text", 1)));
  set_flag(long_windows, "--block_size", "100000");
  struct Case {
    std::vector<std::string> flags;
    int code;
    std::string problem;
  };
  const std::vector<Case> cases = {
      {flags_for(place, "run", lines), 4, "a.jsonl:1: text: no such field"},
      {flags_for(place, "run", lines, {"--jsonl_field", ""}), 2, "--jsonl_field"},
      {flags_for(place, "run", text, {"--eval_max_rows", "-1"}), 2, "--eval_max_rows"},
      {flags_for(place, "run", text, {"--normalize_newlines=maybe"}), 2, "--normalize_newlines"},
      {flags_for(place, "run", text, {"--allow_special_tokens=2"}), 2, "--allow_special_tokens"},
      {flags_for(place, "run", text, {"--validation_input", place.dir / "none.txt"}), 4, "none.txt: no such file"},
      {flags_for(place, "run", text, {"--pack_documents"}), 4, "text.txt: no document ends in the training text"},
      {flags_for(place, "run", text, {"--pack_documents=x"}), 2, "--pack_documents"},
      {flags_for(place, "run", text, {"--optimizer", "x"}), 2, "--optimizer"},
      {long_windows, 4, "b.jsonl: the training part of the text is too short"},
      {flags_for(place, "run", text + ":0"), 2, "--input: the weight of "},
      {flags_for(place, "run", text + ":-0.5"), 2, "--input: the weight of "},
      {flags_for(place, "run", place.dir / "none.txt:0.5"), 4, "none.txt: no such file"}};
  for (const Case& bad : cases) {
    const Ended ended = run_texts(place, bad.flags);
    INFO(bad.problem << "\n" << ended.errors);
    CHECK(ended.code == bad.code);
    CHECK(ended.errors.starts_with("trainkit: error["));
    CHECK_THAT(ended.errors, Catch::Contains(bad.problem));
    CHECK(has_only_error(place.dir / "run"));
  }
  std::vector<std::string> mixed = place.flags("run");
  mixed[1] = text + ":0.5";
  mixed.insert(mixed.begin() + 2, text);
  const Ended some = run_texts(place, mixed);
  CHECK(some.code == 2);
  CHECK_THAT(some.errors, Catch::Contains("only some inputs have a weight"));
}
