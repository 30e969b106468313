#include "trainkit/text/documents.h"

#include <filesystem>
#include <fstream>

#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using test::id_of;

namespace {

std::string save(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

Documents open(const test::TempDir& dir, const std::string& input, const DocumentOptions& options = {}) {
  auto text = open_documents(input, options, dir / "prepared");
  INFO(text.status().message());
  REQUIRE(text.ok());
  return *std::move(text);
}

}  // namespace

TEST_CASE("Each line of a .jsonl file is a document: the text of one field, and its end", "[text][documents]") {
  const test::TempDir dir;
  const std::string file = save(dir / "a.jsonl",
                                "\xef\xbb\xbf{\"text\": \"one\\ntwo \\u00e4\", \"id\": 1}\r\n\n"
                                "{\"id\": 2, \"text\": \"\"}\n  \n{\"text\":\"three\",\"body\":\"3\"}");
  const Documents text = open(dir, file);
  CHECK(text.content == "one\ntwo \xc3\xa4\x03three\x03");
  CHECK(text.ends == std::vector<int64_t>{11, 17});
  CHECK(text.empty_documents == 1);
  CHECK(text.name == file);
  const std::string body = save(dir / "b.jsonl", "{\"body\": \"b\", \"text\": 1}\n");
  CHECK(open(dir, body, {.jsonl_field = "body"}).content == "b\x03");
  // The same bytes with other documents are another text.
  const std::string joined = save(dir / "c.jsonl", "{\"text\": \"one\\ntwo \\u00e4\\u0003three\"}");
  const std::string digest = text.digest;
  CHECK(open(dir, joined).content == text.content);
  CHECK(open(dir, joined).digest != digest);
}

TEST_CASE("A faulty line of a .jsonl file is an error with its file and line", "[text][documents]") {
  const test::TempDir dir;
  const std::string good = "{\"text\": \"a\"}\n\n";
  const std::vector<std::tuple<std::string, std::string, std::string>> faults = {
      {"{\"txt\": \"a\", \"n\": 1}", ": text: no such field", "--body selects one of: txt"},
      {"{\"n\": 1}", ": text: no such field", ""},
      {"{\"text\": 5}", ": text: not a string (got 'number'", ""},
      {"{\"text\": null}", ": text: not a string (got 'null'", ""},
      {"[\"text\"]", ": not a JSON object (got 'array'", ""},
      {"{\"text\": \"a\"", "is not valid JSON", ""},
      {"{\"text\": \"\\ud800\"}", "is not valid JSON", ""},
      {"{\"text\": \"\xff\"}", "is not valid JSON", ""},
      {"{\"text\": \"a\\u0000b\"}", "a NUL character in a text", ""}};
  for (const auto& [line, problem, hint] : faults) {
    const std::string path = save(dir / "bad.jsonl", good + line + "\n" + good);
    const absl::Status status = open_documents(path, {.jsonl_field_flag = "--body"}, dir / "prepared").status();
    INFO(error_text(status));
    CHECK(id_of(status) == "data.jsonl");
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_line(status).find(path + ":3") != std::string::npos);
    CHECK(error_line(status).find(problem) != std::string::npos);
    CHECK(error_text(status).find(hint) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(dir / "prepared"));
  }
  const std::string other = save(dir / "bad.jsonl", "{\"body\": \"a\"}\n");
  CHECK_THAT(error_text(open_documents(other, {}, dir / "prepared").status()),
             Catch::Contains("fields with a text: body"));
  const absl::Status empty = open_documents(save(dir / "bad.jsonl", "\n"), {}, dir / "prepared").status();
  CHECK(id_of(empty) == "data.empty");
}

TEST_CASE("CRLF line ends are counted, and converted on request", "[text][documents]") {
  const test::TempDir dir;
  const std::string file = save(dir / "a.txt", "one\r\ntwo\rthree\n\r\nfour\r");
  CHECK(open(dir, file).content == "one\r\ntwo\rthree\n\r\nfour\r");
  CHECK(open(dir, file).crlf == 2);
  CHECK_FALSE(std::filesystem::exists(dir / "prepared"));
  const Documents converted = open(dir, file, {.normalize_newlines = true});
  CHECK(converted.content == "one\ntwo\rthree\n\nfour\r");
  CHECK(converted.crlf == 2);
  CHECK(converted.digest != open(dir, file).digest);
  std::filesystem::create_directory(dir / "folder");
  save(dir / "folder/a.txt", "a\r\n");
  save(dir / "folder/b.jsonl", "{\"text\": \"b\\r\\nc\"}\r\n");
  const Documents folder = open(dir, dir / "folder", {.normalize_newlines = true});
  CHECK(folder.content == "a\nb\nc\x03");
  CHECK(folder.crlf == 2);
}

TEST_CASE("Converted line ends of a long text are those of a short one", "[text][documents]") {
  const test::TempDir dir;
  std::string crlf, lf;
  for (int i = 0; i < 300'000; ++i) crlf += std::to_string(i) + "\r\n", lf += std::to_string(i) + "\n";
  const std::string file = save(dir / "a.txt", crlf);
  CHECK(open(dir, file, {.normalize_newlines = true}).content == lf);
  CHECK(open(dir, file, {.normalize_newlines = true, .replace_end_of_text = true}).content == lf);
}
