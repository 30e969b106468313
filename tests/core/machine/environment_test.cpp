#include <sys/resource.h>

#include "test_util.h"
#include "trainkit/core/processors.h"

using namespace trainkit;

namespace {

std::string fault(const EnvironmentVariables& variables) {
  const absl::Status status = check_environment(variables);
  CHECK(exit_code(status) == ExitCode::kUsage);
  return error_text(status);
}

}  // namespace

TEST_CASE("The environment is read unchanged, including values with '=' and empty values") {
  setenv("TRAINKIT_TEST_VALUE", "a=b", 1);
  setenv("TRAINKIT_TEST_EMPTY", "", 1);
  const EnvironmentVariables variables = environment_variables();
  CHECK(variables.at("TRAINKIT_TEST_VALUE") == "a=b");
  CHECK(variables.at("TRAINKIT_TEST_EMPTY").empty());
  unsetenv("TRAINKIT_TEST_VALUE");
  unsetenv("TRAINKIT_TEST_EMPTY");
  CHECK_FALSE(environment_variables().contains("TRAINKIT_TEST_VALUE"));
}

TEST_CASE("The environment of this test has no problem") { CHECK(check_environment().ok()); }

TEST_CASE("OMP_NUM_THREADS accepts one number of threads, or one per nesting level") {
  for (const char* good : {"1", "64", "4,2", "4096"}) CHECK(check_environment({{"OMP_NUM_THREADS", good}}).ok());
  for (const char* bad : {"0", "abc", "1000000", "", "-1", "2 ", "4,", ",4", "1.5"}) {
    CHECK_THAT(fault({{"OMP_NUM_THREADS", bad}}),
               Catch::Contains("error[env.value] OMP_NUM_THREADS: is not a number of threads"));
  }
}

TEST_CASE("TMPDIR must be an existing folder") {
  test::TempDir dir;
  CHECK(check_environment({{"TMPDIR", dir.path().string()}}).ok());
  CHECK(check_environment({{"TMPDIR", ""}}).ok());
  CHECK_THAT(fault({{"TMPDIR", dir / "missing"}}), Catch::Contains("TMPDIR: folder does not exist"));
}

TEST_CASE("An unknown TRAINKIT_ variable is reported as misspelt") {
  CHECK_THAT(fault({{"TRAINKIT_PYTON", "python3"}}), Catch::Contains("did you mean TRAINKIT_PYTHON?"));
  CHECK_THAT(fault({{"TRAINKIT_BATCH_SIZE", "4"}}), Catch::Contains("settings are flags"));
  CHECK(check_environment({{"TRAINKIT_PYTHON", "x"},
                           {"TRAINKIT_TORCH", "x"},
                           {"TRAINKIT_TEST_X", ""},
                           {"TRAINKI", ""},
                           {"TRAINKITS", ""}})
            .ok());
}

TEST_CASE("Any locale, time zone and home folder are accepted") {
  CHECK(check_environment({{"LC_ALL", "de_DE"}, {"TZ", "nowhere"}}).ok());
}

TEST_CASE("A low limit of open files is reported before an open fails") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{32, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const std::string text = fault({});
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK_THAT(text,
             Catch::Contains("error[env.limit] open files: the limit is too low (got '32', expected 64 or more)"));
}
