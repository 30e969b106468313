// A failing network between the ranks: two network namespaces connected by a veth pair.
#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;
using std::chrono::steady_clock;

namespace {

/// Two network namespaces joined by a veth pair, 10.231.7.1 and 10.231.7.2.
class Wire {
 public:
  Wire() {
    const std::string id = std::to_string(getpid());
    for (int i : {0, 1}) names_[i] = "trainkit" + id + (i ? "b" : "a");
    const std::string a = names_[0], b = names_[1];
    works_ = shell("ip netns add " + a) && shell("ip netns add " + b) &&
             shell("ip link add wire0 netns " + a + " type veth peer name wire0 netns " + b) &&
             shell("ip -n " + a + " addr add 10.231.7.1/24 dev wire0") &&
             shell("ip -n " + b + " addr add 10.231.7.2/24 dev wire0");
    for (const std::string& name : names_) {
      works_ = works_ && shell("ip -n " + name + " link set wire0 up") && shell("ip -n " + name + " link set lo up");
    }
  }
  ~Wire() {
    for (const std::string& name : names_) shell("ip netns del " + name);
  }
  bool works() const { return works_; }
  const std::string& name(int64_t i) const { return names_[i]; }
  static bool shell(const std::string& command) { return std::system((command + " > /dev/null 2>&1").c_str()) == 0; }

 private:
  std::string names_[2];
  bool works_ = false;
};

RanksOptions job_on(const Wire& wire, const TempDir& folder, std::vector<std::string> more) {
  RanksOptions job{.world = 2, .program = "trainkit-test-rank", .master_addr = "10.231.7.1"};
  job.flags = {"--folder", folder.path().string(), "--bind", "wire0", "--timeout", "4000"};
  job.flags.insert(job.flags.end(), more.begin(), more.end());
  job.wrapper = [&wire](int64_t rank) {
    return std::vector<std::string>{"/bin/sh", "-c", "exec ip netns exec " + wire.name(rank) + " \"$0\" \"$@\""};
  };
  job.environment = [](int64_t rank) {
    return std::vector<std::string>{"LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "GROUP_RANK=" + std::to_string(rank)};
  };
  return job;
}

}  // namespace

TEST_CASE("Ranks of two machines with a cut, slow, lossy or missing link end or continue, and never hang",
          "[ranks][network]") {
  if (geteuid() != 0 || !Wire::shell("ip netns list")) TRAINKIT_SKIP("network namespaces need root and iproute2");
  struct Trouble {
    const char* what;
    std::string command;
    int code;
  };
  const Wire wire;
  if (!wire.works()) TRAINKIT_SKIP("network namespaces cannot be made here");
  const bool netem = Wire::shell("tc -n " + wire.name(0) + " qdisc add dev wire0 root netem delay 1ms") &&
                     Wire::shell("tc -n " + wire.name(0) + " qdisc del dev wire0 root");
  std::vector<Trouble> troubles = {{"nothing", "true", 0},
                                   {"link down", "ip -n " + wire.name(0) + " link set wire0 down", 8}};
  if (netem) {
    troubles.push_back({"30 % loss", "tc -n " + wire.name(0) + " qdisc add dev wire0 root netem loss 30%", 0});
    troubles.push_back({"100 ms latency", "tc -n " + wire.name(0) + " qdisc add dev wire0 root netem delay 100ms", 0});
    troubles.push_back({"one-way drop", "tc -n " + wire.name(0) + " qdisc add dev wire0 root netem loss 100%", 8});
  } else {
    std::cout << "without netem: loss, latency and one-way drops are not tried" << std::endl;
  }
  for (const Trouble& trouble : troubles) {
    const TempDir folder;
    const std::vector<std::string> brief = {"--steps", "12", "--save_every", "0", "--eval_every", "0"};
    const std::vector<std::string> endless = {"--steps", "1000000", "--save_every", "0", "--eval_every", "0"};
    RankJob ranks(job_on(wire, folder, trouble.code == 0 ? brief : endless), folder.path().string());
    const auto start = steady_clock::now();
    while (trouble.code != 0 && read_text(folder / "rows.0").empty()) {
      REQUIRE(steady_clock::now() - start < std::chrono::seconds(60));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const auto harm = steady_clock::now();
    REQUIRE(Wire::shell(trouble.command));
    const auto ends = ranks.wait(std::chrono::seconds(180));
    INFO(trouble.what << "\n" << describe(ends));
    for (const RankEnd& end : ends) {
      CHECK(end.code == trouble.code);
      if (trouble.code == 8) CHECK_THAT(end.errors, Catch::Contains("error[dist.peer]"));
      std::cout << trouble.what << ": ended after " << std::chrono::duration<double>(end.at - harm).count() << " s"
                << std::endl;
    }
    Wire::shell("tc -n " + wire.name(0) + " qdisc del dev wire0 root");
    Wire::shell("ip -n " + wire.name(0) + " link set wire0 up");
  }
}
