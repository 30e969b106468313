#include "distributed/group/launch_errors.h"
#include "test_util.h"
#include "trainkit/distributed/process_group.h"

using namespace trainkit;

namespace {

using test::line;
using Variables = EnvironmentVariables;

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29400"},
                             {"TORCHELASTIC_RUN_ID", "job"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_ERROR_FILE", "/tmp/e.json"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "4711"},        {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "5"},           {"SLURM_NTASKS", "6"},
                          {"SLURM_LOCALID", "1"},          {"SLURM_NODEID", "1"},
                          {"SLURM_TASKS_PER_NODE", "4,2"}, {"SLURM_JOB_NODELIST", "gpu[07-08]"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "1234"}};

/// `base` with some variables set and those that are nullptr removed.
Variables with(Variables base, const std::vector<std::pair<const char*, const char*>>& changes) {
  for (const auto& [name, value] : changes) {
    if (value) {
      base[name] = value;
    } else {
      base.erase(name);
    }
  }
  return base;
}

LaunchEnvironment read(const Variables& variables) {
  const auto launch = read_launch_environment(variables);
  INFO(error_text(launch.status()));
  REQUIRE(launch.ok());
  REQUIRE(launch->has_value());
  return **launch;
}

}  // namespace

TEST_CASE("A process without a launcher has no launch environment") {
  for (const Variables& variables : {Variables{}, Variables{{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}},
                                     Variables{{"LOCAL_RANK", "0"}}, Variables{{"TORCHELASTIC_RUN_ID", "x"}}}) {
    const auto launch = read_launch_environment(variables);
    REQUIRE(launch.ok());
    CHECK_FALSE(launch->has_value());
  }
}

TEST_CASE("A Slurm batch script without srun is not a rank") {
  const auto launch = read_launch_environment(with(kSlurm, {{"SLURM_STEP_ID", nullptr}}));
  REQUIRE(launch.ok());
  CHECK_FALSE(launch->has_value());
}

TEST_CASE("The variables of torchrun are read") {
  const LaunchEnvironment launch = read(kTorchrun);
  CHECK(launch.launcher == Launcher::kTorchrun);
  CHECK(launch.rank == 3);
  CHECK(launch.world_size == 4);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_world_size == 2);
  CHECK(launch.node_rank == 1);
  CHECK(launch.master_addr == "node1");
  CHECK(launch.master_port == 29400);
  CHECK(launch.restart_count == 2);
  CHECK(launch.agent_store);
  CHECK(launch.run_id == "job");
  CHECK(launch.error_file == "/tmp/e.json");
}

TEST_CASE("trainkit launch is distinguished from torchrun, and its job name takes precedence") {
  const LaunchEnvironment launch = read(with(kTorchrun, {{"TRAINKIT_LAUNCH_ID", "me"}}));
  CHECK(launch.launcher == Launcher::kTrainkit);
  CHECK(launch.run_id == "me");
}

TEST_CASE("Variables set by hand need neither torchrun's own nor the machine's number") {
  Variables variables = kTorchrun;
  std::erase_if(variables, [](const auto& entry) { return entry.first.starts_with("TORCHELASTIC"); });
  variables.erase("GROUP_RANK");
  const LaunchEnvironment launch = read(variables);
  CHECK(launch.launcher == Launcher::kTorchrun);
  CHECK(launch.node_rank == -1);
  CHECK_FALSE(launch.agent_store);
  CHECK(read(with(variables, {{"LOCAL_WORLD_SIZE", "4"}})).node_rank == 0);
}

TEST_CASE("Every error in torchrun's variables is reported with the expected value") {
  struct Case {
    std::vector<std::pair<const char*, const char*>> changes;
    std::string expected;
  };
  const Case cases[] = {
      {{{"WORLD_SIZE", nullptr}}, "WORLD_SIZE: not set (expected 1..1048576)"},
      {{{"RANK", nullptr}}, "RANK: not set (expected 0..3)"},
      {{{"RANK", "-1"}}, "RANK: out of range (got '-1', expected 0..3)"},
      {{{"RANK", "4"}}, "RANK: out of range (got '4', expected 0..3)"},
      {{{"RANK", "abc"}}, "RANK: not a whole number (got 'abc', expected 0..3)"},
      {{{"RANK", ""}}, "RANK: empty (expected 0..3)"},
      {{{"RANK", " 0"}}, "RANK: not a whole number (got ' 0', expected 0..3)"},
      {{{"RANK", "0 "}}, "RANK: not a whole number (got '0 ', expected 0..3)"},
      {{{"RANK", "1.0"}}, "RANK: not a whole number (got '1.0', expected 0..3)"},
      {{{"RANK", "+1"}}, "RANK: not a whole number (got '+1', expected 0..3)"},
      {{{"RANK", "0x1"}}, "RANK: not a whole number (got '0x1', expected 0..3)"},
      {{{"RANK", "99999999999"}}, "RANK: out of range (got '99999999999', expected 0..3)"},
      {{{"RANK", "99999999999999999999"}}, "RANK: out of range (got '99999999999999999999', expected 0..3)"},
      {{{"WORLD_SIZE", "0"}}, "WORLD_SIZE: out of range (got '0', expected 1..1048576)"},
      {{{"WORLD_SIZE", "-2"}}, "WORLD_SIZE: out of range (got '-2', expected 1..1048576)"},
      {{{"WORLD_SIZE", "1e9"}}, "WORLD_SIZE: not a whole number (got '1e9', expected 1..1048576)"},
      {{{"WORLD_SIZE", "1000000000"}}, "WORLD_SIZE: out of range (got '1000000000', expected 1..1048576)"},
      {{{"LOCAL_RANK", nullptr}}, "LOCAL_RANK: not set (expected 0..1)"},
      {{{"LOCAL_RANK", "2"}}, "LOCAL_RANK: out of range (got '2', expected 0..1)"},
      {{{"LOCAL_WORLD_SIZE", nullptr}}, "LOCAL_WORLD_SIZE: not set (expected 1..4)"},
      {{{"LOCAL_WORLD_SIZE", "5"}}, "LOCAL_WORLD_SIZE: out of range (got '5', expected 1..4)"},
      {{{"GROUP_RANK", "x"}}, "GROUP_RANK: not a whole number (got 'x', expected 0..3)"},
      {{{"MASTER_ADDR", nullptr}}, "MASTER_ADDR: not set (expected a host name or address of rank 0's machine)"},
      {{{"MASTER_ADDR", ""}}, "MASTER_ADDR: empty (expected a host name or address of rank 0's machine)"},
      {{{"MASTER_ADDR", "http://h"}}, "MASTER_ADDR: is a URL (got 'http://h', "},
      {{{"MASTER_ADDR", "h:29500"}}, "MASTER_ADDR: contains a port (got 'h:29500', "},
      {{{"MASTER_ADDR", "[::1]:29500"}}, "MASTER_ADDR: contains a port (got '[::1]:29500', "},
      {{{"MASTER_ADDR", "0.0.0.0"}}, "MASTER_ADDR: is not an address to connect to (got '0.0.0.0', "},
      {{{"MASTER_ADDR", "::"}}, "MASTER_ADDR: is not an address to connect to (got '::', "},
      {{{"MASTER_ADDR", "a b"}}, "MASTER_ADDR: is not a host name (got 'a b', "},
      {{{"MASTER_PORT", nullptr}}, "MASTER_PORT: not set (expected 1..65535)"},
      {{{"MASTER_PORT", "0"}}, "MASTER_PORT: out of range (got '0', expected 1..65535)"},
      {{{"MASTER_PORT", "70000"}}, "MASTER_PORT: out of range (got '70000', expected 1..65535)"},
      {{{"MASTER_PORT", "-1"}}, "MASTER_PORT: out of range (got '-1', expected 1..65535)"},
      {{{"MASTER_PORT", "abc"}}, "MASTER_PORT: not a whole number (got 'abc', expected 1..65535)"},
      {{{"TORCHELASTIC_RESTART_COUNT", "abc"}},
       "TORCHELASTIC_RESTART_COUNT: not a whole number (got 'abc', expected 0..2147483647)"},
      {{{"TORCH_DISTRIBUTED_DEBUG", "bogus"}},
       "TORCH_DISTRIBUTED_DEBUG: no such level (got 'bogus', expected OFF, INFO or DETAIL)"},
  };
  for (const Case& fault : cases) {
    const auto launch = read_launch_environment(with(kTorchrun, fault.changes));
    INFO(fault.expected);
    CHECK_THAT(line(launch.status()), Catch::StartsWith("error[dist.env] " + fault.expected));
  }
}

TEST_CASE("RANK or WORLD_SIZE without the other is an error that names the missing one") {
  CHECK_THAT(line(read_launch_environment({{"RANK", "0"}}).status()), Catch::Contains("WORLD_SIZE: not set"));
  CHECK_THAT(line(read_launch_environment({{"WORLD_SIZE", "2"}}).status()), Catch::Contains("RANK: not set"));
}

TEST_CASE("IPv4 and IPv6 addresses are accepted unchanged") {
  for (const char* address : {"localhost", "10.0.0.1", "::1", "fe80::1%eth0", "node-1.cluster_2.example"})
    CHECK(read(with(kTorchrun, {{"MASTER_ADDR", address}})).master_addr == address);
}

TEST_CASE("An IPv6 address in brackets is read without them") {
  CHECK(read(with(kTorchrun, {{"MASTER_ADDR", "[::1]"}})).master_addr == "::1");
  CHECK(read(with(kTorchrun, {{"MASTER_ADDR", "[fe80::1%eth0]"}})).master_addr == "fe80::1%eth0");
  const auto any = read_launch_environment(with(kTorchrun, {{"MASTER_ADDR", "[::]"}}));
  CHECK_THAT(line(any.status()), Catch::Contains("MASTER_ADDR: is not an address to connect to"));
}

TEST_CASE("The variables of Slurm are read, and the master is the first host of the step") {
  const LaunchEnvironment launch = read(kSlurm);
  CHECK(launch.launcher == Launcher::kSlurm);
  CHECK(launch.rank == 5);
  CHECK(launch.world_size == 6);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_world_size == 2);
  CHECK(launch.node_rank == 1);
  CHECK(launch.master_addr == "gpu07");
  CHECK(launch.master_port >= 12'000);
  CHECK(launch.master_port < 32'000);
  CHECK(launch.run_id == "4711.0");

  CHECK(read(with(kSlurm, {{"SLURM_STEP_NODELIST", "big3"}})).master_addr == "big3");
  CHECK(read(with(kSlurm, {{"SLURM_JOB_NODELIST", nullptr}, {"SLURM_LAUNCH_NODE_IPADDR", "10.1.2.3"}})).master_addr ==
        "10.1.2.3");
  CHECK(read(with(kSlurm, {{"MASTER_ADDR", "head"}})).master_addr == "head");
  CHECK(read(with(kSlurm, {{"MASTER_PORT", "555"}})).master_port == 555);
}

TEST_CASE("Ranks of Slurm and Open MPI on one machine meet on the loopback interface") {
  const Variables one_node =
      with(kSlurm, {{"SLURM_PROCID", "1"}, {"SLURM_NODEID", "0"}, {"SLURM_TASKS_PER_NODE", "6"}});
  CHECK(read(one_node).master_addr == "127.0.0.1");
  CHECK(read(kOpenMpi).master_addr == "127.0.0.1");
}

TEST_CASE("All ranks of a job get the same port, and two steps of a job get different ports") {
  const auto port = [](const char* rank, const char* step) {
    return read(with(kSlurm, {{"SLURM_PROCID", rank}, {"SLURM_STEP_ID", step}})).master_port;
  };
  CHECK(port("4", "0") == port("5", "0"));
  CHECK(port("5", "0") != port("5", "1"));
}

TEST_CASE("Every error in Slurm's variables is reported") {
  struct Case {
    std::vector<std::pair<const char*, const char*>> changes;
    std::string expected;
  };
  const Case cases[] = {
      {{{"SLURM_NTASKS", nullptr}}, "SLURM_NTASKS: not set"},
      {{{"SLURM_NTASKS", "x"}}, "SLURM_NTASKS: not a whole number"},
      {{{"SLURM_PROCID", "6"}}, "SLURM_PROCID: out of range (got '6', expected 0..5)"},
      {{{"SLURM_NODEID", nullptr}}, "SLURM_NODEID: not set"},
      {{{"SLURM_LOCALID", "2"}}, "SLURM_LOCALID: out of range (got '2', expected 0..1)"},
      {{{"SLURM_TASKS_PER_NODE", nullptr}}, "SLURM_STEP_TASKS_PER_NODE: not set"},
      {{{"SLURM_TASKS_PER_NODE", "4"}}, "SLURM_TASKS_PER_NODE: does not say how many tasks node 1 has (got '4'"},
      {{{"SLURM_TASKS_PER_NODE", "4(x"}}, "SLURM_TASKS_PER_NODE: does not say how many tasks node 1 has (got '4(x'"},
      {{{"SLURM_JOB_NODELIST", "gpu[07"}}, "SLURM_JOB_NODELIST: is not a list of hosts (got 'gpu[07'"},
      {{{"SLURM_JOB_NODELIST", nullptr}}, "MASTER_ADDR: not set"},
      {{{"RANK", "4"}}, "RANK: does not match SLURM_PROCID (got '4', expected 5)"},
      {{{"WORLD_SIZE", "8"}}, "WORLD_SIZE: does not match SLURM_NTASKS (got '8', expected 6)"},
      {{{"MASTER_PORT", "70000"}}, "MASTER_PORT: out of range (got '70000', expected 1..65535)"},
  };
  for (const Case& fault : cases) {
    const auto launch = read_launch_environment(with(kSlurm, fault.changes));
    INFO(fault.expected);
    CHECK_THAT(line(launch.status()), Catch::StartsWith("error[dist.env] " + fault.expected));
  }
}

TEST_CASE("RANK set by hand must match the task's number, and torchrun inside a task need not") {
  Variables both = kTorchrun;
  both.insert(kSlurm.begin(), kSlurm.end());
  CHECK(read(both).launcher == Launcher::kTorchrun);  // one torchrun per task
  std::erase_if(both, [](const auto& entry) { return entry.first.starts_with("TORCHELASTIC"); });
  CHECK_THAT(line(read_launch_environment(both).status()),
             Catch::Contains("SLURM_PROCID: does not match RANK (got '5', expected 3)"));
  CHECK(read(with(both, {{"SLURM_PROCID", "3"}})).rank == 3);
}

TEST_CASE("The variables of Open MPI are read") {
  const LaunchEnvironment launch = read(kOpenMpi);
  CHECK(launch.launcher == Launcher::kOpenMpi);
  CHECK(launch.rank == 1);
  CHECK(launch.world_size == 2);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_world_size == 2);
  CHECK(launch.node_rank == 0);
  CHECK(launch.run_id == "1234");
  CHECK(launch.master_port != read(with(kOpenMpi, {{"PMIX_NAMESPACE", "1235"}})).master_port);
}

TEST_CASE("Open MPI with several machines needs MASTER_ADDR") {
  const Variables two_machines =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  const absl::Status status = read_launch_environment(two_machines).status();
  CHECK_THAT(line(status), Catch::Contains("MASTER_ADDR: not set"));
  CHECK_THAT(error_text(status), Catch::Contains("mpirun -x MASTER_ADDR="));
  const LaunchEnvironment launch = read(with(two_machines, {{"MASTER_ADDR", "node1"}}));
  CHECK(launch.master_addr == "node1");
  CHECK(launch.node_rank == -1);
}

TEST_CASE("mpirun inside a Slurm job takes precedence over its Slurm task") {
  Variables both = kOpenMpi;
  both.insert(kSlurm.begin(), kSlurm.end());
  CHECK(read(both).launcher == Launcher::kOpenMpi);
}

TEST_CASE("The first host of a node list is found in every Slurm notation") {
  CHECK(trainkit::detail::first_slurm_host("node1") == "node1");
  CHECK(trainkit::detail::first_slurm_host("node1,node2") == "node1");
  CHECK(trainkit::detail::first_slurm_host("gpu[007-009,12],login") == "gpu007");
  CHECK(trainkit::detail::first_slurm_host("r[2,4]n[1-3]x") == "r2n1x");
  CHECK(trainkit::detail::first_slurm_host("a[3]") == "a3");
  for (const char* bad : {"", "a[", "a[]", "a[x-y]", "a[-3]", "a b", "a]", "h/x", "a\n"})
    CHECK(trainkit::detail::first_slurm_host(bad).empty());
}

TEST_CASE("Slurm's notation of tasks per node is parsed") {
  CHECK(trainkit::detail::slurm_tasks_on_node("4", 0) == 4);
  CHECK(trainkit::detail::slurm_tasks_on_node("2(x3),1", 2) == 2);
  CHECK(trainkit::detail::slurm_tasks_on_node("2(x3),1", 3) == 1);
  CHECK(trainkit::detail::slurm_tasks_on_node("2(x3),1", 4) == 0);
  for (const char* bad : {"", "x", "-1", "2(x", "2(x)", "2(x3", "2(y3)", "2(x3)4", "2 ", "99999999999999999999"})
    CHECK(trainkit::detail::slurm_tasks_on_node(bad, 0) == 0);
}

TEST_CASE("A rank uses the GPU of its local rank") {
  LaunchEnvironment launch{.local_rank = 1, .local_world_size = 2};
  CHECK(device_of_rank(launch, at::kCPU, 0).value() == at::Device(at::kCPU));
  CHECK(device_of_rank(launch, at::kCUDA, 2).value() == at::Device(at::kCUDA, 1));
  CHECK_THAT(line(device_of_rank(launch, at::kCUDA, 1).status()),
             Catch::Contains("LOCAL_RANK: more ranks on this machine than GPUs (got '1', expected 0..0)"));
  CHECK_FALSE(device_of_rank(launch, at::kCUDA, 0).ok());
  launch.launcher = Launcher::kSlurm;  // --gpus-per-task=1
  CHECK(device_of_rank(launch, at::kCUDA, 1).value() == at::Device(at::kCUDA, 0));
}

TEST_CASE("c10d's own settings are accepted in any case, and dangerous ones are logged as warnings") {
  CHECK(read(with(kTorchrun, {{"TORCH_DISTRIBUTED_DEBUG", "detail"}})).warnings.empty());
  for (const Variables& base : {kTorchrun, kSlurm, kOpenMpi}) {
    const LaunchEnvironment launch = read(with(base, {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}}));
    REQUIRE(launch.warnings.size() == 1);
    CHECK_THAT(launch.warnings[0], Catch::Contains("TORCH_NCCL_ASYNC_ERROR_HANDLING=0"));
  }
}
