// ring_processes, under mpirun: the suite with ranks as processes.
#include "common/run_processes.h"
#include "mp/ring_suite.h"

using namespace seqpar::test;

int main() {
  return runAsProcesses([](seqparComm_t comm, std::uint64_t seed) { runRingSuite(comm, seed, 10); });
}
