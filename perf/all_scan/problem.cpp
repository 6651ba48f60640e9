#include "problem.h"

#include <cstring>

#include "common/values.h"

namespace seqpar::perf {
namespace {

int position(const seqparAllScanParams_t& params, const Group& group) {
  return params.direction == seqparForward ? group.rank() : group.size() - 1 - group.rank();
}

Shape shapeOf(const seqparAllScanParams_t& params) {
  return {static_cast<size_t>(params.heads), static_cast<size_t>(params.dk), static_cast<size_t>(params.dv)};
}

std::vector<std::byte> typed(const std::vector<float>& values, int type) {
  std::vector<std::byte> bytes(values.size() * bytesOf(type));
  encode(values, type, bytes.data());
  return bytes;
}

/// All bits set is NaN in every type, which nothing equals.
void spoil(Buffer& buffer) {
  if (buffer.bytes() > 0) std::memset(buffer.data(), 0xff, buffer.bytes());
}

}  // namespace

Problem::Problem(const seqparAllScanParams_t& params, Outputs outputs, Group& group)
    : params_(params),
      outputs_(outputs),
      comm_(group.comm()),
      data_(static_cast<seqparScanOp_t>(params.op), static_cast<seqparDirection_t>(params.direction), shapeOf(params),
            position(params, group)),
      state_(count() * bytesOf(params.stateType), comm_),
      prefix_(wantsPrefix() ? state_.bytes() : 0, comm_),
      total_(wantsTotal() ? state_.bytes() : 0, comm_),
      typedState_(typed(data_.state(), params.stateType)),
      typedPrefix_(typed(data_.prefix(), params.stateType)),
      typedTotal_(typed(data_.total(), params.stateType)) {}

size_t Problem::count() const {
  return shapeOf(params_).elements();
}

void* Problem::prefix(bool inPlace) {
  if (!wantsPrefix()) return nullptr;
  return inPlace ? state_.data() : prefix_.data();
}

void* Problem::total(bool inPlace) {
  if (!wantsTotal()) return nullptr;
  return inPlace && !wantsPrefix() ? state_.data() : total_.data();
}

void Problem::reset() {
  std::memcpy(state_.data(), typedState_.data(), typedState_.size());
  spoil(prefix_);
  spoil(total_);
}

size_t Problem::wrong(bool inPlace) {
  size_t count = 0;
  if (wantsPrefix()) count += wrongPrefix(prefix(inPlace));
  if (wantsTotal()) count += wrongTotal(total(inPlace));
  return count;
}

size_t Problem::wrongPrefix(const void* got) const {
  return countWrong(got, typedPrefix_.data(), count(), params_.stateType);
}

size_t Problem::wrongTotal(const void* got) const {
  return countWrong(got, typedTotal_.data(), count(), params_.stateType);
}

Work libraryWork(std::shared_ptr<Problem> problem, int algorithm, int blocks, bool inPlace, seqparStream_t stream) {
  Work work;
  seqparAllScanParams_t params = problem->params();
  params.algorithm = algorithm;
  params.blocks = blocks;
  work.prepare = [problem] { problem->reset(); };
  work.run = [problem, params, inPlace, stream] {
    require(seqparAllScan(problem->state(), problem->transition(), nullptr, problem->prefix(inPlace),
                          problem->total(inPlace), &params, problem->comm(), stream),
            "seqparAllScan", problem->comm());
  };
  if (stream != nullptr) {
    work.finish = [problem, stream] {
      require(seqparStreamSynchronize(stream), "seqparStreamSynchronize", problem->comm());
    };
  }
  work.wrong = [problem, inPlace] { return problem->wrong(inPlace); };
  work.repeatable = !inPlace;
  return work;
}

}  // namespace seqpar::perf
