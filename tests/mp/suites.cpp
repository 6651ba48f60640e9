#include "suites.h"

#include "common/ranks.h"
#include "exchange_ops_suite.h"
#include "exchange_suite.h"
#include "mesh_suite.h"
#include "redistribute_suite.h"
#include "ring_suite.h"
#include "scan_suite.h"

namespace seqpar::test {
namespace {

const NamedSuite kSuites[] = {
    {"exchange_ops", 100,
     [](seqparComm_t comm, std::uint64_t seed, int rounds) { runExchangeOps(comm, seed, {.cases = rounds}); }},
    {"mesh", 20, runMeshSuite},
    {"redistribute", 60,
     [](seqparComm_t comm, std::uint64_t seed, int rounds) {
       runRedistributeSuite(comm, seed, rounds);
       runGroupsSuite(comm, seed);
     }},
    {"ring", 10, runRingSuite},
    {"scan", 120,
     [](seqparComm_t comm, std::uint64_t seed, int rounds) {
       runScanSuite(comm, seed, rounds);
       runExchangeSuite(comm, seed, rounds / 5 + 1);
     }},
};

}  // namespace

const NamedSuite& suiteCalled(const std::string& name) {
  std::string names;
  for (const NamedSuite& suite : kSuites) {
    if (suite.name == name) return suite;
    names += std::string(" ") + suite.name;
  }
  throw std::runtime_error("there is no suite '" + name + "', but:" + names);
}

}  // namespace seqpar::test
