// Common code of alltoall_perf, gather_perf and halo_perf: buffers, their expected contents, and rows.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "common/nccl.h"
#include "common/session.h"
#include "common/values.h"

namespace seqpar::perf {

using Bytes = std::vector<unsigned char>;

/// The byte at `index` of a rank's data.
inline unsigned char byteAt(size_t index, int rank = 0) {
  return static_cast<unsigned char>((index * 31 + static_cast<size_t>(rank) * 97 + (index >> 8) + 1) & 0x7f);
}

/// One rank's input and output of a movement.
struct Movement {
  Movement(size_t sendBytes, size_t receiveBytes, Group& aGroup)
      : group(aGroup), send(sendBytes, aGroup.comm()), receive(receiveBytes, aGroup.comm()) {}

  /// Sets the input: at(index) is the byte at each index.
  void setInput(const std::function<unsigned char(size_t)>& at) {
    for (size_t i = 0; i < send.bytes(); ++i) send.as<unsigned char>()[i] = at(i);
    send.upload();
  }

  Group& group;
  Buffer send, receive;
};

/// A work without run(): `expected` is the correct content of `receive`.
inline Work workOn(const std::shared_ptr<Movement>& movement, Bytes expected) {
  Work work;
  work.prepare = [movement] { movement->receive.fill(0xff); };
  work.wrong = [movement, expected = std::make_shared<const Bytes>(std::move(expected))] {
    movement->receive.download();
    size_t count = 0;
    for (size_t i = 0; i < expected->size(); ++i) {
      count += movement->receive.as<unsigned char>()[i] == (*expected)[i] ? 0 : 1;
    }
    return count;
  };
  return work;
}

/// Rows of one size, measured in turns; the first row is the library's.
class Rows {
 public:
  /// `type`: a seqparDataType_t.
  Rows(Session& session, size_t bytes, std::string operation, int type)
      : session_(session), bytes_(bytes), operation_(std::move(operation)), type_(type) {}

  void add(const char* by, Work work) {
    Row row;
    row.bytes = bytes_;
    row.count = bytes_ / bytesOf(type_);
    row.labels = {nameOf(type_, typeNames()), operation_, by};
    row.kind = cases_.empty() ? RowKind::Library : RowKind::Peer;
    cases_.push_back({row, std::move(work), {}});
  }

  void measure() {
    std::vector<Row> rows = session_.measure(cases_);
    for (Row& row : rows) {
      row.extras = {row.outOfPlace.us / rows[0].outOfPlace.us};
      session_.report.row(row);
    }
  }

  static Layout layout() {
    return {{{"type", "", 8, InPlot::Panel}, {"operation", "", 13}, {"by", "", 8}}, false, {{"/seqpar", "(x)", 8}}};
  }

 private:
  Session& session_;
  size_t bytes_;
  std::string operation_;
  int type_;
  std::vector<Case> cases_;
};

/// NCCL if peers are requested and the ranks are on GPUs; else null. Notes the reason if it is not available. As
/// makeNccl().
inline std::shared_ptr<Nccl> ncclPeer(Session& session, std::span<const int> members = {}) {
  if (!session.settings.peers || session.group.gpu() == nullptr) return nullptr;
  std::string reason;
  std::shared_ptr<Nccl> nccl = makeNccl(session.group, reason, members);
  if (nccl == nullptr) session.report.note("no NCCL peer: " + reason);
  return nccl;
}

/// A program that prints Rows; its options and its body are not set.
inline Program exchangeProgram(std::string name, std::string summary) {
  Program program;
  program.name = std::move(name);
  program.summary = std::move(summary);
  program.knowsGpus = true;
  program.layout = Rows::layout;
  return program;
}

}  // namespace seqpar::perf
