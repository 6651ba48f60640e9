#include "problem.h"

#include <algorithm>

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

/// All bits set is NaN in every type, which compares unequal to every value.
constexpr int kSpoilt = 0xff;

}  // namespace

Problem::Problem(const seqparAllScanParams_t& params, Outputs outputs, Group& group)
    : Problem(params, outputs, group.comm(),
              ScanData(static_cast<seqparScanOp_t>(params.op), static_cast<seqparDirection_t>(params.direction),
                       shapeOf(params), position(params, group))) {}

Problem::Problem(const seqparAllScanParams_t& params, Outputs outputs, seqparComm_t comm, const ScanData& data)
    : params_(params),
      outputs_(outputs),
      comm_(comm),
      original_(count() * bytesOf(params.stateType), comm_),
      transition_(data.transition().size() * sizeof(float), comm_),
      state_(original_.bytes(), comm_),
      prefix_(wantsPrefix() ? state_.bytes() : 0, comm_),
      total_(wantsTotal() ? state_.bytes() : 0, comm_),
      typedPrefix_(typed(data.prefix(), params.stateType)),
      typedTotal_(typed(data.total(), params.stateType)) {
  encode(data.state(), params.stateType, original_.as<std::byte>());
  original_.upload();
  std::copy(data.transition().begin(), data.transition().end(), transition_.as<float>());
  transition_.upload();
}

AffineMap Problem::map() const {
  return {static_cast<seqparScanOp_t>(params_.op), params_.direction == seqparReverse, shapeOf(params_)};
}

size_t Problem::count() const {
  return shapeOf(params_).elements();
}

Buffer* Problem::prefixBuffer(bool inPlace) {
  if (!wantsPrefix()) return nullptr;
  return inPlace ? &state_ : &prefix_;
}

Buffer* Problem::totalBuffer(bool inPlace) {
  if (!wantsTotal()) return nullptr;
  return inPlace && !wantsPrefix() ? &state_ : &total_;
}

void Problem::reset() {
  state_.copyFrom(original_);
  prefix_.fill(kSpoilt);
  total_.fill(kSpoilt);
}

size_t Problem::wrong(bool inPlace) {
  const auto wrongIn = [&](Buffer* got, const std::vector<std::byte>& want) -> size_t {
    if (got == nullptr) return 0;
    got->download();
    return countWrong(got->as<std::byte>(), want.data(), count(), params_.stateType);
  };
  return wrongIn(prefixBuffer(inPlace), typedPrefix_) + wrongIn(totalBuffer(inPlace), typedTotal_);
}

size_t Problem::wrongPrefix(const void* got) const {
  return countWrong(got, typedPrefix_.data(), count(), params_.stateType);
}

size_t Problem::wrongTotal(const void* got) const {
  return countWrong(got, typedTotal_.data(), count(), params_.stateType);
}

Work libraryWork(std::shared_ptr<Problem> problem, int algorithm, int blocks, bool inPlace, void* stream) {
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
  work.wrong = [problem, inPlace] { return problem->wrong(inPlace); };
  work.repeatable = !inPlace;
  return work;
}

}  // namespace seqpar::perf
