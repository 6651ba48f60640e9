// net_rank MEETING TASK ...: one rank, RANK of WORLD_SIZE, on one of several hosts. MEETING is "environment", or a file
// through which rank 0 hands over a unique id. See tasks() for the tasks. "net_rank clock" prints the clock of all
// times.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/ranks.h"
#include "fault/survivors.h"
#include "mp/scan_suite.h"

using namespace seqpar::test;

namespace {

using Words = std::vector<std::string>;

int fromEnvironment(const char* name) {
  const char* text = std::getenv(name);
  expect(text != nullptr, name, " is not set");
  return std::atoi(text);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

seqparComm_t meetByFile(const std::string& path) {
  const int rank = fromEnvironment("RANK");
  seqparUniqueId id;
  if (rank == 0) {
    expectSuccess(seqparGetUniqueId(&id), "seqparGetUniqueId");
    std::ofstream(path + ".new", std::ios::binary).write(id.internal, sizeof(id.internal));
    std::filesystem::rename(path + ".new", path);
  } else {
    while (!exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::ifstream(path, std::ios::binary).read(id.internal, sizeof(id.internal));
  }
  seqparComm_t comm = nullptr;
  expectSuccess(seqparCommInitRank(&comm, fromEnvironment("WORLD_SIZE"), id, rank), "seqparCommInitRank");
  return comm;
}

seqparComm_t meet(const std::string& meeting) {
  if (meeting != "environment") return meetByFile(meeting);
  seqparComm_t comm = nullptr;
  expectSuccess(seqparCommInitEnv(&comm, nullptr), "seqparCommInitEnv");
  return comm;
}

/// suite SEED CASES NODES NODE DIRECT NETWORK HIER: the suite, on a communicator with the expected topology. HIER is
/// "hier" if the ranks of each node are consecutive, and "no-hier" otherwise.
int suite(seqparComm_t comm, const Words& words) {
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  expectSuccess(seqparCommQuery(comm, &info), "seqparCommQuery", comm);
  std::printf("rank %d: node %d of %d, %s; %s\n", info.rank, info.node, info.nodes, info.transport, info.reason);
  const auto same = [&](const char* what, int is, const std::string& expected) {
    expect(is == std::stoi(expected), "seqparCommQuery: ", what, " is ", is, ", expected ", expected);
  };
  same("nodes", info.nodes, words.at(2));
  same("node", info.node, words.at(3));
  same("directPeers", info.directPeers, words.at(4));
  same("networkPeers", info.networkPeers, words.at(5));
  const std::string transport = info.transport;
  expect(transport.find("tcp") != std::string::npos, "seqparCommQuery: transport is \"", transport, "\" without tcp");

  Report report;
  report.rank = info.rank;
  const bool hier = scanOnce(comm, seqparScanHier, 50000, report);
  if (words.at(6) == "hier") {
    expect(hier && report.wrong == 0, "HIER: ", report.text, ", ", report.wrong, " wrong");
  } else {
    expect(!hier && report.result == seqparInvalidUsage, "HIER was not refused: result ", report.result);
  }
  runScanSuite(comm, std::stoull(words.at(0)), std::stoi(words.at(1)));
  expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  return 0;
}

/// Scans once, and then announces that this rank works by writing its process id to `folder`/started.RANK.
Report start(seqparComm_t comm, const std::string& folder) {
  Report report;
  report.rank = fromEnvironment("RANK");
  expect(scanOnce(comm, seqparScanAuto, 1000, report), "the first scan: ", report.text);
  report.result = seqparSuccess;
  std::ofstream(folder + "/started." + std::to_string(report.rank)) << getpid() << std::endl;
  return report;
}

/// until-failure FOLDER: scans until a call fails, which must be a RemoteError, then leaves, which must return.
int untilFailure(seqparComm_t comm, const Words& words) {
  Report report = start(comm, words.at(0));
  scanUntilFailure(comm, report);
  const double leaving = now();
  // Tests both ways to leave a lost communicator.
  report.rank % 2 == 0 ? seqparCommDestroy(comm) : seqparCommAbort(comm);
  const double left = now() - leaving;
  std::printf("failed at %.3f: %s, %ld scans, %d wrong, left in %.3f s: %s\n", report.failedAt,
              seqparGetErrorString(static_cast<seqparResult_t>(report.result)), report.scans, report.wrong, left,
              report.text);
  return report.result == seqparRemoteError && report.wrong == 0 && report.text[0] != '\0' ? 0 : 1;
}

/// True if `mine` is true on any rank.
bool anySays(seqparComm_t comm, bool mine) {
  seqparAllScanParams_t params = SEQPAR_ALL_SCAN_PARAMS_INITIALIZER;
  params.op = seqparScanSum;
  params.heads = params.dk = params.dv = 1;
  const float state = mine ? 1 : 0;
  float total = -1;
  expectSuccess(seqparAllScan(&state, nullptr, nullptr, nullptr, &total, &params, comm, nullptr), "seqparAllScan",
                comm);
  return total != 0;
}

/// until-told FOLDER PAUSE: scans until FOLDER/stop exists; all results must be right, and on some rank a scan must
/// have taken PAUSE seconds: any rank, since a busy machine may delay other ranks for that long.
int untilReported(seqparComm_t comm, const Words& words) {
  Report report = start(comm, words.at(0));
  double longest = 0;
  for (double last = now(); anySays(comm, report.rank == 0 && !exists(words.at(0) + "/stop"));) {
    const int algorithm = static_cast<int>(report.scans % (SEQPAR_SCAN_ALGORITHMS + 1));
    expect(scanOnce(comm, algorithm, 20000, report), "a scan failed: ", report.text);
    expect(report.wrong == 0, "a scan of algorithm ", algorithm, " was wrong");
    longest = std::max(longest, now() - last);
    last = now();
  }
  const bool heldUp = anySays(comm, longest >= std::stod(words.at(1)));
  expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  std::printf("%ld scans, the longest %.3f s\n", report.scans, longest);
  expect(heldUp, "no scan of any rank was held up for ", words.at(1), " s");
  return 0;
}

/// rest FOLDER: does nothing until FOLDER/stop exists; then all algorithms must be right.
int rest(seqparComm_t comm, const Words& words) {
  Report report = start(comm, words.at(0));
  while (!exists(words.at(0) + "/stop")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  for (int algorithm = 0; algorithm <= SEQPAR_SCAN_ALGORITHMS; ++algorithm) {
    expect(scanOnce(comm, algorithm, 20000, report), "a scan failed: ", report.text);
    expect(report.wrong == 0, "a scan of algorithm ", algorithm, " was wrong");
  }
  expectSuccess(seqparCommDestroy(comm), "seqparCommDestroy");
  return 0;
}

std::map<std::string, std::function<int(seqparComm_t, const Words&)>> tasks() {
  return {{"suite", suite}, {"until-failure", untilFailure}, {"until-told", untilReported}, {"rest", rest}};
}

}  // namespace

int main(int argc, char** argv) {
  const Words words(argv + 1, argv + argc);
  if (words == Words{"clock"}) {
    std::printf("%.3f\n", now());
    return 0;
  }
  const auto all = tasks();
  const auto task = words.size() < 2 ? all.end() : all.find(words[1]);
  if (task == all.end()) {
    std::fprintf(stderr, "usage: net_rank clock | net_rank MEETING TASK ..., TASK one of:");
    for (const auto& [name, run] : all) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  try {
    return task->second(meet(words[0]), Words(words.begin() + 2, words.end()));
  } catch (const std::exception& error) {
    std::printf("failed at %.3f: %s\n", now(), error.what());
    return 1;
  }
}
