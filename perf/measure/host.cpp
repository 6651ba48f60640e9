// Machine files of hosts.
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "machine_file.h"

namespace seqpar::perf {
namespace {

constexpr size_t kKib = 1024, kMib = kKib * kKib;

/// Of this process: fewer than the machine's if it is bound to some.
int processorsOfProcess() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? std::max(1, CPU_COUNT(&allowed)) : 1;
}

/// The latency of a hop between twice as many ranks as processors, as threads of this process.
double sharedAlphaUs(int processors) {
  seqparUniqueId id{};
  require(seqparGetUniqueId(&id), "seqparGetUniqueId");
  const int ranks = 2 * processors;
  double alpha = 0;
  const auto rankBody = [&](int rank) {
    seqparComm_t comm = nullptr;
    if (seqparCommInitRank(&comm, ranks, id, rank) != seqparSuccess) return;
    seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
    if (rank == 0 && seqparCommQuery(comm, &info) == seqparSuccess) alpha = info.alphaUs;
    seqparCommDestroy(comm);
  };
  std::vector<std::jthread> others;
  for (int rank = 1; rank < ranks; ++rank) others.emplace_back(rankBody, rank);
  rankBody(0);
  others.clear();
  return alpha;
}

/// A time without the start that another sample contains: on a busy machine that sample may be the longer one.
double without(double us, double start) {
  return std::max(us - start, us / 10);
}

}  // namespace

Json hostMachine(Samples& samples) {
  Group& group = samples.group();
  if (group.size() < 2) throw UsageError("seqpar_measure: one rank has no links; expected two ranks of one host");
  seqparCommInfo_t info = SEQPAR_COMM_INFO_INITIALIZER;
  require(seqparCommQuery(group.comm(), &info), "seqparCommQuery", group.comm());
  const int ofProcess = processorsOfProcess();
  const int processors = std::max(ofProcess, group.size());  // each rank may be bound to one
  samples.spread();
  const double alpha = info.alphaUs;
  const double call = std::max(0.0, samples.shift(8) - alpha);

  // Large tensors are read in place, from 128 KiB on or, if ranks prefer messages, from 2 MiB on. A rank copies each
  // message in and out: twice the bytes. Sizes: of the sent and the received tensor.
  std::vector<std::pair<double, double>> copies, reads, own, hops;
  const auto both = [](size_t bytes) { return 2.0 * static_cast<double>(bytes); };
  for (const size_t bytes : {2 * kMib, 4 * kMib, 8 * kMib, 16 * kMib}) {
    reads.emplace_back(both(bytes), both(bytes) / 2 / without(samples.shift(bytes), call + 2 * alpha) * 1e-3);
  }
  for (const size_t bytes : {size_t{512}, 4 * kKib, 32 * kKib, 64 * kKib}) {
    copies.emplace_back(both(bytes), both(bytes) / without(samples.shift(bytes), call + alpha) * 1e-3);
  }
  std::vector<std::pair<double, double>> medium;
  for (const size_t bytes : {128 * kKib, 512 * kKib, kMib}) {
    medium.emplace_back(both(bytes), both(bytes) / 2 / without(samples.shift(bytes), call + alpha) * 1e-3);
  }
  // 1 MiB takes about as long as by two copies, or as reading 2 MiB by its half.
  const double asMessages = std::abs(std::log(2 * medium.back().second / copies.back().second));
  const bool sendsMessages = asMessages < std::abs(std::log(medium.back().second / reads.front().second));
  for (const auto& [x, gbs] : medium) {
    if (sendsMessages) copies.emplace_back(x, 2 * gbs);
  }
  if (!sendsMessages) reads.insert(reads.begin(), medium.begin(), medium.end());
  for (const size_t bytes : {4 * kKib, 64 * kKib, kMib, 4 * kMib, 16 * kMib}) {
    own.emplace_back(both(bytes), both(bytes) / 2 / samples.copy(bytes) * 1e-3);
  }
  // ONESHOT of two ranks, call after call: the second folds the first one's state and finishes its own.
  constexpr double kHops = 0.35 + 0.6;
  for (const size_t bytes : {kKib, 16 * kKib, 256 * kKib, 4 * kMib}) {
    const double us = without(samples.scan(seqparScanDiag, seqparScanOneshot, bytes), call + alpha);
    hops.emplace_back(static_cast<double>(bytes), kHops * static_cast<double>(bytes) / us * 1e-3);
  }
  constexpr size_t kMatrixBytes = size_t{512} << 10, kCopy = size_t{64} << 20, kSmall = 512;
  constexpr double kFlopsOfByte = 2 * 128 / 4.0;
  const double matrix = without(samples.scan(seqparScanMatrix, seqparScanChain, kMatrixBytes), call + alpha);
  const double thread = std::max(0.0, samples.ring(kSmall) - samples.shift(kSmall));
  const double copy = samples.copy(kCopy);
  const double shared = group.rank() == 0 ? sharedAlphaUs(ofProcess) : 0;
  group.barrier();

  Json json;
  json["node"] = {{"processors", number(processors, measured("by the system"))}};
  json["host"] = {
      {"call_us", number(call, measured("shift of 8 bytes, less the hop"))},
      {"thread_us", number(thread, measured("ring step less shift of 512 bytes"))},
      {"alpha_us", number(alpha, measured("the library's link measurement, two ranks"))},
      {"switch_us", number(std::max(0.0, shared - alpha) / 2,
                           measured("link measurement, two ranks a processor, less a hop; half: each of the two"))},
      {"sends_messages", number(sendsMessages ? 1 : 0, measured("shift of 1 MiB beside 64 KiB and 2 MiB"))},
      {"message_us", number(info.overheadUs, measured("the library's link measurement"))},
      {"link_gbs", number(info.bandwidth * 1e-9, measured("the library's link measurement"))},
      {"memory_gbs",
       number(2 * static_cast<double>(kCopy) / copy * 1e-3, measured("memcpy of 64 MiB, all processors"))},
      {"copy_gbs", curve(copies, measured("shift, two ranks"))},
      {"read_gbs", curve(reads, measured("shift, two ranks"))},
      {"own_gbs", curve(own, measured("memcpy, all processors"))},
      {"scan_gbs", curve(hops, measured("ONESHOT of DIAG, two ranks"))},
      {"matrix_tflops", number(kFlopsOfByte * static_cast<double>(kMatrixBytes) / matrix * 1e-6,
                               measured("CHAIN of MATRIX, two ranks"))},
      {"gemm_tflops", Json()}};
  json["net"] = guessedNetwork(10);
  Json& softmax = json["softmax"] = Json::object();
  constexpr size_t kHeads = 8;
  const bool quick = samples.quick();
  const auto sides = quick ? std::vector<size_t>{32, 64} : std::vector<size_t>{256, 1024, 2048};
  addSoftmax(softmax, samples, seqparFloat32, "fp32 ", kHeads, sides);
  addSoftmax(softmax, samples, seqparBfloat16, "bf16 ", kHeads, sides);
  json["host"]["gemm_tflops"] =
      number(softmax["bf16 full forward"]["points"].back()[1].get<double>(), "guess: as softmax attention in bf16");
  json["linear"] = {
      {"states_share", number(0.35, "guess")},
      {"families", linearFamilies(samples, seqparFloat32, kHeads,
                                  quick ? std::vector<size_t>{64, 128} : std::vector<size_t>{512, 2048})}};
  return json;
}

}  // namespace seqpar::perf
