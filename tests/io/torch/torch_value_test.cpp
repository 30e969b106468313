#include <filesystem>
#include <limits>
#include <map>

#include "test_util.h"
#include "trainkit/io/weight_file.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Values of every kind are read back from a PyTorch file", "[io][torch_value]") {
  TempDir dir;
  const at::Tensor tied = torch::arange(6.).view({2, 3});
  TorchValue checkpoint = TorchValue::dict();
  checkpoint.set("epoch", 3);
  checkpoint.set("large", int64_t{1} << 40);
  checkpoint.set("negative", -7);
  checkpoint.set("lr", 1e-3);
  checkpoint.set("best", -std::numeric_limits<double>::infinity());
  checkpoint.set("name",
                 "gr\xc3\xb6\xc3\x9f"
                 "er");
  checkpoint.set("none", TorchValue());
  checkpoint.set("flags", TorchValue::list({true, false}));
  checkpoint.set("betas", TorchValue::tuple({0.5, 0.25}));
  checkpoint.set("nothing", TorchValue::list());
  TorchValue& model = checkpoint.set("model", TorchValue::dict());
  model.set("a.weight", tied);
  model.set("b.weight", tied);
  REQUIRE(save_torch_value(Fs::posix(), dir / "v.pt", checkpoint) == absl::OkStatus());

  const auto file = TorchFile::open(dir / "v.pt");
  REQUIRE(file.status() == absl::OkStatus());
  const std::map<std::string, std::string> values(file->values().begin(), file->values().end());
  const std::map<std::string, std::string> expected = {{"epoch", "3"},
                                                       {"large", "1099511627776"},
                                                       {"negative", "-7"},
                                                       {"lr", "0.001"},
                                                       {"best", "-inf"},
                                                       {"name",
                                                        "gr\xc3\xb6\xc3\x9f"
                                                        "er"},
                                                       {"none", "None"},
                                                       {"flags.0", "True"},
                                                       {"flags.1", "False"},
                                                       {"betas.0", "0.5"},
                                                       {"betas.1", "0.25"}};
  CHECK(values == expected);
  const auto tensors = file->tensors(file->state_dict_prefix().value());
  REQUIRE(tensors.ok());
  REQUIRE(tensors->size() == 2);
  CHECK((*tensors)[0].first == "a.weight");
  CHECK(torch::equal((*tensors)[0].second, tied));
  CHECK((*tensors)[0].second.is_alias_of((*tensors)[1].second));
}

TEST_CASE("A value that a PyTorch file cannot store is reported with its keys", "[io][torch_value]") {
  TempDir dir;
  TorchValue twice = TorchValue::dict();
  twice.set("a", TorchValue::list({TorchValue::dict()}));
  const auto saved = [&](const TorchValue& value) {
    return error_line(save_torch_value(Fs::posix(), dir / "v.pt", value));
  };
  TorchValue inner = TorchValue::dict();
  inner.set("x", 1), inner.set("x", 2);
  CHECK_THAT(saved(TorchValue::list({inner})), Catch::Contains("0.x: is a duplicate"));
  CHECK_THAT(saved(TorchValue::list({1, "\xff"})), Catch::Contains("1: is text that is not UTF-8"));
  TorchValue odd = TorchValue::dict();
  odd.set("a\nb", 1);
  CHECK_THAT(saved(TorchValue::list({odd})), Catch::Contains("0: has a key with control characters"));
  CHECK_THAT(saved(TorchValue::list({at::Tensor()})), Catch::Contains("0: is an undefined tensor"));
  TorchValue deep = TorchValue::list();
  for (int i = 0; i < 61; ++i) deep = TorchValue::list({deep});
  CHECK_THAT(saved(deep), Catch::Contains("is nested too deeply"));
  CHECK_FALSE(std::filesystem::exists(dir / "v.pt"));
  CHECK_THROWS_AS(TorchValue(1).add(2), c10::Error);
  CHECK_THROWS_AS(TorchValue::list().set("a", 2), c10::Error);
}
