// redistribute_perf: rows moved from one layout to another; the peer is MPI_Alltoallv.
#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "common/buffer.h"
#include "common/session.h"
#include "exchange/exchange.h"
#include "seqpar/layout.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

const Names kKinds{{"contiguous", seqparContiguous}, {"zigzag", seqparZigzag}, {"striped", seqparStriped}};

struct Choices {
  std::vector<int> from{seqparContiguous};
  std::vector<int> to{seqparZigzag};
  size_t rowBytes = 8192;
  int64_t stripe = 1;
};

/// The tokens of a rank in a layout, and each token's rank in another layout.
struct Place {
  Place(const seqparLayout_t& layout, const seqparLayout_t& other, int rank) {
    int64_t length = 0;
    require(seqparLayoutLocalLength(&layout, rank, &length), "seqparLayoutLocalLength");
    tokens.resize(static_cast<size_t>(length));
    peers.resize(tokens.size());
    require(seqparLayoutGlobals(&layout, rank, tokens.data()), "seqparLayoutGlobals");
    for (size_t i = 0; i < tokens.size(); ++i) {
      int64_t local = 0;
      require(seqparLayoutToLocal(&other, tokens[i], &peers[i], &local), "seqparLayoutToLocal");
    }
  }

  std::vector<int64_t> tokens;
  std::vector<int> peers;
};

/// One rank's redistribution; equal data for the library and for MPI.
struct Problem {
  Problem(int fromKind, int toKind, size_t bytes, const Choices& choices, Group& group)
      : comm(group.comm()),
        rowBytes(std::clamp<size_t>(bytes, 1, choices.rowBytes)),
        from(layoutOf(fromKind, bytes, choices, group.size())),
        to(layoutOf(toKind, bytes, choices, group.size())),
        placeBefore(from, to, group.rank()),
        placeAfter(to, from, group.rank()),
        send(placeBefore.tokens.size() * rowBytes, comm),
        receive(placeAfter.tokens.size() * rowBytes, comm) {
    setRows(send.as<unsigned char>(), placeBefore.tokens);
    send.upload();
    const auto row = static_cast<int64_t>(rowBytes);
    require(seqparRedistributePlanCreate(&plan, &from, &to, 1, nullptr, &row, comm), "seqparRedistributePlanCreate",
            comm);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;
  ~Problem() { seqparRedistributePlanDestroy(plan); }

  seqparLayout_t layoutOf(int kind, size_t bytes, const Choices& choices, int ranks) const {
    seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
    layout.kind = kind;
    layout.ranks = ranks;
    layout.tokens = static_cast<int64_t>(bytes / rowBytes) * ranks;
    layout.stripe = choices.stripe;
    return layout;
  }

  unsigned char byteOf(int64_t token, size_t index) const {
    return static_cast<unsigned char>((static_cast<size_t>(token) * 97 + index * 31 + (index >> 7) + 1) & 0x7f);
  }
  void setRows(unsigned char* rows, const std::vector<int64_t>& tokens) const {
    for (const int64_t token : tokens) {
      for (size_t i = 0; i < rowBytes; ++i) *rows++ = byteOf(token, i);
    }
  }
  size_t wrong(const std::vector<int64_t>& tokens) {
    receive.download();
    size_t count = 0;
    const auto* got = receive.as<unsigned char>();
    for (const int64_t token : tokens) {
      for (size_t i = 0; i < rowBytes; ++i) count += *got++ == byteOf(token, i) ? 0 : 1;
    }
    return count;
  }

  seqparComm_t comm;
  size_t rowBytes;
  seqparLayout_t from, to;
  Place placeBefore, placeAfter;
  Buffer send, receive;
  seqparRedistributePlan_t plan = nullptr;
};

/// A work without its run().
Work workOn(const std::shared_ptr<Problem>& problem, const std::vector<int64_t>& expected) {
  Work work;
  work.prepare = [problem] { problem->receive.fill(0xff); };
  work.wrong = [problem, expected] { return problem->wrong(expected); };
  return work;
}

Work libraryWork(const std::shared_ptr<Problem>& problem, void* stream) {
  Work work = workOn(problem, problem->placeAfter.tokens);
  work.run = [problem, stream] {
    const void* send = problem->send.data();
    void* receive = problem->receive.data();
    require(seqparRedistribute(problem->plan, &send, &receive, stream), "seqparRedistribute", problem->comm);
  };
  return work;
}

/// One side of an all-to-all: rows by peer, and each row's index in the layout.
struct Side {
  Side(const Place& place, int ranks, size_t rowBytes)
      : order(place.tokens.size()), counts(static_cast<size_t>(ranks)), offsets(counts.size()) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place.peers[a] < place.peers[b]; });
    if (order.size() * rowBytes > std::numeric_limits<int>::max()) {
      throw std::runtime_error("the peers count bytes by int; expected less than 2G a rank");
    }
    for (const int peer : place.peers) counts[static_cast<size_t>(peer)] += static_cast<int>(rowBytes);
    std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
  }

  std::vector<size_t> order;
  std::vector<int> counts, offsets;
};

/// The index of each token if rows are ordered by peer.
std::vector<int64_t> byPeer(const Place& place, const Side& side) {
  std::vector<int64_t> tokens(side.order.size());
  std::transform(side.order.begin(), side.order.end(), tokens.begin(), [&](size_t at) { return place.tokens[at]; });
  return tokens;
}

/// Sends and receives in one group, with rows ordered by peer on both sides.
Work ncclWork(const std::shared_ptr<Problem>& problem, const std::shared_ptr<Nccl>& nccl, int ranks) {
  Problem& p = *problem;
  const Side out(p.placeBefore, ranks, p.rowBytes);
  const Side in(p.placeAfter, ranks, p.rowBytes);
  const auto packed = std::make_shared<Buffer>(p.send.bytes(), p.comm);
  p.setRows(packed->as<unsigned char>(), byPeer(p.placeBefore, out));
  packed->upload();
  Work work = workOn(problem, byPeer(p.placeAfter, in));
  work.run = [=] {
    nccl->groupStart();
    for (size_t peer = 0; peer < out.counts.size(); ++peer) {
      const auto* from = static_cast<const std::byte*>(packed->data()) + out.offsets[peer];
      auto* into = static_cast<std::byte*>(problem->receive.data()) + in.offsets[peer];
      if (out.counts[peer] > 0) nccl->send(from, static_cast<size_t>(out.counts[peer]), static_cast<int>(peer));
      if (in.counts[peer] > 0) nccl->receive(into, static_cast<size_t>(in.counts[peer]), static_cast<int>(peer));
    }
    nccl->groupEnd();
  };
  return work;
}

#ifdef SEQPAR_PERF_MPI
/// MPI_Alltoallv alone, with rows ordered by peer on both sides; or including the copies to and from that order.
Work mpiWork(const std::shared_ptr<Problem>& problem, int ranks, bool packs) {
  Problem& p = *problem;
  const auto out = std::make_shared<Side>(p.placeBefore, ranks, p.rowBytes);
  const auto in = std::make_shared<Side>(p.placeAfter, ranks, p.rowBytes);
  const auto packed = std::make_shared<std::vector<unsigned char>>(p.send.bytes());
  const auto arrived = std::make_shared<std::vector<unsigned char>>(packs ? p.receive.bytes() : 0);
  p.setRows(packed->data(), byPeer(p.placeBefore, *out));
  Work work = workOn(problem, packs ? p.placeAfter.tokens : byPeer(p.placeAfter, *in));
  work.run = [=] {
    const size_t row = problem->rowBytes;
    const auto* send = problem->send.as<unsigned char>();
    auto* receive = problem->receive.as<unsigned char>();
    for (size_t i = 0; packs && i < out->order.size(); ++i) {
      std::memcpy(packed->data() + i * row, send + out->order[i] * row, row);
    }
    auto* const target = packs ? arrived->data() : receive;
    MPI_Alltoallv(packed->data(), out->counts.data(), out->offsets.data(), MPI_BYTE, target, in->counts.data(),
                  in->offsets.data(), MPI_BYTE, MPI_COMM_WORLD);
    for (size_t i = 0; packs && i < in->order.size(); ++i) {
      std::memcpy(receive + in->order[i] * row, arrived->data() + i * row, row);
    }
  };
  return work;
}
#endif

void runPair(Session& session, const Choices& choices, int from, int to, size_t size,
             const std::shared_ptr<Nccl>& nccl) {
  const auto problem = std::make_shared<Problem>(from, to, size, choices, session.group);
  std::vector<Case> cases;
  const auto add = [&](const char* by, Work work) {
    Row row;
    row.count = static_cast<size_t>(problem->from.tokens);
    row.bytes = row.count * problem->rowBytes / static_cast<size_t>(session.group.size());
    row.labels = {nameOf(from, kKinds), nameOf(to, kKinds), by};
    cases.push_back({row, std::move(work), {}});
  };
  add("seqpar", libraryWork(problem, session.stream));
  if (nccl != nullptr) add("nccl", ncclWork(problem, nccl, session.group.size()));
#ifdef SEQPAR_PERF_MPI
  if (session.settings.peers && session.group.gpu() == nullptr) {
    add("mpi", mpiWork(problem, session.group.size(), false));
    add("mpi_pack", mpiWork(problem, session.group.size(), true));
  }
#endif
  std::vector<Row> rows = session.measure(cases);
  for (Row& row : rows) {
    row.extras = {row.outOfPlace.us / rows[0].outOfPlace.us};
    session.report.row(row);
  }
}

void runAll(Session& session, const Choices& choices) {
  const auto nccl = ncclPeer(session);
  for (const int from : choices.from) {
    for (const int to : choices.to) {
      for (const size_t size : session.settings.sizes()) runPair(session, choices, from, to, size, nccl);
    }
  }
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  Choices choices;
  Program program;
  program.name = "redistribute_perf";
  program.summary =
      "seqparRedistribute: moves rows, SIZE bytes per rank, from one layout to another. Peers: mpi is MPI_Alltoallv\n"
      "alone, of equal volume with rows already ordered by peer; mpi_pack includes the copies; nccl is ncclSend and\n"
      "ncclRecv in one group, with rows ordered as for mpi.";
  program.knowsGpus = true;
  program.addOptions = [&](OptionParser& parser) {
    parser.addNames(0, "from", "contiguous, zigzag, striped or all (contiguous)", kKinds, choices.from);
    parser.addNames(0, "to", "contiguous, zigzag, striped or all (zigzag)", kKinds, choices.to);
    parser.add(0, "row", "BYTES", "bytes of a token's row; at most SIZE is used (8K)",
               [&](const std::string& text) { choices.rowBytes = parseBytes(text); });
    parser.add(0, "stripe", "TOKENS", "block of striped layouts (1)",
               [&](const std::string& text) { choices.stripe = parseInteger(text, 1, 1 << 30); });
  };
  program.checkOptions = [&](Settings&) {
    if (choices.rowBytes == 0) throw UsageError("option --row: 0 bytes; expected 1 or more");
  };
  program.layout = [] {
    return Layout{{{"from", "", 10}, {"to", "", 10}, {"by", "", 8}}, false, {{"/seqpar", "(x)", 8}}};
  };
  program.body = [&](Session& session) { runAll(session, choices); };
  return runProgram(program, argc, argv);
}
