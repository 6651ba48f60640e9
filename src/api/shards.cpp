#include "api/shards.h"

#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/checked.h"
#include "base/convert.h"
#include "base/versioned.h"

namespace seqpar {
namespace {

/// Keeps token positions, including halos, far from overflow.
constexpr int64_t kMostTokens = int64_t{1} << 48;
/// Most values that checkShards() and compareRanks() add to a call's.
constexpr size_t kCommonValues = 6;

void requireRange(const char* call, std::string_view what, int64_t value, int64_t least,
                  int64_t most = std::numeric_limits<int64_t>::max()) {
  if (value >= least && value <= most) return;
  if (most == std::numeric_limits<int64_t>::max()) {
    fail(seqparInvalidArgument, call, ": ", what, " is ", value, ", expected ", least, " or more");
  }
  fail(seqparInvalidArgument, call, ": ", what, " is ", value, ", expected ", least, " to ", most);
}

struct Members {
  std::vector<int> ranks;
  std::vector<size_t> tokens;
  size_t self = 0;
  int64_t total = 0;
};

/// Checks the fields common to all shapes.
template <typename Given>
Members checkMembers(const char* call, const Given& given, const Communicator& comm) {
  Members out;
  if (given.group == nullptr) {
    if (given.groupSize != 0) {
      fail(seqparInvalidArgument, call, ": shards->groupSize is ", given.groupSize, ", expected 0 without a group");
    }
    out.ranks.resize(static_cast<size_t>(comm.size()));
    std::iota(out.ranks.begin(), out.ranks.end(), 0);
    out.self = static_cast<size_t>(comm.rank());
  } else {
    requireRange(call, "shards->groupSize", given.groupSize, 1, comm.size());
    out.ranks.assign(given.group, given.group + given.groupSize);
    std::unordered_set<int> seen;
    for (size_t i = 0; i < out.ranks.size(); ++i) {
      requireRange(call, concat("shards->group[", i, "]"), out.ranks[i], 0, comm.size() - 1);
      if (!seen.insert(out.ranks[i]).second) {
        fail(seqparInvalidArgument, call, ": shards->group[", i, "] is ", out.ranks[i],
             ", a duplicate; expected each rank once");
      }
      if (out.ranks[i] == comm.rank()) out.self = i;
    }
    if (!seen.contains(comm.rank())) {
      fail(seqparInvalidArgument, call, ": shards->group lacks this rank, ", comm.rank(),
           "; expected to be called by members only");
    }
  }
  const bool each = given.tokensOfMembers != nullptr;
  out.tokens.reserve(out.ranks.size());
  for (size_t i = 0; i < out.ranks.size(); ++i) {
    const int64_t tokens = each ? given.tokensOfMembers[i] : given.tokens;
    if (tokens < 0 || tokens > kMostTokens) {
      requireRange(call, each ? concat("shards->tokensOfMembers[", i, "]") : "shards->tokens", tokens, 0, kMostTokens);
    }
    out.total += tokens;
    if (out.total > kMostTokens) {
      fail(seqparInvalidArgument, call, ": the members have more than ", kMostTokens, " tokens; expected at most that");
    }
    out.tokens.push_back(static_cast<size_t>(tokens));
  }
  return out;
}

template <typename Given>
void compareRanks(const char* call, const Given& given, const Members& members, Communicator& comm,
                  std::vector<NamedValue> values) {
  values.push_back({"shards->dataType", given.dataType});
  static_assert(sizeof(size_t) == sizeof(int64_t));
  const auto* const tokens = reinterpret_cast<const int64_t*>(members.tokens.data());
  values.push_back(
      namedArray(given.tokensOfMembers != nullptr ? "shards->tokensOfMembers" : "shards->tokens of members",
                 {tokens, members.tokens.size()}));
  if (given.group == nullptr) return comm.compareNext(call, values);
  const std::vector<int64_t> group(members.ranks.begin(), members.ranks.end());
  values.push_back(namedArray("shards->group", group));
  comm.compareNextOfGroup(call, members.ranks, values);
}

/// Without the members, which stay in `members`.
Checked<Shards> checkFields(const char* call, const seqparShards_t& given, const Communicator& comm, Members& members) {
  requireRange(call, "shards->dataType", given.dataType, seqparFloat32, seqparBfloat16);
  requireRange(call, "shards->outer", given.outer, 0);
  requireRange(call, "shards->inner", given.inner, 0);
  requireRange(call, "shards->ctas", given.ctas, 0);
  members = checkMembers(call, given, comm);
  Checked<Shards> out;
  out.shape.ctas = given.ctas;
  out.type = static_cast<seqparDataType_t>(given.dataType);
  out.member = members.self;
  const size_t elementBytes = sizeOf(out.type);
  out.wholeBytes = countBytes(call, "the whole array",
                              {{"shards->outer", given.outer},
                               {"tokens", members.total},
                               {"shards->inner", given.inner},
                               {"bytes", elementBytes}});
  out.shape.outer = static_cast<size_t>(given.outer);
  out.shape.inner = static_cast<size_t>(given.inner) * elementBytes;
  out.localBytes = out.shape.outer * members.tokens[members.self] * out.shape.inner;
  return out;
}

void take(Members& members, Shards& shape) {
  shape.tokens = std::move(members.tokens);
  shape.ranks = std::move(members.ranks);
}

}  // namespace

HeadRange checkHeads(const char* call, int64_t heads, int64_t queryHeads, int members, int member) {
  requireRange(call, "heads", heads, 1);
  requireRange(call, "queryHeads", queryHeads, 0);
  requireRange(call, "members", members, 1);
  requireRange(call, "member", member, 0, members - 1);
  const int64_t queries = queryHeads == 0 ? heads : queryHeads;
  if (queries % heads != 0) {
    fail(seqparInvalidArgument, call, ": queryHeads is ", queryHeads, ", expected a multiple of heads = ", heads);
  }
  return headsOf(static_cast<size_t>(heads), static_cast<size_t>(queries), static_cast<size_t>(members),
                 static_cast<size_t>(member));
}

Checked<HeadShards> checkHeadShards(const char* call, const seqparHeadShards_t* shards, Communicator& comm) {
  const auto given = readVersioned(call, "shards", shards, seqparHeadShards_t SEQPAR_HEAD_SHARDS_INITIALIZER);
  requireRange(call, "shards->dataType", given.dataType, seqparFloat32, seqparBfloat16);
  requireRange(call, "shards->batch", given.batch, 0);
  requireRange(call, "shards->headDim", given.headDim, 0);
  Members members = checkMembers(call, given, comm);
  Checked<HeadShards> out;
  out.type = static_cast<seqparDataType_t>(given.dataType);
  out.member = members.self;
  const auto count = static_cast<int>(members.ranks.size());
  out.shape.range.reserve(members.ranks.size());
  for (int member = 0; member < count; ++member) {
    out.shape.range.push_back(checkHeads(call, given.heads, given.queryHeads, count, member));
  }
  const size_t elementBytes = sizeOf(out.type);
  countBytes(call, "all members' arrays",
             {{"shards->batch", given.batch},
              {"tokens", members.total},
              {"shards->heads", given.heads},
              {"shards->headDim", given.headDim},
              {"bytes", elementBytes}});
  out.shape.batch = static_cast<size_t>(given.batch);
  out.shape.heads = static_cast<size_t>(given.heads);
  out.shape.headBytes = static_cast<size_t>(given.headDim) * elementBytes;
  const size_t head = out.shape.batch * out.shape.headBytes;
  out.localBytes = head * members.tokens[members.self] * out.shape.heads;
  out.wholeBytes = head * static_cast<size_t>(members.total) * out.shape.range[members.self].count;
  compareRanks(call, given, members, comm,
               {{"shards->batch", given.batch},
                {"shards->heads", given.heads},
                {"shards->queryHeads", given.queryHeads},
                {"shards->headDim", given.headDim}});
  out.shape.tokens = std::move(members.tokens);
  out.shape.ranks = std::move(members.ranks);
  return out;
}

Checked<Shards> checkShards(const char* call, const seqparShards_t* shards, Communicator& comm,
                            std::initializer_list<NamedValue> others) {
  const auto given = readVersioned(call, "shards", shards, seqparShards_t SEQPAR_SHARDS_INITIALIZER);
  Members members;
  Checked<Shards> out = checkFields(call, given, comm, members);
  std::vector<NamedValue> values;
  values.reserve(others.size() + kCommonValues);
  values.assign(others);
  values.push_back({"shards->outer", given.outer});
  values.push_back({"shards->inner", given.inner});
  values.push_back({"shards->ctas", given.ctas});
  compareRanks(call, given, members, comm, std::move(values));
  take(members, out.shape);
  return out;
}

Checked<Shards> readShards(const char* call, const seqparShards_t* shards, const Communicator& comm) {
  const auto given = readVersioned(call, "shards", shards, seqparShards_t SEQPAR_SHARDS_INITIALIZER);
  if (given.group != nullptr) fail(seqparInvalidArgument, call, ": shards->group is an array, expected NULL");
  Members members;
  Checked<Shards> out = checkFields(call, given, comm, members);
  take(members, out.shape);
  return out;
}

Halo checkHalo(const char* call, const seqparHalo_t* halo) {
  const auto given = readVersioned(call, "halo", halo, seqparHalo_t SEQPAR_HALO_INITIALIZER);
  requireRange(call, "halo->left", given.left, 0, kMostTokens);
  requireRange(call, "halo->right", given.right, 0, kMostTokens);
  return {static_cast<size_t>(given.left), static_cast<size_t>(given.right), given.periodic != 0};
}

}  // namespace seqpar
