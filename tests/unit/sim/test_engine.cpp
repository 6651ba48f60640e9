// The simulator's engine on programs whose times follow from formulas.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "engine/player.h"
#include "machine.h"
#include "unit/seed.h"

using namespace seqpar::sim;

namespace {

Machine machine() {
  return readMachine(machineText("h200x8"), {});
}

Program programOf(std::vector<Step> steps, Engine engine = Engine::Kernel) {
  Program program;
  program.steps = std::move(steps);
  program.stepOps.push_back({0, static_cast<uint32_t>(program.steps.size()), 0, 0, engine});
  program.streams.push_back({Op{OpKind::Steps, 0, 0, 0, 0}, Op{OpKind::Record, 0, 0, 0, 0}});
  program.events = 1;
  program.marks = {0};
  return program;
}

double endOf(const Machine& machine, const std::vector<Program>& programs, size_t rank) {
  Player player(machine, programs);
  return player.run().ranks[rank].marks[0].us;
}

/// Ends of flows over links, by token.
std::vector<double> ends(EventQueue& events, Network& network, size_t flows) {
  std::vector<double> times(flows, -1);
  while (!events.empty()) {
    uint32_t token = 0;
    if (network.finish(events.next(), token)) times[token] = toUs(events.now());
  }
  return times;
}

}  // namespace

TEST_CASE("two flows share a link, and the rest of the longer one is alone") {
  EventQueue events;
  Network network(events, 0);
  const int link = network.addLink(100), other = network.addLink(1000);
  const int both[] = {link, other};
  network.start(std::span(&link, 1), 1e6, 1000, 0);
  network.start(both, 3e6, 1000, 1);
  const auto times = ends(events, network, 2);
  CHECK(times[0] == Approx(20).epsilon(1e-6));
  CHECK(times[1] == Approx(40).epsilon(1e-6));
}

TEST_CASE("rates are max-min fair: no flow can gain without a slower one's loss") {
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  for (int repeat = 0; repeat < 20; ++repeat) {
    EventQueue events;
    Network network(events, 0);
    std::vector<double> capacities;
    for (int i = 0; i < 5; ++i) {
      capacities.push_back(10 + static_cast<double>(random() % 90));
      network.addLink(capacities.back());
    }
    // Flows of equal size over two links each; the reference fills all flows at once.
    const size_t flows = 2 + random() % 6;
    std::vector<std::array<int, 2>> routes(flows);
    for (size_t f = 0; f < flows; ++f) {
      routes[f] = {static_cast<int>(random() % 5), 0};
      routes[f][1] = static_cast<int>((static_cast<size_t>(routes[f][0]) + 1 + random() % 4) % 5);
      network.start(routes[f], 1e6, 1e6, static_cast<uint32_t>(f));
    }
    std::vector<double> left(flows, 1e6), expected(flows, 0);
    double now = 0;
    std::vector<bool> done(flows, false);
    for (size_t ended = 0; ended < flows;) {
      std::vector<double> rate(flows, -1), free = capacities;
      while (true) {
        double least = 1e300;
        int tightest = -1;
        for (int l = 0; l < 5; ++l) {
          int open = 0;
          for (size_t f = 0; f < flows; ++f) {
            if (!done[f] && rate[f] < 0 && (routes[f][0] == l || routes[f][1] == l)) ++open;
          }
          if (open > 0 && free[static_cast<size_t>(l)] / open < least) {
            least = free[static_cast<size_t>(l)] / open;
            tightest = l;
          }
        }
        if (tightest < 0) break;
        for (size_t f = 0; f < flows; ++f) {
          if (done[f] || rate[f] >= 0 || (routes[f][0] != tightest && routes[f][1] != tightest)) continue;
          rate[f] = least;
          for (const int l : routes[f]) free[static_cast<size_t>(l)] -= least;
        }
      }
      double next = 1e300;
      for (size_t f = 0; f < flows; ++f) {
        if (!done[f]) next = std::min(next, left[f] / rate[f]);
      }
      now += next;
      for (size_t f = 0; f < flows; ++f) {
        if (done[f]) continue;
        left[f] -= rate[f] * next;
        if (left[f] > 1e-3) continue;
        done[f] = true;
        expected[f] = now * 1e-3;
        ++ended;
      }
    }
    const auto times = ends(events, network, flows);
    for (size_t f = 0; f < flows; ++f) CHECK(times[f] == Approx(expected[f]).epsilon(1e-5));
  }
}

TEST_CASE("a chain of K blocks takes the closed formula's time") {
  const Machine m = machine();
  const seqpar::test::Seed seed;
  std::mt19937 random(seed);
  const int ranks = 2 + static_cast<int>(random() % 7), blocks = 1 + static_cast<int>(random() % 20);
  const double bytes = 16384 + static_cast<double>(random() % 100000), work = 0.5;
  std::vector<Program> programs;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Step> steps;
    for (int k = 0; k < blocks; ++k) {
      if (rank > 0) steps.push_back({StepKind::Receive, rank - 1, bytes});
      steps.push_back({StepKind::Work, 0, work});
      if (rank + 1 < ranks) steps.push_back({StepKind::Send, rank + 1, bytes});
    }
    programs.push_back(programOf(steps));
  }
  const double block = bytes / m.local.gbs * 1e-3, alpha = m.local.alphaUs + m.scan.hopUs;
  const double expected = (ranks - 1) * (work + block + alpha) + work + (blocks - 1) * (work + block);
  CHECK(endOf(m, programs, static_cast<size_t>(ranks) - 1) == Approx(expected).epsilon(1e-4));
}

TEST_CASE("a communication kernel takes SMs from a computation") {
  Machine m = machine();
  Program sender, receiver;
  for (Program* program : {&sender, &receiver}) {
    program->streams = {{Op{OpKind::Compute, 0, 0, 0, 100.0F}, Op{OpKind::Record, 0, 0, 0, 0}},
                        {Op{OpKind::Exchange, 0, 0, 0, 0}}};
    program->events = 1;
    program->marks = {0};
  }
  const double bytes = 0.87 * m.local.gbs * 1e3 * 50;  // 50 us at the share of the rate that exchanges reach
  sender.messages = {{1, bytes}};
  sender.exchanges = {{0, 1, 0, 0, 0, 66.0F, 0, Engine::Kernel}};
  receiver.messages = {{0, bytes}};
  receiver.exchanges = {{0, 0, 0, 1, 0, 66.0F, 0, Engine::Kernel}};
  // Half of the SMs for 50 us.
  CHECK(endOf(m, {sender, receiver}, 0) == Approx(125).epsilon(1e-3));
  m.rankFactors[0]["rate"] = 0.5;
  CHECK(endOf(m, {sender, receiver}, 0) == Approx(225).epsilon(1e-3));
}

TEST_CASE("ranks of a host share its processors, and use no others") {
  Machine m = readMachine(machineText("xeon_host4"), {"rank[1].rate*=0.5"});
  m.host.processors = 2;
  m.gpus = 2;
  m.gpus = 4;
  Program program;
  program.streams = {{Op{OpKind::Compute, 0, 0, 0, 100.0F}, Op{OpKind::Record, 0, 0, 0, 0}}};
  program.events = 1;
  program.marks = {0};
  const std::vector<Program> alone{program, {}, {}, {}, program, {}}, four{program, program, program, program};
  CHECK(endOf(m, alone, 0) == Approx(100));
  CHECK(endOf(m, alone, 4) == Approx(100));  // another host
  // Half a processor each, until three of them have ended: the slow rank then has one.
  CHECK(endOf(m, four, 0) == Approx(200));
  CHECK(endOf(m, four, 1) == Approx(300));
  // Work of steps is one processor's, as a kernel's.
  Program steps = programOf({{StepKind::Work, 0, 100}});
  CHECK(endOf(m, {steps, program, steps, {}}, 2) == Approx(150));
}

TEST_CASE("a posted message leaves while the next steps run") {
  const Machine m = machine();
  const double bytes = m.local.gbs * 1e3 * 100;  // 100 us
  const auto end = [&](StepKind kind) {
    return endOf(m,
                 {programOf({{kind, 1, bytes}, {StepKind::Work, 0, 100}, {kind, 1, 64}}),
                  programOf({{StepKind::Receive, 0, bytes}, {StepKind::Receive, 0, 64}})},
                 1);
  };
  CHECK(end(StepKind::Post) == Approx(100 + m.local.alphaUs + m.scan.hopUs).epsilon(1e-3));
  CHECK(end(StepKind::Send) == Approx(200 + m.local.alphaUs + m.scan.hopUs).epsilon(1e-3));
}

TEST_CASE("an exchange of many peers takes the time of its bytes on the links") {
  const Machine m = machine();
  const int ranks = 40;
  const double bytes = 1e6;
  std::vector<Program> programs(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& program = programs[static_cast<size_t>(rank)];
    for (int direction = 0; direction < 2; ++direction) {
      for (int other = 0; other < ranks; ++other) {
        if (other != rank) program.messages.push_back({other, bytes});
      }
    }
    program.exchanges = {{0, ranks - 1, ranks - 1, ranks - 1, 0, 0, 0, Engine::Nccl}};
    program.streams = {{Op{OpKind::Exchange, 0, 0, 0, 0}, Op{OpKind::Record, 0, 0, 0, 0}}};
    program.events = 1;
    program.marks = {0};
  }
  const double expected = m.net.overheadUs + m.net.alphaUs + (ranks - m.gpus) * bytes / m.net.gbs * 1e-3;
  CHECK(endOf(m, programs, 7) == Approx(expected).epsilon(1e-3));
  Player again(m, programs), player(m, programs);
  const auto a = again.run(), b = player.run();
  CHECK(a.events == b.events);
  for (size_t rank = 0; rank < programs.size(); ++rank) CHECK(a.ranks[rank].end == b.ranks[rank].end);
}

TEST_CASE("ranks that wait for each other are an error") {
  const Machine m = machine();
  CHECK_THROWS_WITH(endOf(m, {programOf({{StepKind::Receive, 1, 8}}), programOf({{StepKind::Receive, 0, 8}})}, 0),
                    Catch::Contains("wait for each other"));
}

TEST_CASE("machine files: unknown keys, missing sources and wrong changes are errors that name the key") {
  const std::string text = machineText("h200x8");
  CHECK(readMachine(text, {"net.gbs*=2"}).net.gbs == Approx(2 * readMachine(text, {}).net.gbs));
  CHECK(readMachine(text, {"rank[3].rate*=0.5"}).factor(3, "rate") == 0.5);
  CHECK_THROWS_WITH(readMachine(text, {"net.speed=2"}), Catch::Contains("net.speed"));
  CHECK_THROWS_WITH(readMachine(text, {"faster"}), Catch::Contains("faster"));
  std::string unknown = text;
  unknown.replace(unknown.find("hbm_gbs"), 7, "hbm_gb5");
  CHECK_THROWS_WITH(readMachine(unknown, {}), Catch::Contains("hbm_gbs is missing"));
  CHECK_THROWS_AS(machineText("no such machine"), std::invalid_argument);
  for (const char* const name : {"h100x8", "h800x8", "a100x8", "h200x4_sockets", "xeon_host4"}) {
    CHECK(readMachine(machineText(name), {}).name == name);
  }
}

TEST_CASE("a rank without its network adapter shares that of the next GPU") {
  constexpr double kBytes = 1e8;
  const auto time = [&](const std::vector<std::string>& changes) {
    const auto own = readMachine(machineText("h200x8"), changes);
    std::vector<Program> programs;
    for (int rank = 0; rank < 16; ++rank) {
      std::vector<Step> steps;
      if (rank < 2) steps.push_back({StepKind::Send, rank + 8, kBytes});
      if (rank == 8 || rank == 9) steps.push_back({StepKind::Receive, rank - 8, kBytes});
      programs.push_back(programOf(std::move(steps)));
    }
    return endOf(own, programs, 8);
  };
  CHECK(time({"rank[0].net=down"}) == Approx(2 * time({})).epsilon(0.02));
  CHECK(time({"rank[3].net=down"}) == Approx(time({})));
  // The next GPU's adapter has failed too: rank 2 carries the bytes of three.
  CHECK(time({"rank[0].net=down", "rank[1].net=down"}) == Approx(2 * time({})).epsilon(0.02));
  CHECK(time({"net.adapters=4", "rank[0].net=down"}) == Approx(2 * time({})).epsilon(0.02));
  const auto check = [](const std::vector<std::string>& changes) {
    checkRanks(readMachine(machineText("h200x8"), changes), 16);
  };
  CHECK_NOTHROW(check({"rank[15].net=down"}));
  CHECK_THROWS_WITH(check({"node.gpus=1", "rank[0].net=down"}), Catch::Contains("no adapter"));
  CHECK_THROWS_WITH(check({"net.adapters=2", "rank[0].net=down", "rank[5].net=down"}), Catch::Contains("no adapter"));
  CHECK_THROWS_WITH(check({"rank[16].net=down"}), Catch::Contains("rank[16]"));
  CHECK_THROWS_WITH(check({"rank[16].rate*=0.5"}), Catch::Contains("0 to 15"));
}

TEST_CASE("machine files: wrong numbers are errors that name the key, the value and the range") {
  const std::string text = machineText("h200x8");
  for (const auto& [change, part] : std::vector<std::pair<std::string, std::string>>{
           {"net.gbs=0", "net.gbs.value is 0"},
           {"node.gpus=2.5", "node.gpus.value is 2.5"},
           {"node.gpus=1e9", "node.gpus.value is 1000000000"},
           {"linear.states_share=1.5", "linear.states_share.value is 1.5"},
           {"net.adapters=1.5", "net.adapters.value is 1.5"},
           {"net.adapters*=2", "net.adapters is an unknown key"},
           {"scan.programs.lasp1.rate_tbs=0", "scan.programs.lasp1.rate_tbs.value is 0"},
           {"net.gbs=nan", "nan is not a number"},
           {"net.gbs*=-1", "-1 is not a number"},
           {"net.gbs=1e999", "1e999 is not a number"},
           {"net=1", "net does not name a number"}}) {
    CHECK_THROWS_WITH(readMachine(text, {change}), Catch::Contains(part));
  }
  const auto replaced = [&](const std::string& from, const std::string& to) {
    auto changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  CHECK_THROWS_WITH(readMachine(replaced("[1024, 513.2]", "[512, 513.2]"), {}), Catch::Contains("ascending x"));
  CHECK_THROWS_WITH(readMachine(replaced("[1024, 513.2]", "[1024, 0]"), {}), Catch::Contains("[1024,0]"));
  CHECK_THROWS_WITH(readMachine("[]", {}), Catch::Contains("not an object"));
}
