// soak [--seconds N] [--seed N] [--ranks N]: all parts of the library in turn on the same communicators. Ranks are
// threads of this process or, under mpirun, processes.
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

#ifdef SEQPAR_TEST_MPI
#include "common/run_processes.h"
#endif
#include "common/run_threads.h"
#include "mp/soak_suite.h"

using namespace seqpar::test;

namespace {

struct Options {
  int seconds = 10, ranks = 4;
  std::optional<std::uint64_t> seed;
};

Options readOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::runtime_error(name + " has no value");
    if (name == "--seconds") {
      options.seconds = std::atoi(argv[i + 1]);
    } else if (name == "--ranks") {
      options.ranks = std::atoi(argv[i + 1]);
    } else if (name == "--seed") {
      options.seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      throw std::runtime_error("there is no option " + name + ", but --seconds, --seed and --ranks");
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = readOptions(argc, argv);
    const auto run = [&](seqparComm_t comm, std::uint64_t seed) {
      runSoak(comm, options.seed.value_or(seed), options.seconds);
    };
#ifdef SEQPAR_TEST_MPI
    if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return runAsProcesses(run);
#endif
    return runAsThreads(options.ranks, options.ranks, run);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
}
