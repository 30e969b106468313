// Tables of interactions: csv and tsv files, repeated events, a file for each part, and files of negatives.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/rec/rec_place.h"
#include "gpt2_recommender/interactions.h"
#include "gpt2_recommender/ranking.h"
#include "gpt2_recommender/triplets.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// A folder with one table.
struct EventsFile {
  explicit EventsFile(const std::string& text, const std::string& name = "events.csv") : path(dir / name) {
    std::ofstream(path, std::ios::binary) << text;
  }
  absl::StatusOr<Ratings> read(const TableColumns& table = {}) const { return read_ratings(path, {.table = table}); }
  std::string error(const TableColumns& table = {}) const {
    const auto ratings = read(table);
    REQUIRE_FALSE(ratings.ok());
    CHECK(exit_code(ratings.status()) == ExitCode::kData);
    return error_line(ratings.status());
  }

  TempDir dir;
  std::string path;
};

Ratings must(const absl::StatusOr<Ratings>& ratings) {
  INFO((ratings.ok() ? "" : error_line(ratings.status())));
  REQUIRE(ratings.ok());
  return *ratings;
}

/// "user item value time" of each row, separated by "; ".
std::string rows_of(const Ratings& ratings) {
  std::string text;
  for (const Rating& row : ratings.rows) {
    text += (text.empty() ? "" : "; ") + ratings.users[static_cast<size_t>(row.user)].id + " " +
            ratings.items[static_cast<size_t>(row.item)].id + " " + std::to_string(static_cast<int>(row.value)) + " " +
            std::to_string(row.time.whole);
  }
  return text;
}

Ended run_tables(const RecPlace& place, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-gpt2rec", flags, place.dir.path().string());
}

/// The demo data as lines of "user<separator>item", one file per part: the last item of a user is the test, the one
/// before validation. Returns the interactions of each user.
std::vector<std::vector<std::string>> write_parts(const RecPlace& place) {
  const Ratings ratings = read_ratings(place.dir / "ml-1m").value();
  std::vector<std::vector<std::string>> items(ratings.users.size());
  for (const Rating& row : ratings.rows) {
    items[static_cast<size_t>(row.user)].push_back(ratings.items[static_cast<size_t>(row.item)].id);
  }
  std::ofstream train(place.dir / "train.tsv"), validation(place.dir / "validation.tsv"), test(place.dir / "test.tsv");
  for (size_t user = 0; user < items.size(); ++user) {
    for (size_t i = 0; i < items[user].size(); ++i) {
      std::ofstream& file = i + 1 == items[user].size() ? test : i + 2 == items[user].size() ? validation : train;
      file << ratings.users[user].id << "\t" << items[user][i] << "\n";
    }
  }
  return items;
}

}  // namespace

TEST_CASE("Tables are read with usual, named and numbered columns, with and without a header", "[apps][rec][tables]") {
  const std::string expected = "a x 5 100; b y 3 200; a y 1 300";
  const std::string rows = "a,x,5,100\nb,y,3,200\na,y,1,300";
  CHECK(rows_of(must(EventsFile(rows + "\n").read())) == expected);
  CHECK(rows_of(must(EventsFile(rows).read())) == expected);  // no line end after the last row
  CHECK(rows_of(must(EventsFile("userId,movieId,rating,timestamp\n" + rows).read())) == expected);
  CHECK(rows_of(must(
            EventsFile("\xef\xbb\xbfuser_id:token,item_id:token,rating:float,timestamp:float\r\n" + rows + "\r\n\r\n")
                .read())) == expected);
  CHECK(rows_of(must(EventsFile("when\tsku\tstars\tcustomer\n100\tx\t5\ta\n200\ty\t3\tb\n300\ty\t1\ta\n", "events.tsv")
                         .read({.user = "customer", .item = "sku", .time = "when"}))) == expected);
  CHECK(rows_of(must(EventsFile("100;x;5;a\n200;y;3;b\n300;y;1;a\n", "events.txt")
                         .read({.user = "4", .item = "2", .rating = "3", .time = "1", .delimiter = ';'}))) == expected);
  CHECK(rows_of(must(EventsFile("who,what,5,100\n" + rows).read({.user = "1", .item = "2", .header = "yes"}))) ==
        "a x 1 0; b y 1 0; a y 1 0");
}

TEST_CASE("Pairs without ratings or times are implicit feedback", "[apps][rec][tables]") {
  const Ratings pairs = must(EventsFile("a,x\nb,y\na,y\n").read());
  CHECK(rows_of(pairs) == "a x 1 0; b y 1 0; a y 1 0");
  CHECK_FALSE(pairs.has_values);
  CHECK_FALSE(pairs.has_times);
  CHECK(pairs.format == "table");
  const Ratings timed = must(EventsFile("a,x,100\nb,y,200\n").read({.rating = "none", .time = "3"}));
  CHECK(rows_of(timed) == "a x 1 100; b y 1 200");
  CHECK_FALSE(timed.has_values);
  CHECK(timed.has_times);
}

TEST_CASE("Quoted fields may contain the separator and quotes", "[apps][rec][tables]") {
  const Ratings ratings = must(EventsFile("user,item\n\"Doe, J.\",\"6\"\" pipe\"\nb,\"\"\"x\"\"\"\nb,z\n").read());
  CHECK(ratings.users[0].id == "Doe, J.");
  CHECK(ratings.items[0].id == "6\" pipe");
  CHECK(ratings.items[1].id == "\"x\"");
}

TEST_CASE("Tables may be JSON lines, and packed", "[apps][rec][tables]") {
  const std::string expected = "a x 5 100; b y 3 200";
  CHECK(rows_of(must(EventsFile("{\"userId\": \"a\", \"item\": \"x\", \"rating\": 5, \"ts\": 100, \"note\": null}\n"
                                "{\"userId\": \"b\", \"item\": \"y\", \"rating\": 3, \"ts\": 200}\n",
                                "events.jsonl")
                         .read())) == expected);
  const EventsFile plain("user,item,rating,time\na,x,5,100\nb,y,3,200\n");
  REQUIRE(std::system(("gzip " + plain.path).c_str()) == 0);
  CHECK(rows_of(must(read_ratings(plain.path + ".gz"))) == expected);
  CHECK(rows_of(must(read_ratings(plain.dir.path().string()))) == expected);
}

TEST_CASE("The table of a folder is found: the only one, or ratings.csv", "[apps][rec][tables]") {
  const EventsFile table("a,x\nb,y\na,y\n");
  CHECK(must(read_ratings(table.dir.path().string())).path.ends_with("events.csv"));
  std::ofstream(table.dir / "movies.csv") << "movieId,title\n";
  const auto several = read_ratings(table.dir.path().string());
  CHECK_THAT(error_line(several.status()),
             Catch::Contains("several files .csv, .csv.gz, .jsonl, .jsonl.gz, .tsv, .tsv.gz: name one of them") &&
                 Catch::Contains("events.csv, movies.csv"));
  std::ofstream(table.dir / "ratings.csv") << "userId,movieId,rating,timestamp\n1,2,3.5,4\n2,3,4,5\n";
  const Ratings usual = must(read_ratings(table.dir.path().string()));
  CHECK(usual.path.ends_with("ratings.csv"));
  CHECK_THAT(usual.notes.at(0), Catch::Contains("2 entries left out: events.csv, movies.csv"));
}

TEST_CASE("Every bad line of a table is reported with its number and the problem", "[apps][rec][tables]") {
  CHECK_THAT(EventsFile("a,x,5\nb,y\n").error(),
             Catch::Contains("events.csv:2: 2 fields") && Catch::Contains("see --csv_delimiter"));
  CHECK_THAT(EventsFile("a,x,5\nb,,3\n").error(), Catch::Contains("events.csv:2: item: empty"));
  CHECK_THAT(EventsFile("a,x,5\nb,y,good\n").error(),
             Catch::Contains("events.csv:2: rating: not a number (got 'good'"));
  CHECK_THAT(EventsFile("a,x,5,1\nb,y,3,monday\n").error(), Catch::Contains("events.csv:2: timestamp: not a time"));
  CHECK_THAT(EventsFile("a,\"x\nb,y\n").error(), Catch::Contains("events.csv:1: a quote that is never closed"));
  CHECK_THAT(EventsFile("a,\"x\"y\nb,y\n").error(), Catch::Contains("events.csv:1: text after a closing quote"));
  CHECK_THAT(EventsFile("a\nb\n").error(), Catch::Contains("item: too few columns"));
  CHECK_THAT(EventsFile("a,x\nb,y\na,y\n").error({.user = "3"}),
             Catch::Contains("user: no column 3 (got 'a, x', expected 1 to 2)"));
  CHECK_THAT(EventsFile("u,i\nb,y\n").error({.user = "user", .item = "i"}),
             Catch::Contains("user: no column user (got 'u, i'"));
  CHECK_THAT(EventsFile("u,i,n\nb,y,1\n").error({.header = "yes"}),
             Catch::Contains("user: no column with a usual name"));
  CHECK_THAT(EventsFile("user,item\na,\"x\ty\"\n").error(), Catch::Contains("item: an id contains a tab"));
  CHECK_THAT(EventsFile("user,item\na,\"x\ny\"\n").error(),
             Catch::Contains("item: an id contains a tab or a line end"));
  const auto unknown = EventsFile("shopper,thing,amount\na,x,5\n").read();
  CHECK(error_of(unknown.status())->hint == "name the column with --user_column, or give its number");
  CHECK_THAT(EventsFile("user,item\na,x\nuser,item\nb,y\n").error(),
             Catch::Contains("events.csv:3: the names of line 1 again"));
}

TEST_CASE("A first line that cannot be data has the names of the columns; an unclear one is an error with the flag",
          "[apps][rec][tables]") {
  const std::string ids = "u0,i19\nu1,i8\nu0,i11\n", names = "ann,heat\nbob,alien\nann,alien\n";
  const auto pairs = [](const std::string& text, const TableColumns& options = {}) {
    return rows_of(must(EventsFile(text).read(options)));
  };
  const std::string expected = "u0 i19 1 0; u1 i8 1 0; u0 i11 1 0";
  CHECK(pairs("viewer,film\n" + ids) == expected);
  CHECK(pairs("viewer,movieId\n" + ids) == expected);
  CHECK(pairs("movieId,viewer\ni19,u0\ni8,u1\ni11,u0\n") == expected);
  CHECK(pairs("col1,col2\n1,10\n2,20\n1,30\n") == "1 10 1 0; 2 20 1 0; 1 30 1 0");
  CHECK(pairs("viewer,film\n" + names, {.header = "yes"}) == "ann heat 1 0; bob alien 1 0; ann alien 1 0");
  CHECK(must(EventsFile("viewer,film\n" + ids).read()).notes.at(0).find("users are 'viewer', items are 'film'") !=
        std::string::npos);
  CHECK(must(EventsFile("user_id,item_id\n" + ids).read()).notes.empty());
  // Data: an id that is in another line, or a number.
  CHECK(pairs(ids) == expected);
  CHECK(pairs(names) == "ann heat 1 0; bob alien 1 0; ann alien 1 0");
  CHECK(pairs("ann,x9,4\nb2,x1,5\nc3,x2,3\n", {.header = "no"}) == "ann x9 4 0; b2 x1 5 0; c3 x2 3 0");
  CHECK(pairs("7,8\n1,2\n3,4\n") == "7 8 1 0; 1 2 1 0; 3 4 1 0");
  // Unclear.
  for (const std::string& text :
       {"viewer,film\n" + names, std::string("ann,x9,4\nb2,x1,5\nc3,x2,3\n"), std::string("0,1,2\na,x,5\nb,y,3\n")}) {
    const auto refused = EventsFile(text).read();
    INFO(text);
    CHECK(error_of(refused.status())->problem == "is either the names of the columns or data");
    CHECK(error_of(refused.status())->hint == "--header yes for names, --header no for data");
  }
  // Three columns without usual names.
  CHECK_THAT(EventsFile("when,viewer,film\n5,u0,i19\n6,u1,i8\n").error(),
             Catch::Contains("no column with a usual name"));
}

TEST_CASE("Every form of a time keeps its order", "[apps][rec][tables]") {
  const auto order = [](const std::vector<std::string>& ascending) {
    for (size_t i = 0; i + 1 < ascending.size(); ++i) {
      INFO(ascending[i] << " before " << ascending[i + 1]);
      const auto ratings =
          must(EventsFile("user,item,time\na,x," + ascending[i] + "\nb,y," + ascending[i + 1] + "\n").read());
      CHECK(ratings.rows[0].time < ratings.rows[1].time);
    }
  };
  order({"-2.5", "-2", "-1.75", "-1.7", "0", "1e-3", "0.5", "1600000000", "1600000000.0000001", "1600000000.919",
         "1.600000001e9"});
  order({"1600000000000000000", "1600000000000000001", "1600000000000000001.5", "9223372036854775807"});
  order({"1600000000000.25", "1600000000000.5"});
  order({"1600000000000001", "1600000000000002"});
  order({"1969-12-31", "2024-05-01 12:30", "2024-05-01T12:30:00.000001", "2024-05-01T12:30:00.25", "2024-05-01T12:31"});
  order({"2024-05-01T12:30:00+02:00", "2024-05-01T11:30:00.5Z", "2024-05-01 10:30:01-0130", "2024-05-01 13:00:00 UTC"});
  const auto error = [](const std::string& a, const std::string& b) {
    return EventsFile("user,item,time\na,x," + a + "\nb,y," + b + "\n").error();
  };
  CHECK_THAT(error("1600000000000", "1600000000000000"), Catch::Contains("milliseconds and microseconds are mixed"));
  CHECK_THAT(error("2024-05-01", "1600000000"), Catch::Contains("seconds and dates are mixed (line 2 has 2024-05-01)"));
  CHECK_THAT(error("2024-05-01T10:00", "2024-05-01T10:00Z"), Catch::Contains("dates and dates with a time zone"));
  for (const char* bad : {"2024-02-30", "01/05/2024", "2024-05-01T25:00", "99999999999999999999", "1e400", "1.2.3", "",
                          "2024-05-01T10:00+2", "0.1234567890123456789"}) {
    INFO(bad);
    CHECK_THAT(error("1", bad), Catch::Contains("timestamp: not a time"));
  }
}

TEST_CASE("Ids are texts: numbers that are written differently are different ids", "[apps][rec][tables]") {
  const std::vector<std::string> ids = {"7",       "07",      "+7",        "7.0", "0",    "00",     "-1", "4194303",
                                        "4194304", "9999999", "123456789", "1e3", "1000", "x-1000", "7x"};
  std::string text = "user,item\n";
  for (int round = 0; round < 2; ++round) {
    for (const std::string& id : ids) text += id + ",item" + std::to_string(round) + "\n" + "0," + id + "\n";
  }
  const Ratings ratings = must(EventsFile(text).read());
  REQUIRE(ratings.users.size() == ids.size());
  for (size_t i = 0; i < ratings.rows.size(); i += 2) {
    CHECK(ratings.users[static_cast<size_t>(ratings.rows[i].user)].id == ids[i / 2 % ids.size()]);
    CHECK(ratings.items[static_cast<size_t>(ratings.rows[i + 1].item)].id == ids[i / 2 % ids.size()]);
  }
}

TEST_CASE("leave_one_out takes a user's latest event; of equal times, the later line", "[apps][rec][tables]") {
  const auto test_item = [](const std::string& rows) {
    const std::string other = "v,x,1\nv,y,2\nv,z,3\n";
    const Interactions data = filter_ratings(must(EventsFile("user,item,time\n" + rows + other).read())).value();
    const Split split = make_split(data, {.mode = "leave_one_out"}).value();
    const auto at = std::find(split.parts.begin(), split.parts.end(), Part::kTest) - split.parts.begin();
    return data.items[static_cast<size_t>(data.item[static_cast<size_t>(at)])].id;
  };
  CHECK(test_item("u,x,1600000000.9\nu,y,1600000000.25\nu,z,1600000000.5\n") == "x");
  CHECK(test_item("u,x,5\nu,y,5\nu,z,5\n") == "z");
  CHECK(test_item("u,x,1\nu,y,5\nu,z,5\nu,x,5\n") == "x");  // the last event of x is the last line
}

TEST_CASE("Repeated events are one interaction, and are counted or refused on request", "[apps][rec][tables]") {
  const EventsFile table("a,x,5,100\nb,y,3,200\na,x,2,400\na,x,4,300\na,y,1,50\n");
  const Ratings ratings = must(table.read());
  const Interactions merged = filter_ratings(ratings).value();
  CHECK(merged.size() == 3);
  CHECK(merged.count.empty());
  CHECK((merged.time == std::vector<EventTime>{400, 200, 50}));
  const Interactions counted = filter_ratings(ratings, {.count_repeats = true}).value();
  CHECK((counted.count == std::vector<int32_t>{3, 1, 1}));
  CHECK(counted.digest() != merged.digest());
  // EventsFile below the threshold do not count.
  CHECK((filter_ratings(ratings, {.min_rating = 3, .count_repeats = true})->count == std::vector<int32_t>{2, 1}));
  const auto refused = read_ratings(table.path, {.may_repeat = false});
  CHECK_THAT(error_line(refused.status()),
             Catch::Contains("events.csv:3: user a and item x: duplicate of line 1 (expected each pair once)"));

  // A pair is trained once per event, and is in one part only.
  std::string text;
  for (int user = 0; user < 4; ++user) {
    for (int item = 0; item < 8; ++item) {
      for (int event = 0; event <= item % 3; ++event)
        text += std::to_string(user) + "," + std::to_string(item + user) + "\n";
    }
  }
  const Interactions many = filter_ratings(must(EventsFile(text).read()), {.count_repeats = true}).value();
  const Split split = make_split(many, {}).value();
  int64_t events = 0;
  for (int64_t i = 0; i < many.size(); ++i) {
    events += split.parts[static_cast<size_t>(i)] == Part::kTrain ? many.events(i) : 0;
  }
  CHECK(events > split.count(Part::kTrain));
  CHECK(TripletDataset::create(many, split, Part::kTrain, Negatives::kUniform).value()->size() == events);
  CHECK(TripletDataset::create(many, split, Part::kTest, Negatives::kUniform).value()->size() ==
        split.count(Part::kTest));
}

TEST_CASE("A file for each part gives the split; a missing validation part comes from the training part",
          "[apps][rec][tables]") {
  const EventsFile train("a,x\na,y\na,z\nb,x\nb,y\nb,w\n", "train.csv"), test("a,w\nb,z\n", "test.csv"),
      validation("a,v\nb,v\n", "validation.csv");
  const auto split_of = [&](const RatingsOptions& options, Interactions& data) {
    data = filter_ratings(must(read_ratings(train.path, options))).value();
    return make_split(data, {.validation_share = 0.34}).value();
  };
  Interactions data;
  const Split three = split_of({.validation = validation.path, .test = test.path}, data);
  CHECK(
      (three.parts == std::vector<Part>{Part::kTrain, Part::kTrain, Part::kTrain, Part::kTrain, Part::kTrain,
                                        Part::kTrain, Part::kValidation, Part::kValidation, Part::kTest, Part::kTest}));
  CHECK(three.protocol == "training, validation and test files");
  const Split two = split_of({.test = test.path}, data);
  CHECK(two.count(Part::kTest) == 2);
  CHECK(two.count(Part::kValidation) == 2);  // one of three of each user
  CHECK(two.protocol == "training and test files, 34% of each user's training part for validation");
  const EventsFile leaking("a,x\n", "test.csv");
  const auto both = filter_ratings(must(read_ratings(train.path, {.test = leaking.path})));
  CHECK_THAT(error_line(both.status()), Catch::Contains("user a and item x are in two of the files"));
  const RecPlace place;
  const auto wrong = read_ratings(place.dir / "ml-1m", {.test = test.path});
  CHECK(exit_code(wrong.status()) == ExitCode::kUsage);
  CHECK_THAT(error_line(wrong.status()), Catch::Contains("--test_data: the files in --data_dir are not a table"));
}

TEST_CASE("Positives are ranked against the negatives of a file", "[apps][rec][tables]") {
  const EventsFile data("a,x\na,y\nb,x\nb,z\na,p\nb,q\nc,x\nc,v\nc,w\n");
  const Interactions interactions = filter_ratings(must(data.read())).value();
  Split split{"made up", std::vector<Part>(9, Part::kTrain)};
  split.parts[4] = split.parts[5] = Part::kTest;  // p of a, q of b
  const auto score = [&](const std::string& text) {
    const EventsFile file(text, "test.negative");
    return Ranking::create(interactions, split, {.ks = {1, 2}, .negatives_file = file.path});
  };
  // Items in the order of their first line: x y z p q v w. A user's score of item i is i.
  const at::Tensor users = at::ones({3, 1}), items = at::arange(7, at::kFloat).unsqueeze(1);
  const auto hits = score("a\tx\ty\nb\tv\tz\nb\tw\n")->score(users, items);
  CHECK(hits.at("hit@1") == 0.5);  // p is above x and y; q is below v and w
  CHECK(hits.at("hit@2") == 0.5);
  CHECK(score("(a,p)\tx\n(b,q)\tv,z\n").ok() == false);  // "v,z" is no item
  CHECK(score("(a,p)\tx\n(b,q)\tv\tz\n")->score(users, items).at("hit@2") == 1);
  CHECK(score("a,x,y\nb,z")->score(users, items).at("hit@1") == 1);
  CHECK(score("a\tx\nb\tz\n")->protocol() == "made up, against the negatives of test.negative");
  CHECK_THAT(error_line(score("a\tx\n").status()), Catch::Contains("test.negative: no line of user b"));
  CHECK_THAT(error_line(score("a\tx\nd\tz\n").status()), Catch::Contains("test.negative:2: user: unknown (got 'd'"));
  CHECK_THAT(error_line(score("a\tx\nb\tk\n").status()), Catch::Contains("test.negative:2: item: unknown (got 'k'"));
  CHECK_THAT(error_line(score("a\n").status()), Catch::Contains("test.negative:1: no item"));
}

TEST_CASE("trainkit-gpt2rec trains on a file for each part, and ranks against a file of negatives",
          "[apps][rec][tables]") {
  const RecPlace place;
  const auto items = write_parts(place);
  std::ofstream negatives(place.dir / "test.negative");
  for (size_t user = 0; user < items.size(); ++user) {
    negatives << "(" << user + 1 << "," << items[user].back() << ")";
    for (size_t other = 1; other < 4; ++other) negatives << "\t" << items[(user + other) % items.size()].front();
    negatives << "\n";
  }
  negatives.close();
  const std::vector<std::string> parts = {"--data_dir", place.dir / "train.tsv", "--test_data", place.dir / "test.tsv"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), parts.begin(), parts.end());
    return more;
  };
  const Ended ended =
      run_tables(place, place.flags("run", with({"--validation_data", place.dir / "validation.tsv", "--test_negatives",
                                                 place.dir / "test.negative", "--metric", "hit@3"})));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("(table): ") && Catch::Contains("60 validation, 60 test") &&
                               Catch::Contains("against the negatives of test.negative") &&
                               Catch::Contains("(best hit@3 ") && Catch::Contains("test       hit@3 ") &&
                               Catch::Contains("\nscore ") && Catch::Contains("\nhit@3 "));
  const auto summary = nlohmann::json::parse(read_text(place.dir / "run" + "/summary.json"));
  CHECK(summary.at("best").contains("val_hit@3"));
  CHECK(summary.at("hit@10") == 1);  // four candidates at most

  // The run continues and is used without its tables' flags.
  const Ended resumed = run_tables(place, {"--output_dir", place.dir / "run", "--resume", "latest", "--epochs", "5"});
  INFO(resumed.errors);
  CHECK(resumed.code == 0);
  CHECK(run_tables(place, {"recommend", place.dir / "run", "--user", "1", "--device", "cpu"}).code == 0);
  const Ended share = run_tables(place, place.flags("share", with({"--validation_share", "0.2"})));
  INFO(share.errors);
  REQUIRE(share.code == 0);
  CHECK_THAT(share.output, Catch::Contains("20% of each user's training part for validation"));
}

TEST_CASE("Bad flags of tables, parts and metrics have one line and write nothing", "[apps][rec][tables]") {
  const RecPlace place;
  write_parts(place);
  const std::string train = place.dir / "train.tsv", test = place.dir / "test.tsv";
  std::ofstream(place.dir / "empty.csv") << "";
  std::ofstream(place.dir / "one.negative") << "1\t1\n";
  struct Case {
    int code;
    const char* text;
    std::vector<std::string> flags;
  };
  const std::vector<Case> cases = {
      {2, "--user_column: a table needs this column", {"--data_dir", train, "--user_column", "none"}},
      {2, "--item_column: a table needs this column", {"--data_dir", train, "--item_column", "none"}},
      {2, "--user_column: the files in --data_dir are not a table", {"--user_column", "1"}},
      {2, "--rating_column", {"--rating_column", "3"}},
      {4, "rating: no column 7", {"--data_dir", train, "--rating_column", "7"}},
      {4, "time: no column 0", {"--data_dir", train, "--time_column", "0"}},
      {2, "--header", {"--data_dir", train, "--header", "maybe"}},
      {2, "--csv_delimiter: not a separator", {"--data_dir", train, "--csv_delimiter", "::"}},
      {2, "--repeated_events", {"--data_dir", train, "--repeated_events", "sum"}},
      {2, "--validation_data: given without a test part", {"--data_dir", train, "--validation_data", test}},
      {2, "--split: conflicts with --test_data", {"--data_dir", train, "--test_data", test, "--split", "ratio"}},
      {2, "--validation_share", {"--validation_share", "0"}},
      {2, "--validation_share", {"--validation_share", "0.9"}},
      {2, "--validation_share", {"--validation_share", "0.2", "--split", "leave_one_out"}},
      {4, "are in two of the files", {"--data_dir", train, "--test_data", train}},
      {4, "absent.tsv", {"--data_dir", train, "--test_data", place.dir / "absent.tsv"}},
      {4, "empty.csv", {"--data_dir", place.dir / "empty.csv"}},
      {4, "absent.negative", {"--test_negatives", place.dir / "absent.negative"}},
      {4, "no line of user", {"--validation_negatives", place.dir / "one.negative"}},
      {2, "--metric: not a score", {"--metric", "auc@10"}},
      {2, "--metric: not a score", {"--metric", "ndcg@0"}},
      {2, "--metric: not a score", {"--metric", "ndcg"}},
  };
  for (const Case& bad : cases) {
    const Ended ended = run_tables(place, place.flags("none", bad.flags));
    INFO(bad.text << "\n" << ended.errors);
    CHECK(ended.code == bad.code);
    CHECK(ended.errors.starts_with("trainkit: error["));
    CHECK(ended.errors.find(bad.text) != std::string::npos);
    CHECK(std::count(ended.errors.begin(), ended.errors.end(), '\n') <= 2);
    CHECK_FALSE(std::filesystem::exists(place.dir / "none" + "/config.yaml"));
  }
}
