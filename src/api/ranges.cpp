// Plans that gather ranges of tokens, and their execution.
#include <algorithm>
#include <array>

#include "api/boundary.h"
#include "api/buffers.h"
#include "api/shards.h"
#include "base/convert.h"
#include "comm/agreement.h"
#include "exchange/backend.h"
#include "exchange/ranges.h"

using namespace seqpar;

namespace {

struct RangesPlan {
  seqparComm_t handle = nullptr;
  std::weak_ptr<Communicator> comm;
  seqparDataType_t type = seqparFloat32;
  std::shared_ptr<const Route> gather;
  std::shared_ptr<const Reduction> scatter;
  size_t shardBytes = 0, partBytes = 0;
  int64_t digest = 0;  ///< of everything that must be equal on all ranks
};

HandleTable<RangesPlan, seqparRangesPlan_t>& plans() {
  // Never destroyed, like the tables of handles.h.
  return handleTable<RangesPlan, seqparRangesPlan_t>();
}

/// Throws if two of a rank's ranges have a common token.
void requireApart(const char* call, int64_t rank, std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.count == 0; });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].first + ranges[i - 1].count <= ranges[i].first) continue;
    fail(seqparInvalidArgument, call, ": two ranges of rank ", rank, " contain token ", ranges[i].first,
         ", expected at most one");
  }
}

RangesOfMembers readRanges(const char* call, const int64_t* counts, const seqparRange_t* ranges, const Shards& shards) {
  requirePointer(call, "rangesOfRanks", counts);
  const auto total = static_cast<int64_t>(shards.total());
  RangesOfMembers all(shards.members());
  size_t next = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (counts[rank] < 0) {
      fail(seqparInvalidArgument, call, ": rangesOfRanks[", rank, "] is ", counts[rank], ", expected 0 or more");
    }
    if (counts[rank] > 0) requirePointer(call, "ranges", ranges);
    for (int64_t i = 0; i < counts[rank]; ++i, ++next) {
      const auto& [first, count] = ranges[next];
      if (first < 0 || first > total) {
        fail(seqparInvalidArgument, call, ": ranges[", next, "].first is ", first, ", expected 0 to ", total,
             ", the tokens of all ranks");
      }
      if (count < 0 || count > total - first) {
        fail(seqparInvalidArgument, call, ": ranges[", next, "].count is ", count, ", expected 0 to ", total - first,
             ", the tokens from ", first, " on");
      }
      all[rank].push_back({static_cast<size_t>(first), static_cast<size_t>(count)});
    }
    requireApart(call, static_cast<int64_t>(rank), all[rank]);
  }
  return all;
}

/// Compares everything across ranks. Returns a digest.
int64_t compareRanks(const char* call, const Checked<Shards>& given, const RangesOfMembers& ranges,
                     Communicator& comm) {
  std::vector<int64_t> tokens, counts, numbers;
  for (const size_t of : given.shape.tokens) tokens.push_back(static_cast<int64_t>(of));
  for (const auto& of : ranges) {
    counts.push_back(static_cast<int64_t>(of.size()));
    for (const Range& range : of) {
      numbers.push_back(static_cast<int64_t>(range.first));
      numbers.push_back(static_cast<int64_t>(range.count));
    }
  }
  const std::array<NamedValue, 7> values{{{"shards->dataType", given.type},
                                          {"shards->outer", static_cast<int64_t>(given.shape.outer)},
                                          {"shards->inner in bytes", static_cast<int64_t>(given.shape.inner)},
                                          {"shards->ctas", given.shape.ctas},
                                          namedArray("shards->tokens of members", tokens),
                                          namedArray("rangesOfRanks", counts),
                                          namedArray("the numbers of ranges", numbers)}};
  comm.compareNow(call, values);
  std::vector<int64_t> all;
  all.reserve(values.size());
  for (const auto& value : values) all.push_back(value.value);
  return fingerprint(all);
}

/// Checks a call of a plan and runs body(comm, plan).
template <typename Body>
seqparResult_t onPlan(const char* call, seqparRangesPlan_t handle, const void* shard, const void* part, bool intoPart,
                      Body&& body) {
  std::shared_ptr<RangesPlan> plan;
  const auto found = atBoundary(call, [&] { plan = require(plans(), handle, call, "plan", "plan"); });
  if (found != seqparSuccess) return found;
  return onComm(call, plan->handle, [&](Communicator& comm) {
    if (plan->comm.lock().get() != &comm) {
      fail(seqparInvalidArgument, call, ": plan's communicator was freed; expected a plan of an open communicator");
    }
    const Buffer buffers[] = {{"shard", shard, plan->shardBytes, sizeOf(plan->type)},
                              {"part", part, plan->partBytes, sizeOf(plan->type)}};
    for (const Buffer& buffer : buffers) {
      if (buffer.bytes > 0) requirePointer(call, buffer.name, buffer.data);
      requireMemory(call, buffer, comm);
    }
    requireDisjoint(call, buffers[intoPart ? 0 : 1], buffers[intoPart ? 1 : 0], false);
    const NamedValue same{"the fingerprint of plan", plan->digest};
    comm.compareNext(call, {&same, 1});
    body(comm, *plan);
  });
}

const std::byte* bytesOf(const void* memory) {
  return static_cast<const std::byte*>(memory);
}

std::byte* bytesOf(void* memory) {
  return static_cast<std::byte*>(memory);
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparRangesPlanCreate(seqparRangesPlan_t* plan, const seqparShards_t* shards,
                                                 const int64_t* rangesOfRanks, const seqparRange_t* ranges,
                                                 seqparComm_t handle) {
  const char* call = "seqparRangesPlanCreate";
  return onEntry(call, handle, [&](CommEntry& entry) {
    Communicator& comm = *entry.comm;
    requirePointer(call, "plan", plan);
    *plan = nullptr;
    const auto given = readShards(call, shards, comm);
    const auto all = readRanges(call, rangesOfRanks, ranges, given.shape);

    auto made = std::make_shared<RangesPlan>();
    made->digest = compareRanks(call, given, all, comm);
    made->handle = handle;
    made->comm = entry.comm;
    made->type = given.type;
    made->gather = std::make_shared<const Route>(gatherRangesRoute(given.shape, all, given.member));
    made->scatter = std::make_shared<const Reduction>(scatterRangesSum(given.shape, all, given.member));
    made->shardBytes = given.localBytes;
    made->partBytes = given.shape.outer * tokensOf(all[given.member]) * given.shape.inner;
    *plan = plans().add(std::move(made));
  });
}

SEQPAR_API seqparResult_t seqparRangesPlanDestroy(seqparRangesPlan_t plan) {
  const char* call = "seqparRangesPlanDestroy";
  return atBoundary(call, [&] {
    if (plan != nullptr && !plans().remove(plan)) require(plans(), plan, call, "plan", "plan");
  });
}

SEQPAR_API seqparResult_t seqparGatherRanges(seqparRangesPlan_t plan, const void* shard, void* part, void* stream) {
  const char* call = "seqparGatherRanges";
  return onPlan(call, plan, shard, part, true, [&](Communicator& comm, const RangesPlan& ready) {
    exchangesOf(comm).exchange(comm, call, {ready.gather, {bytesOf(shard)}, {bytesOf(part)}, {}},
                               callerStream(call, stream, comm));
  });
}

SEQPAR_API seqparResult_t seqparScatterRanges(seqparRangesPlan_t plan, const void* part, void* shard, void* stream) {
  const char* call = "seqparScatterRanges";
  return onPlan(call, plan, shard, part, false, [&](Communicator& comm, const RangesPlan& ready) {
    exchangesOf(comm).reduce(comm, call, {ready.scatter, ready.type, {bytesOf(part)}, {bytesOf(shard)}},
                             callerStream(call, stream, comm));
  });
}

}  // extern "C"
