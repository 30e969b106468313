// Inconsistent environments, and other programs that listen at the ranks' rendezvous.
#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;
using std::chrono::steady_clock;

namespace {

/// Listens on a port and answers every connection with `text`.
class Server {
 public:
  explicit Server(std::string text) : text_(std::move(text)), fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&address), size) || listen(fd_, 16) ||
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size)) {
      throw std::runtime_error("cannot listen");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int client; (client = accept(fd_, nullptr, nullptr)) >= 0;) {
        char request[512];
        if (read(client, request, sizeof(request)) > 0) (void)!write(client, text_.data(), text_.size());
        close(client);
      }
    });
  }
  ~Server() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  uint16_t port() const { return port_; }

 private:
  std::string text_;
  int fd_;
  uint16_t port_ = 0;
  std::thread thread_;
};

RanksOptions job(const TempDir& folder, int64_t world = 2) {
  return {.world = world,
          .program = "trainkit-test-rank",
          .flags = {"--folder", folder.path().string(), "--timeout", "4000", "--steps", "5", "--save_every", "0"}};
}

/// `name=value` on one rank.
auto on_rank(int64_t odd, std::vector<std::string> entries) {
  return [odd, entries](int64_t rank) { return rank == odd ? entries : std::vector<std::string>{}; };
}

/// No rank hangs, and each error is one line (and a hint) with exit code 8.
void check_refused(const std::vector<RankEnd>& ends, const std::string& text) {
  INFO(describe(ends));
  bool said = false;
  for (const RankEnd& end : ends) {
    CHECK(end.code == 8);
    CHECK(std::count(end.errors.begin(), end.errors.end(), '\n') <= 2);
    CHECK_THAT(end.errors, Catch::Contains("error[dist."));
    said = said || end.errors.find(text) != std::string::npos;
  }
  CHECK(said);
}

}  // namespace

TEST_CASE("Ranks with different world sizes end with exit code 8", "[ranks][rendezvous]") {
  const TempDir folder;
  auto options = job(folder);
  options.environment = on_rank(1, {"WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3"});
  check_refused(RankJob(options, folder.path().string()).wait(), "WORLD_SIZE");
}

TEST_CASE("A duplicate rank ends the job with exit code 8", "[ranks][rendezvous]") {
  const TempDir folder;
  auto options = job(folder, 3);
  options.environment = on_rank(2, {"RANK=1", "LOCAL_RANK=1"});
  check_refused(RankJob(options, folder.path().string()).wait(), "rank 1");
}

TEST_CASE("A missing rank is reported at the timeout", "[ranks][rendezvous]") {
  const TempDir folder;
  auto options = job(folder, 3);
  options.late = {2};
  RankJob ranks(options, folder.path().string());
  const auto start = steady_clock::now();
  std::vector<int64_t> waiting = {0, 1};
  while (!waiting.empty()) {
    REQUIRE(steady_clock::now() - start < std::chrono::seconds(60));
    std::erase_if(waiting, [&](int64_t rank) {
      const auto code = ranks[rank].poll();
      if (code) CHECK(*code == 8);
      return code.has_value();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK_THAT(ranks[0].errors(), Catch::Contains("rank 2 did not join within 4 s"));
  ranks.start(2);  // much too late: the others have ended
  CHECK(ranks[2].wait() == 8);
}

TEST_CASE("An extra rank after the rendezvous is refused and does not disturb the others", "[ranks][rendezvous]") {
  const TempDir folder, other;
  auto options = job(folder);
  options.flags = {"--folder", folder.path().string(), "--steps", "60", "--save_every", "0", "--at", "forward:0:slow"};
  RankJob ranks(options, folder.path().string());
  while (read_text(folder / "rows.0").empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  auto extra_options = job(other);
  extra_options.master_port = options.master_port;
  extra_options.late = {0};
  RankJob extra(extra_options, other.path().string());  // claims to be rank 1
  CHECK(extra[1].wait() == 8);
  CHECK_THAT(extra[1].errors(), Catch::Contains("error[dist."));
  const auto ends = ranks.wait();
  INFO(describe(ends));
  for (const RankEnd& end : ends) CHECK(end.code == 0);
}

TEST_CASE("Ranks with different rendezvous addresses do not wait for ever", "[ranks][rendezvous]") {
  const TempDir folder;
  auto options = job(folder);
  options.environment = on_rank(1, {"MASTER_PORT=" + std::to_string(free_port())});
  check_refused(RankJob(options, folder.path().string()).wait(), "rank 1 did not join");
}

TEST_CASE("A port in use is reported by the rank that needs it", "[ranks][rendezvous]") {
  const Server server("");
  const TempDir folder;
  auto options = job(folder);
  options.master_port = server.port();
  check_refused(RankJob(options, folder.path().string()).wait(), "MASTER_PORT");
}

TEST_CASE("A web server, or nothing, at rank 0's address ends a rank at the timeout", "[ranks][rendezvous]") {
  const Server server("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
  for (const uint16_t port : {server.port(), free_port()}) {
    const TempDir folder;
    auto options = job(folder);
    options.master_port = port;
    options.late = {0};
    RankJob ranks(options, folder.path().string());
    const auto start = steady_clock::now();
    std::optional<int> code;
    while (!(code = ranks[1].poll())) {
      REQUIRE(steady_clock::now() - start < std::chrono::seconds(60));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    INFO(ranks[1].errors());
    CHECK(*code == 8);
    CHECK_THAT(ranks[1].errors(), Catch::StartsWith("[rank 1] trainkit: error[dist."));
    ranks.start(0);
    ranks[0].kill(SIGKILL);
  }
}
