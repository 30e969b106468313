#include "trainkit/core/format.h"

#include <algorithm>
#include <clocale>
#include <limits>

#include "test_util.h"

using namespace trainkit;

TEST_CASE("Numbers are printed with five digits", "[logging][format]") {
  CHECK(format_number(2.10341) == "2.1034");
  CHECK(format_number(0.8731) == "0.87310");
  CHECK(format_number(-1234.56) == "-1234.6");
  CHECK(format_number(0) == "0");
  CHECK(format_number(1.2e-5) == "1.20e-05");
  CHECK(format_number(99999.6) == "1.00e+05");
  CHECK(format_number(std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(format_number(-std::numeric_limits<double>::infinity()) == "-inf");
}

TEST_CASE("Counts, bytes and durations change their unit at the right value", "[logging][format]") {
  CHECK(format_count(0) == "0");
  CHECK(format_count(2.5) == "2.5");
  CHECK(format_count(812.4) == "812");
  CHECK(format_count(999.6) == "1.00k");
  CHECK(format_count(12345) == "12.3k");
  CHECK(format_count(99960) == "100k");
  CHECK(format_count(4.56e6) == "4.56M");
  CHECK(format_size(512) == "512 B");
  CHECK(format_size(1536) == "1.50 KiB");
  CHECK(format_size(232 * 1024) == "232 KiB");
  CHECK(format_size(int64_t{24} << 30) == "24.0 GiB");
  CHECK(format_duration(7.4) == "0:07");
  CHECK(format_duration(59.6) == "1:00");
  CHECK(format_duration(754) == "12:34");
  CHECK(format_duration(3723) == "1:02:03");
  CHECK(format_duration(2 * 86400 + 3 * 3600 + 245) == "2d 03:04:05");
  CHECK(format_duration(-1) == "?");
  CHECK(format_duration(std::numeric_limits<double>::quiet_NaN()) == "?");
}

TEST_CASE("A size is parsed with units of 1024 and of 1000, and other text is refused", "[logging][format]") {
  CHECK(parse_size("512") == 512);
  CHECK(parse_size("512B") == 512);
  CHECK(parse_size("24GiB") == int64_t{24} << 30);
  CHECK(parse_size("24 GB") == 24'000'000'000);
  CHECK(parse_size("1.5g") == int64_t{3} << 29);
  CHECK(parse_size("80G") == int64_t{80} << 30);
  CHECK(parse_size("100kb") == 100'000);
  CHECK(parse_size("2TiB") == int64_t{2} << 40);
  for (const char* text : {"", "GiB", "-1", "24 apples", "24Gi", "24  GB", "nan", "inf", "1e3", "1e400GB", "99999999TB",
                           "0x10", "24GiB ", " 24"}) {
    INFO(text);
    CHECK(!parse_size(text));
  }
}

TEST_CASE("Text keeps its lines, without control bytes and secrets", "[logging][format]") {
  CHECK(format_text("to be,\n\tor not") == "to be,\n\tor not");
  CHECK(format_text("a\x1b[31mred\n") == "a\\x1b[31mred\n");
  CHECK(format_text("WANDB_API_KEY=abc123 next") == "WANDB_API_KEY=*** next");
  CHECK(format_text("{\"api_key\": \"abc123\"}") == "{\"api_key\": \"***\"}");
  CHECK(format_text("password: abc123, user: me") == "password: ***, user: me");
  CHECK(format_text("https://me:abc123@host/x") == "https://***@host/x");
  CHECK(format_text("unknown token: 'x', duplicate key: 'y'") == "unknown token: 'x', duplicate key: 'y'");
  CHECK(format_text("tokens_per_second=12") == "tokens_per_second=12");
}

TEST_CASE("Names are ordered by the value of the numbers in them", "[core][format]") {
  std::vector<std::string> names = {"ndcg@20", "recall@5", "ndcg@10", "ndcg@5", "ndcg", "a10b2", "a10b1", "a9"};
  std::sort(names.begin(), names.end(), natural_less);
  CHECK(names == std::vector<std::string>{"a9", "a10b1", "a10b2", "ndcg", "ndcg@5", "ndcg@10", "ndcg@20", "recall@5"});
  CHECK_FALSE(natural_less("x007", "x7"));
  CHECK_FALSE(natural_less("x7", "x007"));
  CHECK(natural_less("x99999999999999999998", "x99999999999999999999"));  // more than 64 bits
}
