#include "transformer/demo_text.h"

#include <array>
#include <cctype>
#include <string_view>

#include "trainkit/core/random.h"

namespace trainkit::transformer {
namespace {

using Words = std::array<std::string_view, 16>;

constexpr Words kPeople = {"the pilot",  "a weaver",   "the keeper", "our baker",   "the miller", "a fisher",
                           "the doctor", "my sister",  "the smith",  "a stranger",  "the child",  "her uncle",
                           "the judge",  "the sailor", "a gardener", "the old king"};
constexpr Words kActs = {"carried",  "found",  "painted", "mended",  "lost",   "followed", "counted",    "hid",
                         "borrowed", "opened", "buried",  "watched", "traded", "kept",     "remembered", "broke"};
constexpr Words kThings = {"the lantern",  "a silver coin",    "the map",    "an iron key",
                           "the red boat", "a wooden box",     "the letter", "a blue stone",
                           "the bell",     "a loaf of bread",  "the ladder", "an empty jar",
                           "the compass",  "a pair of gloves", "the clock",  "a sack of grain"};
constexpr Words kPlaces = {"by the river",      "under the bridge", "behind the mill",   "in the market",
                           "near the harbour",  "on the hill",      "inside the tower",  "along the north road",
                           "at the crossing",   "in the orchard",   "beside the chapel", "above the valley",
                           "between two walls", "over the sea",     "in the long grass", "at the edge of town"};
constexpr Words kTimes = {"at dawn",           "before noon",   "after the storm", "late in the evening",
                          "every spring",      "that winter",   "on market day",   "when the tide was low",
                          "as the bells rang", "long ago",      "by candle light", "in the first frost",
                          "without a word",    "for nine days", "as promised",     "while it rained"};
constexpr Words kJoins = {"and then", "but", "because", "so that", "until", "although", "and still", "while",
                          "for",      "yet", "and so",  "since",   "as",    "though",   "before",    "after"};

std::string_view pick(const Words& words, RandomStream& random) { return words[random.below(words.size())]; }

std::string clause(RandomStream& random) {
  std::string text(pick(kPeople, random));
  for (const Words* words : {&kActs, &kThings}) text.append(" ").append(pick(*words, random));
  if (random.below(3) > 0) text.append(" ").append(pick(kPlaces, random));
  if (random.below(3) == 0) text.append(" ").append(pick(kTimes, random));
  return text;
}

std::string sentence(RandomStream& random) {
  std::string text = clause(random);
  if (random.below(2) == 0) text.append(", ").append(pick(kJoins, random)).append(" ").append(clause(random));
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + (random.below(8) == 0 ? "?" : ".");
}

}  // namespace

std::string demo_text(int64_t bytes, uint64_t seed) {
  RandomStream random(hash_key(seed, 0x64656d6f));
  std::string text;
  while (static_cast<int64_t>(text.size()) < bytes) {
    const uint64_t sentences = 3 + random.below(5);
    for (uint64_t i = 0; i < sentences; ++i) text.append(sentence(random)).append(i + 1 < sentences ? " " : "\n\n");
  }
  return text;
}

}  // namespace trainkit::transformer
