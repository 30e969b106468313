// Programs in unusual surroundings: environment variables, limits, closed streams.
#include <cstdlib>

#include "apps/program.h"
#include "core/device/cuda_support.h"
#include "sanitizers.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Runs the trainer with a tiny model after the shell command `setting`.
struct Run {
  explicit Run(const std::string& setting, const std::string& flags = "", const std::string& behind = "",
               const std::string& model = "--hidden_dim 16 --n_layers 1") {
    std::ofstream(dir / "text.txt") << std::string(20'000, 'a') << "bcdefgh";
    const std::string out = " > " + (dir / "out") + " 2> " + (dir / "err");
    const std::string command = setting + " " + TRAINKIT_BIN_DIR + "/trainkit-transformer --input " +
                                (dir / "text.txt") + " --output_dir " + (dir / "run") + " " + model +
                                " --n_heads 2 --block_size 16 --batch_size 4 "
                                "--grad_accum_steps 1 --max_steps 3 --sample_tokens 5 " +
                                flags + out + behind;
    const int status = std::system(("bash -c '" + command + "'").c_str());
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 256;
    output = read_text(dir / "out");
    errors = read_text(dir / "err");
  }
  TempDir dir;
  int code;
  std::string output, errors;
};

}  // namespace

TEST_CASE("A bad variable is reported by name at the start") {
  const std::pair<const char*, const char*> cases[] = {
      {"OMP_NUM_THREADS=abc", "error[env.value] OMP_NUM_THREADS: is not a number of threads (got 'abc'"},
      {"OMP_NUM_THREADS=0", "error[env.value] OMP_NUM_THREADS: is not a number of threads (got '0'"},
      {"OMP_NUM_THREADS=1000000", "error[env.value] OMP_NUM_THREADS: is not a number of threads (got '1000000'"},
      {"TMPDIR=/no/such/folder", "error[env.value] TMPDIR: folder does not exist"},
      {"TRAINKIT_BATCH_SIZE=4", "error[env.value] TRAINKIT_BATCH_SIZE: unknown variable"},
      {"ulimit -n 32;", "error[env.limit] open files: the limit is too low (got '32'"},
  };
  for (const auto& [setting, text] : cases) {
    const Run run(setting);
    INFO(run.errors);
    CHECK(run.code == 2);
    CHECK_THAT(run.errors, Catch::Contains(text));
  }
}

TEST_CASE("Locale, time zone and a missing home folder change nothing, and numbers have no decimal comma") {
  const Run run("env -u HOME LC_ALL=de_DE.UTF-8 TZ=nowhere");
  INFO(run.errors);
  CHECK(run.code == 0);
  CHECK_THAT(read_text(run.dir / "run/metrics.jsonl"), Catch::Contains("\"loss\":") && !Catch::Contains("\"loss\":2,"));
}

TEST_CASE("A requested GPU that is hidden is a usage error") {
  for (const char* value : {"", "9", "0,0"}) {
    const Run run(std::string("CUDA_VISIBLE_DEVICES=") + value, "--device cuda");
    if (std::string(value) == "0,0" && run.code == 0) continue;  // a driver that accepts it
    INFO(run.errors);
    CHECK(run.code == 2);
    CHECK_THAT(run.errors, Catch::Contains("--device: no"));
    const CudaDiagnosis diagnosis = diagnose_cuda(probe_cuda());
    if (diagnosis.state == CudaState::kNoDriver) CHECK_THAT(run.errors, Catch::Contains(diagnosis.remedy));
  }
}

#if !defined(__SANITIZE_THREAD__)  // which writes its own file at the start
TEST_CASE("A file above the size limit is a storage error") {
  const Run run("ulimit -f 20;", "", "", "--hidden_dim 64 --n_layers 1");
  INFO(run.errors);
  CHECK(run.code == 6);
  CHECK_THAT(run.errors, Catch::Contains("error[storage"));
}
#endif

TEST_CASE("A model above the memory limit is out of memory") {
  if (kSanitized) return;
  const Run run("ulimit -v 12000000;", "", "", "--hidden_dim 40000 --n_layers 1");
  INFO(run.errors);
  CHECK(run.code == 7);
}

TEST_CASE("A step that needs more memory than the machine has is out of memory, not killed") {
  const TempDir dir;
  {
    std::ofstream text(dir / "text.txt");
    for (int i = 0; i < 2500; ++i) text << std::string(8'000, static_cast<char>('a' + i % 2));
  }
  // A million rows of 2 MiB.
  const std::string command = std::string(TRAINKIT_BIN_DIR) + "/trainkit-transformer --device cpu --input " +
                              (dir / "text.txt") + " --output_dir " + (dir / "run") +
                              " --hidden_dim 256 --n_heads 2 --n_layers 8 --block_size 16 --batch_size 1000000 2> " +
                              (dir / "err");
  const int status = std::system(command.c_str());
  INFO(read_text(dir / "err"));
  CHECK(WEXITSTATUS(status) == 7);
  CHECK_THAT(read_text(dir / "err"), Catch::Contains("error[memory.plan] batch_size: a step of 1000000 rows needs"));
}

TEST_CASE("A model that the machine has no memory for is out of memory, not killed") {
  const std::string model = "--hidden_dim 65536 --n_layers 2";
  const Run planned("", "--device cpu", "", model);
  INFO(planned.errors);
  CHECK(planned.code == 7);
  CHECK_THAT(planned.errors, Catch::Contains("error[memory.plan] batch_size: a step of 4 rows needs more memory"));
  const Run run("", "--device cpu --no-plan_memory", "", model);
  INFO(run.errors);
  CHECK(run.code == 7);
  CHECK_THAT(run.errors, Catch::Contains("not enough memory on this machine"));
}

TEST_CASE("Every program starts in a folder that was deleted, and a relative path is an error that says so") {
  const TempDir dir;
  const auto start = [&](const std::string& command) {
    std::filesystem::create_directory(dir / "gone");
    const std::string line = "cd " + (dir / "gone") + " && rmdir " + (dir / "gone") + " && " + TRAINKIT_BIN_DIR + "/" +
                             command + " > " + (dir / "out") + " 2> " + (dir / "err");
    const int status = std::system(("bash -c '" + line + "'").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256;
  };
  for (const char* program :
       {"trainkit", "trainkit-transformer", "trainkit-hsi", "trainkit-emotion", "trainkit-gpt2rec"}) {
    INFO(program << read_text(dir / "err"));
    CHECK(start(std::string(program) + " --help") == 0);
    CHECK(start(std::string(program) + " --version") == 0);
  }
  const std::string flags = " --hidden_dim 16 --n_layers 1 --block_size 16 --max_steps 1 --sample_tokens 2";
  std::ofstream(dir / "text.txt") << std::string(20'000, 'a') << "bcdefgh";
  CHECK(start("trainkit-transformer --input text.txt" + flags) != 0);
  CHECK(start("trainkit-transformer --data_dir data" + flags) == 2);
  CHECK_THAT(read_text(dir / "err"), Catch::Contains("--data_dir: a relative path") &&
                                         Catch::Contains("hint: the working folder has been deleted"));
  CHECK(start("trainkit-transformer --input " + (dir / "text.txt") + flags) == 6);  // to runs/transformer
  CHECK_THAT(read_text(dir / "err"),
             Catch::Contains("runs/transformer") && Catch::Contains("hint: the working folder has been deleted"));
  CHECK(start("trainkit-transformer --input " + (dir / "text.txt") + " --output_dir " + (dir / "run") + flags) == 0);
  INFO(read_text(dir / "err"));
  CHECK(std::filesystem::exists(dir / "run/summary.json"));
}

TEST_CASE("No program loads the library of a format before it opens a file of it") {
  const TempDir dir;
  for (const char* program :
       {"trainkit", "trainkit-transformer", "trainkit-hsi", "trainkit-emotion", "trainkit-gpt2rec"}) {
    const std::string command = std::string("LD_DEBUG=files ") + TRAINKIT_BIN_DIR + "/" + program + " --help > " +
                                (dir / "out") + " 2> " + (dir / "err");
    REQUIRE(std::system(command.c_str()) == 0);
    const std::string loaded = read_text(dir / "err");
    CHECK_THAT(loaded, Catch::Contains("libtorch_cpu.so"));
    for (const char* library : {"libav", "libsw", "libhdf5", "libmatio"}) {
      INFO(program << " loads " << library);
      CHECK(loaded.find(library) == std::string::npos);
    }
  }
}

TEST_CASE("Without FFmpeg, clips are one error that names what to install") {
  const TempDir dir;
  // The loader takes the first file of a name on its path, and this one is no library.
  std::ofstream(dir / "libavutil.so.57") << "no library";
  const std::string start = "LD_LIBRARY_PATH=" + dir.path().string() + " " + TRAINKIT_BIN_DIR + "/trainkit-emotion ";
  const std::string out = " > /dev/null 2> " + (dir / "err");
  const std::string missing = "error[program.library] libavutil.so.57: cannot load the library";
  CHECK(WEXITSTATUS(std::system((start + "--make_demo_data " + (dir / "demo") + out).c_str())) == 2);
  CHECK_THAT(read_text(dir / "err"), Catch::Contains(missing) && Catch::Contains("apt-get install libavutil57"));
  CHECK(WEXITSTATUS(std::system(
            (start + "--data_dir " + (dir / "demo") + " --output_dir " + (dir / "run") + out).c_str())) == 2);
  CHECK_THAT(read_text(dir / "err"), Catch::Contains(missing));
  CHECK_FALSE(std::filesystem::exists(dir / "run/metrics.jsonl"));
}

TEST_CASE("Without HDF5, a scene in its format is one error that names what to install") {
  const TempDir dir;
  std::ofstream(dir / "libhdf5_serial.so.103") << "no library";
  // The beginning of a file: its first 64 bytes, and no object.
  std::string block = "\x89HDF\r\n\x1a\n\x02\x08\x08";
  block.resize(100, '\0');
  block[28] = 64;
  std::ofstream(dir / "scene.h5") << block;

  const std::string command = "LD_LIBRARY_PATH=" + dir.path().string() + " " + TRAINKIT_BIN_DIR +
                              "/trainkit-hsi --no-write_maps --cube " + (dir / "scene.h5") + " --gt " +
                              (dir / "scene.h5") + " --output_dir " + (dir / "run") + " > /dev/null 2> " +
                              (dir / "err");
  CHECK(WEXITSTATUS(std::system(command.c_str())) == 2);
  CHECK_THAT(read_text(dir / "err"), Catch::Contains("error[program.library] libhdf5_serial.so.103: cannot load") &&
                                         Catch::Contains("apt-get install libhdf5-103-1"));
}

TEST_CASE("A closed stdout does not end a run") { CHECK(Run("", "", " >&-").code == 0); }
