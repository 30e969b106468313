// Valid and invalid files of MovieLens and RecBole.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "gpt2_recommender/ratings.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::rec;
using namespace trainkit::test;

namespace {

using Files = std::map<std::string, std::string>;

/// A small data set of each kind; tests corrupt one file of it.
Files files_1m() {
  return {{"ratings.dat", "1::10::5::978300760\n1::20::3::978302109\n2::10::4::978300055\n2::30::1::978300000\n"},
          {"movies.dat",
           "10::Toy Story (1995)::Animation|Children's|Comedy\n20::Mis\xe9rables, Les (1995)::Drama\n"
           "30::Heat (1995)::Action|Crime|Thriller\n"},
          {"users.dat", "1::F::1::10::48067\n2::M::56::16::70072\n"}};
}
Files files_100k() {
  const std::string flags = "|0|1|0|0|0|1|0|0|0|0|0|0|0|0|0|0|0|0|0\n";
  return {{"u.data", "196\t242\t3\t881250949\n186\t242\t3\t891717742\n196\t377\t1\t878887116\n"},
          {"u.item", "242|Kolya (1996)|24-Jan-1997||http://x" + flags + "377|Caf\xe9 (1994)|01-Jan-1994||" + flags},
          {"u.user", "186|39|F|executive|00000\n196|49|M|writer|55105\n"}};
}
Files files_recbole() {
  return {
      {"a.inter",
       "user_id:token\titem_id:token\trating:float\ttimestamp:float\nu1\ti1\t5\t10\nu1\ti2\t4.5\t11.0\nu2\ti1\t1\t9\n"},
      {"a.item",
       "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\ni1\tToy "
       "Story\t1995\tComedy\ni2\tHeat\t1995\tCrime\n"}};
}

void write(const TempDir& dir, const Files& files) {
  for (const auto& [name, text] : files) std::ofstream(dir / name, std::ios::binary) << text;
}

Ratings must_read(const Files& files) {
  const TempDir dir;
  write(dir, files);
  const auto ratings = read_ratings(dir.path().string());
  INFO((ratings.ok() ? "" : error_line(ratings.status())));
  REQUIRE(ratings.ok());
  return *ratings;
}

}  // namespace

TEST_CASE("The three formats are read with their ids, values, times and texts", "[apps][rec]") {
  const Ratings ml_1m = must_read(files_1m());
  CHECK(ml_1m.format == "ml-1m");
  REQUIRE(ml_1m.rows.size() == 4);
  CHECK(ml_1m.users[1].id == "2");
  CHECK(ml_1m.users[0].text == "female, age under 18, K-12 student");
  CHECK(ml_1m.items[0].text == "Toy Story (1995). Animation, Children's, Comedy");
  CHECK(ml_1m.items[1].text == "Mis\xc3\xa9rables, Les (1995). Drama");  // Latin-1 in the file, UTF-8 here
  CHECK((ml_1m.rows[3].user == 1 && ml_1m.rows[3].item == 2));
  CHECK((ml_1m.rows[3].value == 1 && ml_1m.rows[3].time == 978300000));
  CHECK(ml_1m.notes.empty());

  const Ratings ml_100k = must_read(files_100k());
  CHECK(ml_100k.format == "ml-100k");
  CHECK(ml_100k.users[0].id == "196");
  CHECK(ml_100k.users[0].text == "male, age 49, writer");
  CHECK(ml_100k.items[1].text == "Caf\xc3\xa9 (1994). Action, Comedy");

  const Ratings recbole = must_read(files_recbole());
  CHECK(recbole.format == "recbole");
  CHECK((recbole.users[0].id == "u1" && recbole.users[0].text.empty()));
  CHECK(recbole.items[0].text == "Toy Story, release_year 1995, Comedy");
  CHECK((recbole.rows[1].value == 4.5f && recbole.rows[1].time == 11));
}

TEST_CASE("Harmless variations are accepted: CRLF, a byte order mark, UTF-8 titles, unsorted times", "[apps][rec]") {
  Files files = files_1m();
  for (auto& [name, text] : files) {
    std::string changed = name == "users.dat" ? "\xef\xbb\xbf" : "";
    for (const char c : text) changed += c == '\n' ? std::string("\r\n") : std::string(1, c);
    text = changed;
  }
  CHECK(must_read(files).items[1].text == "Mis\xc3\xa9rables, Les (1995). Drama");
  files = files_1m();
  files["movies.dat"].replace(files["movies.dat"].find('\xe9'), 1, "\xc3\xa9");
  CHECK(must_read(files).items[1].text == "Mis\xc3\xa9rables, Les (1995). Drama");
  files = files_recbole();
  files["a.inter"] = "user_id:token\titem_id:token\nu1\ti1\nu1\ti2\nu2\ti1\n";
  CHECK_FALSE(must_read(files).has_times);
  CHECK_FALSE(must_read(files).has_values);
}

TEST_CASE("Users and items without a rating are reported with their line", "[apps][rec]") {
  Files files = files_1m();
  files["users.dat"] += "7::M::25::4::1\n8::M::25::4::1\n";
  files["movies.dat"] += "40::Alien::Horror\n";
  const Ratings ratings = must_read(files);
  REQUIRE(ratings.notes.size() == 2);
  CHECK_THAT(ratings.notes[0], Catch::EndsWith("users.dat:3: user 7 has no rating, and 1 more"));
  CHECK_THAT(ratings.notes[1], Catch::EndsWith("movies.dat:4: item 40 has no rating"));
}

TEST_CASE("Every bad line is reported with its file, its number and the problem", "[apps][rec]") {
  enum Kind { k1m, k100k, kRecbole };
  struct Case {
    Kind kind;
    const char* file;
    std::string from, to;  // replaces the first occurrence of `from`; "" replaces the whole file
    const char* where;
    const char* text;
  };
  const std::string long_line(100'000, 'x');
  const std::vector<Case> cases = {
      // Ratings
      {k1m, "ratings.dat", "", "", "ratings.dat", "empty file"},
      {k1m, "ratings.dat", "1::10::5", "userId,movieId\n1::10::5", "ratings.dat:1",
       "1 field (got 'userId,movieId', expected 4: user, item, rating, timestamp)"},
      {k1m, "ratings.dat", "1::20::3::978302109", "1,20,3,978302109", "ratings.dat:2", "1 field"},
      {k1m, "ratings.dat", "1::20::3::", "1::20::3\n", "ratings.dat:2", "3 fields"},
      {k1m, "ratings.dat", "::978302109", "::978302109::0", "ratings.dat:2", "5 fields"},
      {k1m, "ratings.dat", "1::20::3", "1::20::good", "ratings.dat:2", "rating: not a number (got 'good'"},
      {k1m, "ratings.dat", "1::20::3", "1::20::6", "ratings.dat:2",
       "rating: out of range (got '6', expected 0.5 to 5)"},
      {k1m, "ratings.dat", "1::20::3", "1::20::-1", "ratings.dat:2", "out of range"},
      {k1m, "ratings.dat", "1::20::3", "1::20::nan", "ratings.dat:2", "not a number"},
      {k1m, "ratings.dat", "1::20::3", "1::20::1e309", "ratings.dat:2", "not a number"},
      {k1m, "ratings.dat", "1::20::3", "1::20::4,5", "ratings.dat:2", "not a number"},
      {k1m, "ratings.dat", "1::20::3", "0::20::3", "ratings.dat:2", "user: not an id"},
      {k1m, "ratings.dat", "1::20::3", "-3::20::3", "ratings.dat:2", "user: not an id"},
      {k1m, "ratings.dat", "1::20::3", "abc::20::3", "ratings.dat:2", "user: not an id"},
      {k1m, "ratings.dat", "1::20::3", "::20::3", "ratings.dat:2", "user: not an id"},
      {k1m, "ratings.dat", "1::20::3", "99999999999999999999::20::3", "ratings.dat:2", "user: not an id"},
      {k1m, "ratings.dat", "1::20::3", "1::4000000000::3", "ratings.dat:2", "item: not an id"},
      {k1m, "ratings.dat", "1::20::3", "1::21::3", "ratings.dat:2", "item: not in"},
      {k1m, "ratings.dat", "1::20::3", "5::20::3", "ratings.dat:2", "user: not in"},
      {k1m, "ratings.dat", "1::20::3::978302109", "1::10::5::978300760", "ratings.dat:2", "duplicate of line 1"},
      {k1m, "ratings.dat", "1::20::3", "1::10::2", "ratings.dat:2", "duplicate of line 1"},
      {k1m, "ratings.dat", "978302109", "-5", "ratings.dat:2", "timestamp: not a time"},
      {k1m, "ratings.dat", "978302109", "978302109000", "ratings.dat:2", "seconds and milliseconds are mixed"},
      {k1m, "ratings.dat", "2::30::1::978300000\n", "2::30::1::9783", "ratings.dat:4", "the file may be truncated"},
      {k1m, "ratings.dat", "1::20", std::string("1::\0", 4) + "20", "ratings.dat:2", "a NUL byte"},
      {k1m, "ratings.dat", "1::20",
       "1::\x01"
       "20",
       "ratings.dat:2", "control character"},
      {k1m, "ratings.dat", "1::20", "1::\r20", "ratings.dat:2", "a carriage return"},
      {k1m, "ratings.dat", "1::20", long_line, "ratings.dat:2", "line too long"},
      {k1m, "ratings.dat", "", "\x1f\x8b\b", "ratings.dat@0x3", "damaged gzip data"},
      {k1m, "ratings.dat", "", "\xff\xfe\x31", "ratings.dat", "UTF-16"},
      {k1m, "ratings.dat", "", "1::10::5::1\n1::20::5::1\n", "ratings.dat", "all ratings are of one user"},
      {k1m, "ratings.dat", "", "1::10::5::1\n2::10::5::1\n", "ratings.dat", "all ratings are of one item"},
      {k100k, "u.data", "186\t242", "186 242", "u.data:2", "3 fields"},
      {k100k, "u.data", "186\t242\t3", "186\t242\t", "u.data:2", "rating: not a number"},
      {k100k, "u.data", "186\t", "187\t", "u.data:2", "user: not in"},
      // Items
      {k1m, "movies.dat", "Heat (1995)", "Heat::1995", "movies.dat:3", "4 fields"},
      {k1m, "movies.dat", "::Drama", "", "movies.dat:2", "2 fields"},
      {k1m, "movies.dat", "Drama", "Dramma", "movies.dat:2", "genre: unknown (got 'Dramma'"},
      {k1m, "movies.dat", "Drama", "", "movies.dat:2", "genre: unknown"},
      {k1m, "movies.dat", "Heat (1995)", "", "movies.dat:3", "title: empty"},
      {k1m, "movies.dat", "30::", "10::", "movies.dat:3", "duplicate of line 1"},
      {k1m, "movies.dat", "Heat", "H\xc3\xa9", "movies.dat:3", "encoding differs from line 2"},
      {k1m, "movies.dat", "Heat", "It\x92s", "movies.dat:3", "neither UTF-8 nor Latin-1"},
      {k100k, "u.item", "24-Jan-1997", "24-Jan|1997", "u.item:1", "25 fields"},
      {k100k, "u.item", "http://x|0|1", "http://x|0|2", "u.item:1", "Action: not a flag"},
      {k100k, "u.item", "|1|0|0|0|1", "|0|0|0|0|0", "u.item:1", "none of the flags"},
      // Users
      {k1m, "users.dat", "2::M", "2::X", "users.dat:2", "gender: unknown (got 'X'"},
      {k1m, "users.dat", "::56::", "::57::", "users.dat:2", "age: unknown"},
      {k1m, "users.dat", "::16::", "::21::", "users.dat:2", "occupation: unknown"},
      {k1m, "users.dat", "::70072", "", "users.dat:2", "4 fields"},
      {k1m, "users.dat", "2::M", "1::M", "users.dat:2", "duplicate of line 1"},
      {k100k, "u.user", "|49|", "|0|", "u.user:2", "age: not an age"},
      {k100k, "u.user", "|writer|", "||", "u.user:2", "occupation: empty"},
      // RecBole
      {kRecbole, "a.inter", "user_id:token", "user:token", "a.inter:1", "user_id: no such column"},
      {kRecbole, "a.inter", "item_id:token", "user_id:token", "a.inter:1",
       "duplicate column name (got 'user_id:token'"},
      {kRecbole, "a.inter", "item_id:token", "user_id:float", "a.inter:1", "user_id: duplicate column"},
      {kRecbole, "a.inter", "rating:float", "rating", "a.inter:1", "not a header column"},
      {kRecbole, "a.inter", "user_id:token\titem_id:token", "user_id:token item_id:token", "a.inter:1",
       "user_id token"},
      {kRecbole, "a.inter", "u1\ti1\t5\t10\n", "u1\ti1\t5\n", "a.inter:2", "3 fields"},
      {kRecbole, "a.inter", "u1\ti1\t5", "\ti1\t5", "a.inter:2", "user_id: empty"},
      {kRecbole, "a.inter", "u1\ti1\t5", "u1\ti1\tinf", "a.inter:2", "rating: not a number"},
      {kRecbole, "a.inter", "u1\ti1\t5", "u1\ti9\t5", "a.inter:2", "item: not in"},
      {kRecbole, "a.inter", "u1\ti1\t5\t10\nu1\ti2\t4.5\t11.0\nu2\ti1\t1\t9\n", "", "a.inter", "no rating"},
      {kRecbole, "a.item", "i2\t", "i1\t", "a.item:3", "duplicate of line 2"},
  };
  for (const Case& bad : cases) {
    Files files = bad.kind == k1m ? files_1m() : bad.kind == k100k ? files_100k() : files_recbole();
    std::string& text = files.at(bad.file);
    if (bad.from.empty()) {
      text = bad.to;
    } else {
      REQUIRE(text.find(bad.from) != text.npos);
      text.replace(text.find(bad.from), bad.from.size(), bad.to);
    }
    const TempDir dir;
    write(dir, files);
    const auto ratings = read_ratings(dir.path().string());
    INFO(bad.where << " " << bad.text);
    if (ratings.ok()) {
      CHECK_FALSE(ratings.ok());
      continue;
    }
    INFO(error_line(ratings.status()));
    CHECK(exit_code(ratings.status()) == ExitCode::kData);
    CHECK(error_line(ratings.status()).size() <= 400);
    if (std::string_view(bad.text) == "user_id token") continue;  // either column may be reported
    CHECK(error_line(ratings.status()).find(std::string("/") + bad.where + ": ") != std::string::npos);
    CHECK(error_line(ratings.status()).find(bad.text) != std::string::npos);
  }
}

TEST_CASE("Folders without ratings, folders with several, and special files are errors", "[apps][rec]") {
  const TempDir dir;
  const auto line_of = [&](const std::string& path, const std::string& format = "auto") {
    const auto ratings = read_ratings(path, {.format = format});
    REQUIRE_FALSE(ratings.ok());
    CHECK(exit_code(ratings.status()) == ExitCode::kData);
    return error_line(ratings.status());
  };
  CHECK_THAT(line_of(dir.path().string()), Catch::Contains("no ratings file"));
  CHECK_THAT(line_of(dir / "none"), Catch::Contains("data.missing"));
  write(dir, files_recbole());
  std::ofstream(dir / "b.inter") << files_recbole().at("a.inter");
  CHECK_THAT(line_of(dir.path().string()),
             Catch::Contains("several files .inter") && Catch::Contains("a.inter, b.inter"));
  CHECK(read_ratings(dir / "a.inter").ok());
  CHECK_THAT(line_of(dir.path().string(), "ml-1m"), Catch::Contains("users.dat") && Catch::Contains("no such file"));
  write(dir, files_1m());
  std::filesystem::remove(dir / "ratings.dat");
  std::filesystem::create_directory(dir / "ratings.dat");
  CHECK_THAT(line_of(dir.path().string()), Catch::Contains("ratings.dat"));
  std::filesystem::remove(dir / "ratings.dat");
  REQUIRE(mkfifo((dir / "ratings.dat").c_str(), 0600) == 0);
  CHECK_THAT(line_of(dir.path().string()), Catch::Contains("ratings.dat"));  // and does not wait for a writer
}

TEST_CASE("Every prefix of a ratings file is read as whole lines or is an error", "[apps][rec]") {
  const Files whole = files_1m();
  const std::string& text = whole.at("ratings.dat");
  const TempDir dir;
  write(dir, whole);
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    std::ofstream(dir / "ratings.dat", std::ios::binary) << text.substr(0, bytes);
    const auto ratings = read_ratings(dir.path().string());
    const bool whole_lines = bytes > 0 && text[bytes - 1] == '\n';
    if (!whole_lines) CHECK_FALSE(ratings.ok());
    if (ratings.ok())
      CHECK(ratings->rows.size() ==
            static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<int64_t>(bytes), '\n')));
  }
}

TEST_CASE("The demo data is the same in all formats, reads without a note, and depends only on its seed",
          "[apps][rec]") {
  const TempDir dir;
  REQUIRE(write_demo_ratings(dir.path().string(), {.users = 40, .items = 50, .ratings_per_user = 12}).ok());
  std::vector<Ratings> all;
  for (const std::string format : {"ml-1m", "ml-100k", "recbole"}) {
    auto ratings = read_ratings(dir / format);
    INFO((ratings.ok() ? "" : error_line(ratings.status())));
    REQUIRE(ratings.ok());
    CHECK(ratings->format == format);
    all.push_back(std::move(*ratings));
  }
  CHECK(all[0].users.size() == 40);
  for (const Ratings& other : {all[1], all[2]}) {
    REQUIRE(other.rows.size() == all[0].rows.size());
    for (size_t i = 0; i < other.rows.size(); ++i) {
      CHECK(other.users[other.rows[i].user].id == all[0].users[all[0].rows[i].user].id);
      CHECK(other.items[other.rows[i].item].id == all[0].items[all[0].rows[i].item].id);
      CHECK(other.rows[i].value == all[0].rows[i].value);
    }
  }
  CHECK(all[0].items[0].text == all[1].items[0].text);
  const TempDir again;
  REQUIRE(
      write_demo_ratings(again.path().string(), {.users = 40, .items = 50, .ratings_per_user = 12, .seed = 1}).ok());
  CHECK(read_ratings(again / "ml-1m")->rows.front().time != all[0].rows.front().time);
}
