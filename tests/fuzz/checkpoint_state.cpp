// A checkpoint's state.json; a state that is read gives the same when written and read again.
#include "train/checkpoint/checkpoint_state.h"

#include <ATen/Functions.h>

#include <limits>

#include "target.h"

namespace trainkit::fuzz::checkpoint_state {

std::vector<std::string> seeds() {
  const StateDict state = {{"step", int64_t{40}},
                           {"scaler.scale", 65536.0},
                           {"best", std::numeric_limits<double>::quiet_NaN()},
                           {"done", false},
                           {"name", std::string("a \"b\"\xff")},
                           {"order", std::vector<int64_t>{1, -2}},
                           {"lr", std::vector<double>{0.1, std::numeric_limits<double>::infinity()}},
                           {"generator", at::arange(3)}};
  return {detail::state_to_json(state).value(), detail::state_to_json({}).value()};
}

int test_one_input(const uint8_t* data, size_t size) {
  const auto state = detail::state_from_json(as_text(data, size), "state.json");
  if (!state.ok()) return require_named(state.status(), {"ckpt."}), 0;
  const auto text = detail::state_to_json(*state);
  require(text.ok(), "a value that was read can be written: " + text.status().ToString());
  const auto again = detail::state_from_json(*text, "again.json");
  require(again.ok(), "and read again: " + again.status().ToString());
  require(detail::state_to_json(*again).value() == *text, "and is the same");
  return 0;
}

const Registered target("checkpoint_state", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::checkpoint_state
