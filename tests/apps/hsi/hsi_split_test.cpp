#include <filesystem>

#include "arrays/mat_bytes.h"
#include "hsi_classification/split.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::hsi;

namespace {

/// Bands of classes 1..4 with unlabelled rows between them, and one pixel of class 5.
Scene banded_scene(int64_t height = 60, int64_t width = 40) {
  at::Tensor truth = torch::zeros({height, width}, torch::kLong);
  for (int64_t row = 0; row < height; ++row) {
    if (row % 5 != 4) truth.select(0, row).fill_(row * 4 / height + 1);
  }
  truth[4][7] = 5;
  return make_scene("bands", torch::zeros({height, width, 2}), truth).value();
}

int64_t count(const Scene& scene, const at::Tensor& pixels, int64_t label) {
  return scene.labels.flatten().index_select(0, pixels).eq(label).sum().item<int64_t>();
}

bool same(const Split& a, const Split& b) {
  return at::equal(a.train, b.train) && at::equal(a.validation, b.validation) && at::equal(a.test, b.test);
}

void check_whole(const Scene& scene, const Split& split) {
  const at::Tensor all = std::get<0>(torch::cat({split.train, split.validation, split.test}).sort());
  CHECK(at::equal(all, scene.labels.flatten().nonzero().flatten()));  // every labelled pixel once
  for (const at::Tensor& part : {split.train, split.validation, split.test}) {
    CHECK(part.scalar_type() == torch::kLong);
    CHECK(at::equal(std::get<0>(part.sort()), part));
  }
}

double slow_leak(const Split& split, int64_t width, int64_t patch) {
  int64_t seen = 0;
  for (int64_t i = 0; i < split.test.numel(); ++i) {
    const int64_t t = split.test[i].item<int64_t>();
    const at::Tensor rows = (split.train.floor_divide(width) - t / width).abs();
    const at::Tensor columns = (split.train.remainder(width) - t % width).abs();
    seen += rows.le(patch / 2).logical_and(columns.le(patch / 2)).any().item<bool>();
  }
  return static_cast<double>(seen) / static_cast<double>(split.test.numel());
}

}  // namespace

TEST_CASE("A random split takes its share of every class and leaves test pixels in every class", "[hsi][split]") {
  const Scene scene = banded_scene();
  for (const double ratio : {0.001, 0.1, 0.5, 0.999}) {
    const Split split = make_split(scene, {.train_ratio = ratio, .validation_share = 0.2}).value();
    CAPTURE(ratio);
    check_whole(scene, split);
    for (int64_t c = 1; c <= 4; ++c) {
      const int64_t n = count(scene, torch::arange(2400), c);
      const int64_t trained = count(scene, split.train, c) + count(scene, split.validation, c);
      CHECK(trained == std::clamp<int64_t>(std::llround(ratio * static_cast<double>(n)), 1, n - 1));
      CHECK(count(scene, split.validation, c) == trained / 5);
      CHECK(count(scene, split.train, c) >= 1);
    }
    CHECK(count(scene, split.train, 5) == 1);  // a class with one pixel is used for training
  }
  const Split counted = make_split(scene, {.train_count = 7, .validation_share = 0}).value();
  for (int64_t c = 1; c <= 4; ++c) CHECK(count(scene, counted.train, c) == 7);
  CHECK(counted.validation.numel() == 0);
  check_whole(scene, make_split(scene, {.train_count = 100'000}).value());
}

TEST_CASE("A split depends on the seed only, and the test pixels do not depend on validation", "[hsi][split]") {
  const Scene scene = banded_scene();
  for (const char* mode : {"random", "disjoint"}) {
    const Split one = make_split(scene, {.mode = mode, .block_size = 8, .seed = 3}).value();
    CHECK(same(one, make_split(scene, {.mode = mode, .block_size = 8, .seed = 3}).value()));
    CHECK_FALSE(same(one, make_split(scene, {.mode = mode, .block_size = 8, .seed = 4}).value()));
    const Split without = make_split(scene, {.mode = mode, .validation_share = 0, .block_size = 8, .seed = 3}).value();
    CHECK(at::equal(without.test, one.test));
    CHECK(at::equal(without.train, std::get<0>(torch::cat({one.train, one.validation}).sort())));
  }
  // Each pixel is selected for training equally often: 400 seeds, 10 %.
  at::Tensor drawn = torch::zeros({2400});
  for (uint64_t seed = 0; seed < 400; ++seed) {
    drawn.index_add_(0, make_split(scene, {.validation_share = 0, .seed = seed})->train,
                     torch::ones({1}).expand({193}));
  }
  const at::Tensor labelled = drawn.index({scene.labels.flatten().gt(0).logical_and(scene.labels.flatten().lt(5))});
  CHECK(labelled.max().item<float>() < 75);  // expected: 40, standard deviation 6
  CHECK(labelled.min().item<float>() > 12);
}

TEST_CASE("No block of a disjoint split is used for both training and scoring", "[hsi][split]") {
  at::Tensor truth = torch::zeros({64, 64}, torch::kLong);
  for (int64_t row = 0; row < 64; ++row) {
    for (int64_t column = 0; column < 64; ++column) truth[row][column] = 1 + (row / 10 + column / 13) % 4;
  }
  const Scene scene = make_scene("fields", torch::zeros({64, 64, 1}), truth).value();
  for (const int64_t block : {1, 5, 8}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      CAPTURE(block, seed);
      const Split split =
          make_split(scene, {.mode = "disjoint", .train_ratio = 0.2, .block_size = block, .seed = seed}).value();
      check_whole(scene, split);
      const auto blocks = [&](const at::Tensor& pixels) {
        return std::get<0>(
            at::_unique(pixels.floor_divide(64).floor_divide(block) * 100 + pixels.remainder(64).floor_divide(block)));
      };
      const at::Tensor trained = blocks(torch::cat({split.train, split.validation}));
      CHECK_FALSE(at::isin(trained, blocks(split.test)).any().item<bool>());
      for (int64_t c = 1; c <= 4; ++c) {
        const int64_t n = count(scene, torch::arange(64 * 64), c);
        const int64_t of_class = count(scene, split.train, c) + count(scene, split.validation, c);
        CHECK(of_class >= n / 5 - 1);
        CHECK(of_class < n / 2);
        CHECK(count(scene, split.test, c) > 0);
      }
      const Split random = make_split(scene, {.train_ratio = 0.2, .seed = seed}).value();
      if (block == 8) CHECK(leak(split, 64, 64, 5) < 0.7 * leak(random, 64, 64, 5));
    }
  }
}

TEST_CASE("A class within one block is divided at a row", "[hsi][split]") {
  const Scene scene = banded_scene(20, 20);
  const Split split = make_split(scene, {.mode = "disjoint", .train_ratio = 0.25, .block_size = 64}).value();
  check_whole(scene, split);
  for (int64_t c = 1; c <= 4; ++c) {
    const at::Tensor of = scene.labels.flatten();
    const at::Tensor train = torch::cat({split.train, split.validation});
    const at::Tensor trained = train.index({of.index_select(0, train).eq(c)});
    const at::Tensor tested = split.test.index({of.index_select(0, split.test).eq(c)});
    CHECK(trained.numel() == 20);
    CHECK(trained.max().item<int64_t>() < tested.min().item<int64_t>());
  }
}

TEST_CASE("The leak is the share of test pixels inside a training patch", "[hsi][split]") {
  const Split one{torch::tensor({2 * 7 + 3}), torch::empty({0}, torch::kLong),
                  torch::tensor({0, 7 + 2, 2 * 7 + 4, 4 * 7 + 3})};
  CHECK(leak(one, 5, 7, 1) == 0);
  CHECK(leak(one, 5, 7, 3) == 0.5);
  CHECK(leak(one, 5, 7, 5) == 0.75);
  CHECK(leak(one, 5, 7, 7) == 1);
  CHECK(leak({one.train, one.validation, one.validation}, 5, 7, 3) == 0);
  CHECK_THROWS_AS(leak(one, 5, 7, 4), c10::ValueError);
  const Scene scene = banded_scene(30, 20);
  for (const int64_t patch : {3, 5, 9, 41}) {
    for (const char* mode : {"random", "disjoint"}) {
      const Split split = make_split(scene, {.mode = mode, .train_ratio = 0.05, .block_size = 8}).value();
      CHECK(leak(split, 30, 20, patch) == slow_leak(split, 20, patch));
    }
  }
}

TEST_CASE("A saved split is restored, and one that does not match is refused", "[hsi][split]") {
  const test::TempDir folder;
  const Scene scene = banded_scene();
  const std::string path = folder / "split.json";
  const Split split = make_split(scene, {.seed = 9}).value();
  REQUIRE(save_split(path, split, 60, 40) == absl::OkStatus());
  CHECK(same(load_split(path, 60, 40).value(), split));
  CHECK(same(make_split(scene, {.mode = path}).value(), split));

  const std::string good =
      R"({"format": "trainkit-split", "version": 1, "height": 60, "width": 40, "train": [0, 5], "validation": [], "test": [9]})";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"", "is not valid JSON"},
      {"[]", "format: is missing (expected a split of trainkit-hsi)"},
      {good.substr(0, good.size() - 1), "is not valid JSON"},
      {with("\"width\"", "\"height\""), "height: is a duplicate key"},
      {with("trainkit-split", "other"), "format: not a split (got 'other', expected trainkit-split)"},
      {with("\"version\": 1", "\"version\": 2"), "not a split of version 1"},
      {with("60", "61"), "height: split of a scene of a different size (got '61', expected 60)"},
      {with("\"width\": 40, ", ""), "width: is missing"},
      {with("[0, 5]", "3"), "train: has another type (got '3', expected a list)"},
      {with("\"test\": [9]", "\"text\": [9]"), "test: is missing"},
      {with("[0, 5]", "[0, 2400]"), "train[1]: not a pixel of the scene (got '2400', expected 0 to 2399)"},
      {with("[0, 5]", "[0, -1]"), "train[1]: not a pixel of the scene"},
      {with("[0, 5]", "[0, 1.5]"), "train[1]: has another type (got '1.5', expected a 64-bit integer)"},
      {with("[0, 5]", "[0, 18446744073709551615]"), "train[1]: has another type"},
      {with("[0, 5]", "[0, 0]"), "train: duplicate pixel"},
      {with("[9]", "[5]"), "test: duplicate pixel (got '5'"},
      {with("[0, 5]", "[]"), "train: has too few entries (got '0', expected 1 or more)"},
      {with("[9]", "[]"), "test: has too few entries"},
      {with("[9]", "[160]"), "a pixel is not labelled (got '160: row 4, column 0'"},
  };
  test::write_bytes(path, good);
  CHECK(make_split(scene, {.mode = path}).ok());
  for (const auto& [text, problem] : faults) {
    test::write_bytes(path, text);
    const absl::Status status = make_split(scene, {.mode = path}).status();
    INFO(problem << " / " << error_line(status));
    CHECK(error_of(status).value_or(Error{}).id == "data.split");
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_line(status).find(problem) != std::string::npos);
    CHECK(error_line(status).find(path) != std::string::npos);
  }
  CHECK(exit_code(load_split(folder / "none", 60, 40).status()) == ExitCode::kData);
}

TEST_CASE("Split options out of range are usage errors", "[hsi][split]") {
  const Scene scene = banded_scene();
  const std::vector<std::pair<SplitOptions, std::string>> faults = {
      {{.train_ratio = 0}, "--train_ratio"},
      {{.train_ratio = 1}, "--train_ratio"},
      {{.train_ratio = NAN}, "--train_ratio"},
      {{.train_count = -1}, "--train_count"},
      {{.validation_share = 1}, "--validation_share"},
      {{.validation_share = -0.1}, "--validation_share"},
      {{.mode = "disjoint", .block_size = 0}, "--block_size"}};
  for (const auto& [options, flag] : faults) {
    const absl::Status status = make_split(scene, options).status();
    INFO(error_line(status));
    CHECK(exit_code(status) == ExitCode::kUsage);
    CHECK(error_line(status).find(flag) != std::string::npos);
  }
}
