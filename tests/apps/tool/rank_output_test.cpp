#include "trainkit/rank_output.h"

#include <fmt/format.h>

#include "test_util.h"

using trainkit::tool::RankOutput;

namespace {

/// A stream that keeps its lines.
struct Kept {
  std::string text;
  RankOutput output{"[rank 0] ", [this](const std::string& line) { text += line; }};
};

}  // namespace

TEST_CASE("Lines are written whole, whatever pieces they arrive in") {
  Kept kept;
  for (const char* piece : {"on", "e\ntw", "o\n", "\n", "three"}) kept.output.feed(piece, 0);
  CHECK(kept.text == "[rank 0] one\n[rank 0] two\n[rank 0] \n");
  kept.output.end();
  CHECK(kept.text.ends_with("[rank 0] three\n"));
  kept.output.end();
  CHECK(kept.text.ends_with("two\n[rank 0] \n[rank 0] three\n"));
}

TEST_CASE("A redrawn line is shown once per second, and its last state always") {
  Kept kept;
  for (int i = 0; i <= 30; ++i) kept.output.feed(fmt::format("\r{}%", i), i * 0.1);
  CHECK(kept.text == "[rank 0] 0%\n[rank 0] 10%\n[rank 0] 20%\n");
  kept.output.feed("\n", 3.1);
  CHECK(kept.text.ends_with("[rank 0] 20%\n[rank 0] 30%\n"));
}

TEST_CASE("A line end of two bytes counts as one") {
  Kept kept;
  kept.output.feed("one\r\ntwo\r", 0);
  kept.output.feed("\nthree\n", 0);
  CHECK(kept.text == "[rank 0] one\n[rank 0] two\n[rank 0] three\n");
}

TEST_CASE("A line without an end is cut into pieces, and no piece is empty") {
  Kept kept;
  const std::string long_line(2 * RankOutput::kMaxLine, 'x');
  kept.output.feed(long_line + "\nnext\n", 0);
  CHECK(kept.text.size() == long_line.size() + 2 * 10 + 14);
  CHECK(kept.text.ends_with("x\n[rank 0] next\n"));
}
