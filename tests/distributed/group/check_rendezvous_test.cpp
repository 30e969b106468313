// Addresses, ports and network interfaces that ranks cannot use are immediate errors.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "distributed/group/launch_errors.h"
#include "test_util.h"
#include "trainkit/distributed/process_group.h"

using namespace trainkit;

namespace {

using test::line;

/// A socket that listens on the loopback interface.
struct Listener {
  Listener() : number(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const auto generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(number, generic, size) != 0 || listen(number, 1) != 0 || getsockname(number, generic, &size) != 0)
      throw std::runtime_error("no port");
    port = ntohs(address.sin_port);
  }
  ~Listener() { close(number); }
  int number;
  uint16_t port = 0;
};

}  // namespace

TEST_CASE("A master that cannot be resolved is an immediate error") {
  const LaunchEnvironment launch{.rank = 1, .world_size = 2, .master_addr = "no-such-host.invalid"};
  CHECK_THAT(line(check_rendezvous(launch)), Catch::Contains("MASTER_ADDR: does not resolve"));
  CHECK(check_rendezvous({.rank = 1, .world_size = 2, .master_addr = "[::1]"}).ok());
}

TEST_CASE("A port in use is an error on the rank that would listen, and on no other") {
  const Listener listener;
  LaunchEnvironment launch{.world_size = 2, .master_port = listener.port};
  CHECK_THAT(line(check_rendezvous(launch)),
             Catch::Contains("MASTER_PORT: already in use (got '" + std::to_string(listener.port) + "'"));
  launch.agent_store = true;
  CHECK(check_rendezvous(launch).ok());
  launch.agent_store = false;
  launch.rank = 1;
  CHECK(check_rendezvous(launch).ok());
}

TEST_CASE("A free port is found and stays free") {
  uint16_t port = 0;
  {
    const Listener listener;
    port = listener.port;
  }
  const LaunchEnvironment launch{.world_size = 2, .master_port = port};
  for (int i = 0; i < 3; ++i) CHECK(check_rendezvous(launch).ok());
}

TEST_CASE("Rank 0 cannot listen on another machine's address") {
  const LaunchEnvironment launch{.world_size = 2, .master_addr = "192.0.2.1"};  // reserved for documentation: RFC 5737
  CHECK_THAT(line(check_rendezvous(launch)), Catch::Contains("MASTER_ADDR: is not this machine"));
}

TEST_CASE("A missing network interface is reported with the available ones") {
  const LaunchEnvironment launch{.rank = 1, .world_size = 2};
  const auto check = [&](const char* name, const char* value) { return check_rendezvous(launch, {{name, value}}); };
  for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    CHECK(check(name, "lo").ok());
    const absl::Status status = check(name, "nosuch0");
    CHECK_THAT(line(status),
               Catch::Contains(std::string(name) + ": no such network interface (got 'nosuch0', expected one of "));
    CHECK_THAT(line(status), Catch::Contains("lo"));
  }
  CHECK_FALSE(check("GLOO_SOCKET_IFNAME", "lo,nosuch0").ok());
  CHECK_FALSE(check("NCCL_SOCKET_IFNAME", "=l").ok());
  for (const char* value : {"l", "=lo", "^docker", "nosuch0,lo"}) CHECK(check("NCCL_SOCKET_IFNAME", value).ok());
}

TEST_CASE("A port below 1024 is an error for a user without permission") {
  std::ifstream file("/proc/sys/net/ipv4/ip_unprivileged_port_start");
  int first_free = 1024;
  file >> first_free;
  if (first_free <= 81) return;  // this machine permits it for everybody
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    // As user nobody, without permissions.
    const bool dropped = getuid() != 0 || setresuid(65534, 65534, 65534) == 0;
    const std::string text =
        dropped ? error_line(check_rendezvous({.world_size = 2, .master_port = 81})) : "not dropped";
    (void)!write(pipe_ends[1], text.data(), text.size());
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string text(1000, '\0');
  const ssize_t size = ::read(pipe_ends[0], text.data(), text.size());
  close(pipe_ends[0]);
  waitpid(child, nullptr, 0);
  CHECK_THAT(text.substr(0, static_cast<size_t>(std::max<ssize_t>(size, 0))),
             Catch::Contains("MASTER_PORT: needs privileges that this user lacks (got '81', expected 1024..65535)"));
}
