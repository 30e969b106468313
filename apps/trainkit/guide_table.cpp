#include "trainkit/guide_table.h"

#include <fmt/format.h>

#include <vector>

namespace trainkit::tool {
namespace {

constexpr double kMegabyte = 1e6;  // the reference guides' MB

struct Line {
  std::string name;
  /// Smallest and largest value in the reference guide, in MB (1e6 bytes).
  double least, most;
  /// Key of the plan's "largest_bytes" ("total": of "peak_bytes"). If empty, `modules` are summed from "weight_bytes".
  std::string kind = {};
  std::vector<std::string> modules = {};
};

struct Guide {
  std::string example;
  std::vector<Line> lines;
};

const Guide* guide_of(const std::string& app) {
  static const Guide kRecommender = {"8 devices, 2048 rows per step, cache",
                                     {{"weights", 500, 600, "weights"},
                                      {"  GPT-2", 500, 500, "", {"gpt2"}},
                                      {"  embeddings", 10, 50, "", {"user_embedding", "item_embedding"}},
                                      {"  MLP", 5, 20, "", {"user_mlp", "item_mlp", "projection"}},
                                      {"cache", 2, 3, "cache"},
                                      {"activations", 100, 200, "activations"},
                                      {"gradients", 600, 600, "gradients"},
                                      {"optimizer", 1200, 1200, "optimizer"},
                                      {"in all", 2500, 3000, "total"}}};
  static const Guide kEmotion = {"20 to 24 rows per device", {{"in all", 18000, 20000, "total"}}};
  return app == "gpt2rec" ? &kRecommender : app == "emotion" ? &kEmotion : nullptr;
}

int64_t bytes_of(const Line& line, const Json& plan) {
  if (line.kind == "total") return plan.at("peak_bytes").at("total").get<int64_t>();
  if (!line.kind.empty()) return plan.at("largest_bytes").at(line.kind).get<int64_t>();
  int64_t bytes = 0;
  for (const std::string& name : line.modules) bytes += plan.at("weight_bytes").value(name, int64_t{0});
  return bytes;
}

}  // namespace

void add_guide(const std::string& app, Json& plan) {
  const Guide* guide = guide_of(app);
  if (!guide) return;
  Json parts = Json::object();
  for (const Line& line : guide->lines) {
    parts[line.name.substr(line.name.find_first_not_of(' '))] = {
        {"guide_bytes", {static_cast<int64_t>(line.least * kMegabyte), static_cast<int64_t>(line.most * kMegabyte)}},
        {"bytes", bytes_of(line, plan)}};
  }
  plan["guide"] = {{"example", guide->example}, {"parts", parts}};
}

std::string guide_table(const std::string& app, const Json& plan) {
  const Guide* guide = guide_of(app);
  if (!guide) return {};
  std::string text =
      fmt::format("\ncompared with the reference guide's example ({}), MB per device\n{:<14} {:>10} {:>12}\n",
                  guide->example, "", "ours", "guide");
  for (const Line& line : guide->lines) {
    const std::string guide_text =
        line.least == line.most ? fmt::format("{}", line.least) : fmt::format("{}-{}", line.least, line.most);
    text += fmt::format("{:<14} {:>10.1f} {:>12}\n", line.name, static_cast<double>(bytes_of(line, plan)) / kMegabyte,
                        guide_text);
  }
  return text + "peak of each part; the peaks are not at the same time\n";
}

}  // namespace trainkit::tool
