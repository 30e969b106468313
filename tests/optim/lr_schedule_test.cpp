#include "test_util.h"
#include "trainkit/optim/lr_scheduler.h"

namespace trainkit {
namespace {

using Catch::Contains;

TEST_CASE("Schedules keep their last factor after their end") {
  const auto linear = linear_lr(10, 1, 0.25);
  const auto cosine = cosine_annealing_lr(10, 0.25);
  const auto one_cycle = one_cycle_lr({.total_steps = 10, .div_factor = 2, .final_div_factor = 2});
  for (const int64_t step : {10, 11, 1000, 1000000000}) {
    CHECK(linear->factor(step) == 0.25);
    CHECK(cosine->factor(step) == 0.25);
    CHECK(one_cycle->factor(step) == 0.25);
  }
}

TEST_CASE("Warm-up rises linearly to 1 and begins above 0") {
  const auto schedule = create_schedule({.name = "constant", .warmup_steps = 4}).value();
  for (int64_t step = 0; step < 4; ++step) CHECK(schedule->factor(step) == Approx((1.0 + step) / 5));
  CHECK(schedule->factor(4) == 1);
  const auto from_zero = warmup_lr(4, constant_lr(), 0.0);
  CHECK(from_zero->factor(0) == 0);
  CHECK(from_zero->factor(1) == 0.25);
}

TEST_CASE("create_schedule: total_steps counts the warm-up, for every name") {
  for (const std::string& name : schedule_names()) {
    CAPTURE(name);
    const auto schedule = create_schedule({.name = name,
                                           .total_steps = 100,
                                           .warmup_steps = 20,
                                           .min_factor = 0.1,
                                           .period_steps = 40,
                                           .milestones = {10, 50}})
                              .value();
    CHECK(schedule->factor(0) == Approx(1.0 / 21));
    const auto main =
        create_schedule(
            {.name = name, .total_steps = 80, .min_factor = 0.1, .period_steps = 40, .milestones = {10, 50}})
            .value();
    for (int64_t step = 20; step <= 100; ++step) CHECK(schedule->factor(step) == main->factor(step - 20));
  }
  CHECK(create_schedule({.name = "cosine", .total_steps = 100, .warmup_steps = 20, .min_factor = 0.1})
            .value()
            ->factor(100) == Approx(0.1));
}

TEST_CASE("create_schedule refuses an unknown name and suggests the nearest, and reports every option out of range") {
  const auto unknown = create_schedule({.name = "cosin", .total_steps = 10}).status();
  CHECK(exit_code(unknown) == ExitCode::kConfig);
  CHECK_THAT(error_text(unknown), Contains("unknown schedule") && Contains("did you mean 'cosine'"));
  for (const ScheduleOptions& options :
       std::vector<ScheduleOptions>{{.name = "cosine"},
                                    {.name = "linear", .total_steps = 10, .warmup_steps = 10},
                                    {.name = "one_cycle", .total_steps = 11, .warmup_steps = 10},
                                    {.name = "constant", .warmup_steps = -1},
                                    {.name = "cosine", .total_steps = 10, .min_factor = -0.1},
                                    {.name = "cosine_restarts", .total_steps = 10, .period_growth = 0},
                                    {.name = "step"},
                                    {.name = "exponential"},
                                    {.name = "exponential", .total_steps = 9, .gamma = 0},
                                    {.name = "polynomial", .total_steps = 9, .power = -1},
                                    {.name = "multi_step"},
                                    {.name = "multi_step", .milestones = {5, 3}},
                                    {.name = "step", .warmup_steps = 5},
                                    {.name = "step", .period_steps = -3},
                                    {.name = "step", .total_steps = 9, .gamma = std::nan("")}}) {
    const auto status = create_schedule(options).status();
    CAPTURE(options.name, status.message());
    CHECK(exit_code(status) == ExitCode::kConfig);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("create_schedule: step needs the length of its period or of the run") {
  CHECK_THAT(error_text(create_schedule({.name = "step"}).status()), Contains("period_steps"));
  const auto by_period = create_schedule({.name = "step", .period_steps = 5}).value();
  CHECK(by_period->factor(4) == 1.0);
  CHECK(by_period->factor(5) == Approx(0.1));
  const auto by_length = create_schedule({.name = "step", .total_steps = 30}).value();
  CHECK(by_length->factor(9) == 1.0);
  CHECK(by_length->factor(10) == Approx(0.1));
}

TEST_CASE("one_cycle_lr with a rise of one step starts at the top") {
  for (const bool three_phase : {false, true}) {
    const auto schedule = one_cycle_lr({.total_steps = 10, .pct_start = 0.1, .three_phase = three_phase});
    CHECK(schedule->factor(0) == 1.0);
    for (int64_t step = 1; step < 12; ++step) CHECK(schedule->factor(step) < 1.0);
  }
}

TEST_CASE("Schedules name every argument out of range at once") {
  CHECK_THROWS_WITH(linear_lr(0, -1, -1),
                    Contains("start_factor") && Contains("end_factor") && Contains("total_steps"));
  CHECK_THROWS_WITH(cosine_annealing_lr(0, -1), Contains("total_steps") && Contains("min_factor"));
  CHECK_THROWS_WITH(cosine_annealing_warm_restarts(0, 0), Contains("t_0") && Contains("t_mult"));
  CHECK_THROWS_WITH(step_lr(0, -1), Contains("step_size") && Contains("gamma"));
  CHECK_THROWS_WITH(
      one_cycle_lr({.total_steps = 1, .pct_start = 1, .div_factor = 0.5, .final_div_factor = 0}),
      Contains("total_steps") && Contains("pct_start") && Contains("div_factor") && Contains("final_div_factor"));
  CHECK_THROWS_WITH(one_cycle_lr({.total_steps = 10, .pct_start = 0.5, .three_phase = true}), Contains("pct_start"));
  CHECK_THROWS_AS(warmup_lr(3, nullptr), c10::ValueError);
  CHECK_THROWS_AS(warmup_lr(-3, constant_lr()), c10::ValueError);
}

}  // namespace
}  // namespace trainkit
