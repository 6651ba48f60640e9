// Machine files of GPUs. Programs of All-Scan are fitted to two ranks.
#include <algorithm>
#include <cmath>

#include "machine_file.h"

#ifdef SEQPAR_PERF_CUDA
#include <cuda_runtime_api.h>
#endif

namespace seqpar::perf {
namespace {

constexpr size_t kKib = 1024, kMib = kKib * kKib;
constexpr double kLeastUs = 1e-3;  // of a difference of two times

double processorsOfGpu() {
#ifdef SEQPAR_PERF_CUDA
  int device = 0, count = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess) {
    return count;
  }
#endif
  return 132;
}

double archOfGpu() {
#ifdef SEQPAR_PERF_CUDA
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess) {
    return 10 * major + minor;
  }
#endif
  return 90;
}

double microseconds(size_t bytes, double gbs) {
  return static_cast<double>(bytes) / gbs * 1e-3;
}

double terabytes(size_t bytes, double us) {
  return static_cast<double>(bytes) / us * 1e-6;
}

struct Links {
  double alpha = 0, gbs = 0, copyGbs = 0;
};

Json ncclPart(Samples& samples) {
  using Operation = Samples::NcclOperation;
  constexpr double kGatherHop = 1.1;  // not visible with two ranks
  constexpr size_t kSmall = 64 * kKib, kLarge = 32 * kMib;
  const double shift = samples.nccl(Operation::Shift, kSmall);
  if (std::isnan(shift)) {
    return {{"start_us", number(12, "guess")},       {"hop_us", number(9.9, "guess")},
            {"gbs", number(313, "guess")},           {"ctas", number(24, "guess")},
            {"gather_start_us", number(8, "guess")}, {"gather_hop_us", number(kGatherHop, "guess")},
            {"gather_gbs", number(300, "guess")}};
  }
  const double hop = samples.nccl(Operation::PingPong, kSmall);
  const double large = samples.nccl(Operation::Shift, kLarge);
  const double gather = samples.nccl(Operation::AllGather, kSmall), all = samples.nccl(Operation::AllGather, kLarge);
  const auto rate = [&](double us, double small) { return static_cast<double>(kLarge - kSmall) / (us - small) * 1e-3; };
  return {{"start_us", number(std::max(0.0, shift - hop), measured("shift of 64 KiB less a hop"))},
          {"hop_us", number(hop, measured("ping-pong of 64 KiB, one way"))},
          {"gbs", number(rate(large, shift), measured("shift of 32 MiB"))},
          {"ctas", number(24, "guess: channels of NCCL 2.28")},
          {"gather_start_us", number(std::max(0.0, gather - kGatherHop), measured("all-gather of 64 KiB, two ranks"))},
          {"gather_hop_us", number(kGatherHop, "guess: not visible with two ranks")},
          {"gather_gbs", number(rate(all, gather), measured("all-gather of 32 MiB"))}};
}

/// A program of two ranks as the simulator runs it: states that the slowest rank combines, and that its link carries.
struct ScanWork {
  int algorithm;
  double combined, sent, hops;
};

constexpr ScanWork kScanWorks[] = {{seqparScanOneshot, 1, 1, 1},
                                   {seqparScanTransposed, 1, 0.5, 2},
                                   {seqparScanDoubling, 2, 1, 1},
                                   {seqparScanLasp1, 1.5, 1, 1},
                                   {seqparScanLasp2, 2, 1.55, 1}};

struct ScanConstants {
  double startUs = 0, rowsUs = 0, tbs = 0;
};

/// Start, second row and rate, from states of 64 KiB to 16 MiB.
ScanConstants scanConstants(Samples& samples, const ScanWork& work, const Links& links) {
  const auto diag = [&](size_t bytes) { return samples.scan(seqparScanDiag, work.algorithm, bytes); };
  constexpr size_t kSmall = 64 * kKib, kRow = 512 * kKib, kRows = kMib, kLarge = 16 * kMib;
  const double small = diag(kSmall), row = diag(kRow), rows = diag(kRows), large = diag(kLarge);
  const auto sent = [&](size_t bytes) { return work.sent * microseconds(bytes, links.gbs); };
  ScanConstants constants;
  constants.tbs = work.combined * terabytes(kLarge - kRows, std::max(kLeastUs, large - rows - sent(kLarge - kRows)));
  const auto all = [&](size_t bytes) { return sent(bytes) + work.combined * microseconds(bytes, constants.tbs * 1e3); };
  constants.rowsUs = std::max(0.0, rows - row - all(kRows - kRow));
  constants.startUs = std::max(0.0, small - work.hops * links.alpha - all(kSmall));
  return constants;
}

Json scanPart(Samples& samples, const Links& links) {
  const ScanConstants chain = scanConstants(samples, {seqparScanChain, 1, 1, 1}, links);
  Json programs = Json::object();
  for (const ScanWork& work : kScanWorks) {
    const ScanConstants own = scanConstants(samples, work, links);
    programs[seqparScanAlgorithmName(work.algorithm)] = {
        {"start_us", number(std::max(0.0, own.startUs - chain.startUs), measured("64 KiB, beyond CHAIN's start"))},
        {"rows_us", number(own.rowsUs, measured("1 MiB less 512 KiB, two ranks"))},
        {"rate_tbs", number(own.tbs, measured("16 MiB less 1 MiB, two ranks"))}};
  }
  // The kernel multiplies a panel of a channel when it has arrived, while the next ones arrive: 4 panels of 2 MiB.
  constexpr size_t kMatrix = 2 * kMib, kPanels = 4;
  constexpr double kFlopsOfByte = 2 * 128 / 4.0;
  const double products = samples.scan(seqparScanMatrix, seqparScanChain, kMatrix) - chain.startUs - links.alpha -
                          microseconds(kMatrix / kPanels, links.gbs);
  return {{"peer_us", number(0.25, "the library's model (src/scan/peers_model.h)")},
          {"programs", std::move(programs)},
          {"rows_us", number(chain.rowsUs, measured("CHAIN of 1 MiB less 512 KiB, two ranks"))},
          {"call_us", number(chain.startUs, measured("CHAIN of 64 KiB, two ranks"))},
          {"hop_us", number(0.1, "the library's model (src/scan/peers_model.h)")},
          {"stream_tbs", number(chain.tbs, measured("CHAIN of 16 MiB less 1 MiB, two ranks"))},
          {"fold_tbs", number(1, "guess")},
          {"chunk_kib", number(16, "guess")},
          {"matrix_tflops", number(kFlopsOfByte * static_cast<double>(kMatrix) / std::max(kLeastUs, products) * 1e-6,
                                   measured("CHAIN of MATRIX of 2 MiB, two ranks"))}};
}

}  // namespace

Json gpuMachine(Samples& samples) {
  Group& group = samples.group();
  if (group.size() < 2) throw UsageError("seqpar_measure: one GPU has no links; expected two or more GPUs of one host");
  constexpr size_t kCopy = 256 * kMib, kHeads = 32;
  Links links;
  const auto limits = group.gpu()->limits();
  links.alpha = limits.alphaUs;
  links.gbs = limits.bandwidth * 1e-9;
  if (links.gbs == 0) throw UsageError("seqpar_measure: the GPUs do not map each other's memory");
  links.copyGbs = static_cast<double>(kCopy) / samples.copyToNext(kCopy) * 1e-3;
  const double local = samples.copy(kCopy);
  const double byKernels = samples.ring(kMib), byCopies = samples.ring(4 * kMib), exchange = samples.gather(64 * kKib);

  Json json;
  json["node"] = {{"gpus", number(group.size(), measured("the ranks of this run"))}};
  Json& softmax = json["softmax"] = Json::object();
  addSoftmax(softmax, samples, seqparBfloat16, "", kHeads, {1024, 2048, 4096, 8192, 16384, 32768});
  const double attention = softmax["full forward"]["points"][4][1].get<double>();
  json["gpu"] = {{"sms", number(processorsOfGpu(), measured("by the driver"))},
                 {"hbm_gbs", number(2 * static_cast<double>(kCopy) / local * 1e-3,
                                    measured("local copy of 256 MiB, read and written"))},
                 {"launch_us", number(2, "guess: gap between two kernels of a stream")},
                 {"api_us", number(2, "guess: host time of an enqueued kernel")},
                 {"gemm_tflops", number(attention, "guess: as softmax attention, forward, 16K tokens")},
                 {"arch", number(archOfGpu(), measured("by the driver"))}};
  json["local"] = {
      {"direct", number(1, measured("the GPUs map each other's memory"))},
      {"alpha_us", number(links.alpha, measured("flag to a peer, one way"))},
      {"gbs", number(links.gbs, measured("stores of all SMs to one peer"))},
      {"port_gbs", number(links.copyGbs, measured("copy engine, 256 MiB to one peer"))},
      {"copy_gbs", number(links.copyGbs, measured("copy engine, 256 MiB to one peer"))},
      {"copy_start_us", number(std::max(0.0, byCopies - microseconds(4 * kMib, links.copyGbs) - links.alpha),
                               measured("ring step of 4 MiB by copy engines"))},
      {"call_us", number(std::max(0.0, byKernels - microseconds(kMib, links.gbs) - links.alpha),
                         measured("ring step of 1 MiB by kernels"))},
      {"exchange_us", number(std::max(0.0, exchange - microseconds(32 * kKib, links.gbs) - links.alpha),
                             measured("all-gather of 64 KiB"))}};
  json["nccl"] = ncclPart(samples);
  json["net"] = guessedNetwork(45);
  json["scan"] = scanPart(samples, links);
  json["linear"] = {{"states_share", number(0.35, "guess")},
                    {"families", linearFamilies(samples, seqparBfloat16, kHeads, {4096, 8192, 16384})}};
  return json;
}

}  // namespace seqpar::perf
