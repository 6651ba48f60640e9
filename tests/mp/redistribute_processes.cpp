// redistribute_processes, under mpirun: the suite with ranks as processes.
#include "common/run_processes.h"
#include "mp/redistribute_suite.h"

using namespace seqpar::test;

int main() {
  return runAsProcesses([](seqparComm_t comm, std::uint64_t seed) {
    runRedistributeSuite(comm, seed, 40);
    runGroupsSuite(comm, seed);
  });
}
