#include "mesh/print.h"

#include <catch2/catch.hpp>

#include "mesh_costs.h"

using namespace seqpar;
using namespace seqpar::test;

TEST_CASE("a schedule as JSON") {
  const auto costs = forwardCosts(1e-6, 1.5e-6, 3e-6, 0);
  CHECK(scheduleJson(forwardSchedule({1, 2}, costs), costs) ==
        R"({"pass":"forward","a":1,"b":2,"total_us":4.000,"exposed_us":2.000,"steps":[)"
        R"({"operation":"recv_kv","index":1,"communication_us":3.000,"computation_us":1.000,"tiles":[[0,0]]},)"
        R"({"operation":"compute","index":0,"communication_us":0.000,"computation_us":1.000,"tiles":[[0,1]]}]})");
}

TEST_CASE("a schedule as a diagram") {
  const auto costs = forwardCosts(1e-6, 1e-6, 2e-6, 1e-6);
  const auto text = scheduleDiagram(forwardSchedule({2, 2}, costs), costs);
  CAPTURE(text);
  CHECK(text.find("mesh 2 x 2, forward: 5.000 us, 1.000 us exposed communication") != std::string::npos);
  CHECK(text.find("        KV#0  KV#1\n   Q#0     0     3\n   Q#1     1     2\n") != std::string::npos);
  CHECK(text.find("3  send_o 1") != std::string::npos);
}
