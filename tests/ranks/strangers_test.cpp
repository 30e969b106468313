// Unrelated clients on the ranks' ports.
#include <random>
#include <set>
#include <sstream>

#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// The ports on which process `pid` listens.
std::set<uint16_t> listening_ports(pid_t pid) {
  std::set<std::string> sockets;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ignored)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::set<uint16_t> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      if (state == "0A" && sockets.contains(inode)) {
        ports.insert(static_cast<uint16_t>(std::stoul(local.substr(local.rfind(':') + 1), nullptr, 16)));
      }
    }
  }
  return ports;
}

/// Sends `bytes` to a loopback port and disconnects.
void send_to(uint16_t port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  close(fd);
}

std::string run(const TempDir& folder, bool disturbed) {
#ifdef __SANITIZE_ADDRESS__
  // LibTorch's store leaks the 4 KiB buffer of a connection that ends (c10d::detail::UvTcpSocket::alloc_buffer).
  if (disturbed) setenv("ASAN_OPTIONS", (environment("ASAN_OPTIONS") + ":detect_leaks=0").c_str(), 1);
#endif
  RanksOptions job{
      .world = 2,
      .program = "trainkit-test-rank",
      .flags = {"--folder", folder.path().string(), "--steps", "60", "--save_every", "0", "--at", "forward:0:slow"}};
  RankJob ranks(job, folder.path().string());
  while (read_text(folder / "rows.0").empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (disturbed) {
    std::set<uint16_t> ports = listening_ports(ranks[0].pid());
    ports.merge(listening_ports(ranks[1].pid()));
    CHECK(ports.contains(job.master_port));
    CHECK(ports.size() >= 2);  // the store's and Gloo's
    std::mt19937 random(3);
    for (int i = 0; i < 100; ++i) {
      for (const uint16_t port : ports) {
        std::string bytes(random() % 200, '\0');
        for (char& byte : bytes) byte = static_cast<char>(random());
        send_to(port, bytes);
      }
    }
  }
  const auto ends = ranks.wait();
  INFO(describe(ends));
  for (const RankEnd& end : ends) CHECK(end.code == 0);
  return read_text(folder / "losses.0");
}

}  // namespace

TEST_CASE("Garbage sent to the ranks' ports does not change a run", "[ranks][network]") {
  const TempDir quiet, noisy;
  const std::string expected = run(quiet, false);
  REQUIRE(!expected.empty());
  CHECK(run(noisy, true) == expected);
}
