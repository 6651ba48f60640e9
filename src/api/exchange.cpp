// The calls of seqpar/exchange.h: argument checks, then src/exchange.
#include "seqpar/exchange.h"

#include "api/boundary.h"
#include "api/buffers.h"
#include "api/shards.h"
#include "base/checked.h"
#include "base/convert.h"
#include "base/versioned.h"
#include "exchange/backend.h"

using namespace seqpar;

namespace {

const std::byte* bytesOf(const void* memory) {
  return static_cast<const std::byte*>(memory);
}

std::byte* bytesOf(void* memory) {
  return static_cast<std::byte*>(memory);
}

void requireBuffers(const char* call, const Communicator& comm, std::initializer_list<Buffer> buffers) {
  for (const Buffer& buffer : buffers) {
    if (buffer.bytes > 0) requirePointer(call, buffer.name, buffer.data);
    requireMemory(call, buffer, comm);
  }
}

Buffer sequenceBuffer(const void* data, const Checked<HeadShards>& given) {
  return {"sequence", data, given.localBytes, sizeOf(given.type)};
}

Buffer headBuffer(const void* data, const Checked<HeadShards>& given) {
  return {"head", data, given.wholeBytes, sizeOf(given.type)};
}

/// A member without heads, which has no bytes in `head`, must refuse what other members refuse: it would wait for them.
void requireHeadsDisjoint(const char* call, Buffer head, const Buffer& sequence, const Checked<HeadShards>& given) {
  if (given.shape.range[given.member].count == 0) head.bytes = sizeOf(given.type);
  requireDisjoint(call, head, sequence, false);
}

/// Rejects any overlap except that of a shard with its own position in the whole array, if that is one region.
void requireDisjointOrInPlace(const char* call, const Buffer& shard, const Buffer& whole,
                              const Checked<Shards>& given) {
  const StridedRegion place = given.shape.inWhole(given.member);
  const bool inPlace = given.shape.outer == 1 && shard.data != nullptr && whole.data != nullptr &&
                       bytesOf(shard.data) == bytesOf(whole.data) + place.offset;
  if (!inPlace) requireDisjoint(call, shard, whole, false);
}

/// Runs a route as an operation; zero-fills `zeros` of the receive buffers.
void start(const char* call, Communicator& comm, Route route, std::vector<StridedRegion> zeros,
           std::vector<const std::byte*> sends, std::vector<std::byte*> receives, void* stream) {
  exchangesOf(comm).exchange(
      comm, call,
      {std::make_shared<const Route>(std::move(route)), std::move(sends), std::move(receives), std::move(zeros)},
      callerStream(call, stream, comm));
}

void start(const char* call, Communicator& comm, Reduction reduction, seqparDataType_t type,
           std::vector<const std::byte*> sends, std::vector<std::byte*> receives, void* stream) {
  exchangesOf(comm).reduce(
      comm, call,
      {std::make_shared<const Reduction>(std::move(reduction)), type, std::move(sends), std::move(receives)},
      callerStream(call, stream, comm));
}

/// Runs the cached call with this shape, recorded as the thread's current call; false: it is not in the cache.
/// checkBuffers(checked shards) runs for buffers that the call has not had recently.
template <typename Call, typename Given, typename Check>
bool runKnown(const char* call, const Given* shards, const KnownCalls<Call>& calls, Communicator& comm,
              const void* from, void* into, void* stream, const Check& checkBuffers) {
  // A different size belongs to a different version of the structure.
  if (checkVersioned(call, "shards", shards).size != sizeof(*shards)) return false;
  const Call* const known = calls.find({call, *shards});
  if (known == nullptr) return false;
  comm.compareNext(call, *known->values);
  RecentBuffers::check(known->id, {from, into}, [&] { checkBuffers(known->checked); });
  known->prepared->run(bytesOf(from), bytesOf(into), callerStream(call, stream, comm));
  return true;
}

/// Adds a checked call, the thread's current one, to the cache. Null if it cannot be cached.
template <typename Call, typename Given, typename Shape>
std::shared_ptr<PreparedExchange> remember(const char* call, const Given& shards, const Checked<Shape>& checked,
                                           const Route& route, KnownCalls<Call>& calls, Communicator& comm) {
  // Comparisons need the elements of arrays, which records do not contain.
  const bool simple = shards.size == sizeof(shards) && shards.group == nullptr && shards.tokensOfMembers == nullptr;
  if (!simple || comm.config().checkArguments || comm.device() != nullptr) return nullptr;
  if (!calls.lacks({call, shards})) return nullptr;
  const CallValues* const values = comm.calls().keepCurrent();
  if (values == nullptr) return nullptr;
  auto prepared = exchangesOf(comm).prepare(comm, call, route);
  if (prepared != nullptr) calls.add({{call, shards}, checked, values, prepared});
  return prepared;
}

/// Runs `route` from one buffer to one buffer, prepared for repetitions if it can be cached.
template <typename Call, typename Given, typename Shape>
void startKnown(const char* call, CommEntry& entry, const Given& shards, const Checked<Shape>& checked, Route route,
                KnownCalls<Call>& calls, const void* from, void* into, void* stream) {
  Communicator& comm = *entry.comm;
  const auto prepared = remember(call, shards, checked, route, calls, comm);
  if (prepared != nullptr) return prepared->run(bytesOf(from), bytesOf(into), callerStream(call, stream, comm));
  start(call, comm, std::move(route), {}, {bytesOf(from)}, {bytesOf(into)}, stream);
}

void checkHeadBuffers(const char* call, const Communicator& comm, const void* sequence, const void* head,
                      const Checked<HeadShards>& given) {
  const Buffer tokens = sequenceBuffer(sequence, given);
  const Buffer heads = headBuffer(head, given);
  requireBuffers(call, comm, {tokens, heads});
  requireHeadsDisjoint(call, heads, tokens, given);
}

void checkGatherBuffers(const char* call, const Communicator& comm, const void* shard, const void* whole,
                        const Checked<Shards>& given) {
  const Buffer from{"shard", shard, given.localBytes, sizeOf(given.type)};
  const Buffer into{"whole", whole, given.wholeBytes, sizeOf(given.type)};
  requireBuffers(call, comm, {from, into});
  requireDisjointOrInPlace(call, from, into, given);
}

struct HaloBuffers {
  Buffer left, right, shard;
};

HaloBuffers checkHaloBuffers(const char* call, const Communicator& comm, const void* left, const void* right,
                             const void* shard, const Halo& halo, const Checked<Shards>& given) {
  const size_t each = sizeOf(given.type);
  const auto haloBytes = [&](const char* buffer, const char* name, size_t tokens) {
    return countBytes(
        call, buffer,
        {{"shards->outer", given.shape.outer}, {name, tokens}, {"shards->inner in bytes", given.shape.inner}});
  };
  const HaloBuffers buffers{{"leftHalo", left, haloBytes("leftHalo", "halo->left", halo.left), each},
                            {"rightHalo", right, haloBytes("rightHalo", "halo->right", halo.right), each},
                            {"shard", shard, given.localBytes, each}};
  requireBuffers(call, comm, {buffers.left, buffers.right, buffers.shard});
  requireDisjoint(call, buffers.left, buffers.shard, false);
  requireDisjoint(call, buffers.right, buffers.shard, false);
  return buffers;
}

NamedValue named(const char* name, size_t value) {
  return {name, static_cast<int64_t>(value)};
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparHeadsOfMember(int64_t heads, int64_t queryHeads, int members, int member,
                                              int64_t* first, int64_t* count) {
  const char* call = "seqparHeadsOfMember";
  return atBoundary(call, [&] {
    requirePointer(call, "first", first);
    requirePointer(call, "count", count);
    const HeadRange range = checkHeads(call, heads, queryHeads, members, member);
    *first = static_cast<int64_t>(range.first);
    *count = static_cast<int64_t>(range.count);
  });
}

SEQPAR_API seqparResult_t seqparSequenceToHeads(const void* sequence, void* head, const seqparHeadShards_t* shards,
                                                seqparComm_t handle, void* stream) {
  const char* call = "seqparSequenceToHeads";
  return onEntry(call, handle, [&](CommEntry& entry) {
    Communicator& comm = *entry.comm;
    const auto checkBuffers = [&](const auto& given) { checkHeadBuffers(call, comm, sequence, head, given); };
    if (runKnown(call, shards, entry.headsCalls, comm, sequence, head, stream, checkBuffers)) return;
    const auto given = checkHeadShards(call, shards, comm);
    checkBuffers(given);
    startKnown(call, entry, *shards, given, sequenceToHeads(given.shape, given.member), entry.headsCalls, sequence,
               head, stream);
  });
}

SEQPAR_API seqparResult_t seqparHeadsToSequence(const void* head, void* sequence, const seqparHeadShards_t* shards,
                                                seqparComm_t handle, void* stream) {
  const char* call = "seqparHeadsToSequence";
  return onEntry(call, handle, [&](CommEntry& entry) {
    Communicator& comm = *entry.comm;
    const auto checkBuffers = [&](const auto& given) { checkHeadBuffers(call, comm, sequence, head, given); };
    if (runKnown(call, shards, entry.headsCalls, comm, head, sequence, stream, checkBuffers)) return;
    const auto given = checkHeadShards(call, shards, comm);
    checkBuffers(given);
    if (given.shape.replicated()) {
      start(call, comm, headsToSequenceSum(given.shape, given.member), given.type, {bytesOf(head)}, {bytesOf(sequence)},
            stream);
    } else {
      startKnown(call, entry, *shards, given, headsToSequence(given.shape, given.member), entry.headsCalls, head,
                 sequence, stream);
    }
  });
}

SEQPAR_API seqparResult_t seqparAllGather(const void* shard, void* whole, const seqparShards_t* shards,
                                          seqparComm_t handle, void* stream) {
  const char* call = "seqparAllGather";
  return onEntry(call, handle, [&](CommEntry& entry) {
    Communicator& comm = *entry.comm;
    const auto checkBuffers = [&](const auto& given) { checkGatherBuffers(call, comm, shard, whole, given); };
    if (runKnown(call, shards, entry.shardsCalls, comm, shard, whole, stream, checkBuffers)) return;
    const auto given = checkShards(call, shards, comm);
    checkBuffers(given);
    startKnown(call, entry, *shards, given, gatherRoute(given.shape, given.member), entry.shardsCalls, shard, whole,
               stream);
  });
}

SEQPAR_API seqparResult_t seqparReduceScatter(const void* whole, void* shard, const seqparShards_t* shards,
                                              seqparComm_t handle, void* stream) {
  const char* call = "seqparReduceScatter";
  return onComm(call, handle, [&](Communicator& comm) {
    const auto given = checkShards(call, shards, comm);
    const Buffer from{"whole", whole, given.wholeBytes, sizeOf(given.type)};
    const Buffer into{"shard", shard, given.localBytes, sizeOf(given.type)};
    requireBuffers(call, comm, {from, into});
    requireDisjointOrInPlace(call, into, from, given);
    start(call, comm, scatterSum(given.shape, given.member), given.type, {bytesOf(whole)}, {bytesOf(shard)}, stream);
  });
}

SEQPAR_API seqparResult_t seqparReduceScatterLse(const void* out, const float* lse, void* outShard, float* lseShard,
                                                 int64_t heads, const seqparShards_t* shards, seqparComm_t handle,
                                                 void* stream) {
  const char* call = "seqparReduceScatterLse";
  return onComm(call, handle, [&](Communicator& comm) {
    const auto given = checkShards(call, shards, comm, {{"heads", heads}});
    const auto inner = static_cast<int64_t>(given.shape.inner / sizeOf(given.type));
    if (heads < 1 || inner % heads != 0) {
      fail(seqparInvalidArgument, call, ": heads is ", heads, ", expected a divisor of shards->inner = ", inner);
    }
    LseShards merged{given.shape, static_cast<size_t>(heads), given.type};
    const auto lseBytes = [&](const char* name, size_t tokens) {
      return countBytes(
          call, name,
          {{"shards->outer", given.shape.outer}, {"heads", heads}, {"tokens", tokens}, {"bytes", sizeof(float)}});
    };
    const size_t each = sizeOf(given.type);
    const Buffer inputs[] = {{"out", out, given.wholeBytes, each},
                             {"lse", lse, lseBytes("lse", given.shape.total()), alignof(float)}};
    const Buffer outputs[] = {
        {"outShard", outShard, given.localBytes, each},
        {"lseShard", lseShard, lseBytes("lseShard", given.shape.tokens[given.member]), alignof(float)}};
    requireBuffers(call, comm, {inputs[0], inputs[1], outputs[0], outputs[1]});
    requireDisjoint(call, outputs[0], outputs[1], false);
    for (const Buffer& output : outputs) {
      for (const Buffer& input : inputs) requireDisjoint(call, input, output, false);
    }
    const LseReduction reduction{std::move(merged), given.member, bytesOf(out), lse, bytesOf(outShard), lseShard};
    exchangesOf(comm).reduceLse(comm, call, reduction, callerStream(call, stream, comm));
  });
}

SEQPAR_API seqparResult_t seqparHaloExchange(const void* shard, void* leftHalo, void* rightHalo,
                                             const seqparHalo_t* halo, const seqparShards_t* shards,
                                             seqparComm_t handle, void* stream) {
  const char* call = "seqparHaloExchange";
  return onComm(call, handle, [&](Communicator& comm) {
    const Halo checked = checkHalo(call, halo);
    const auto given = checkShards(call, shards, comm,
                                   {named("halo->left", checked.left), named("halo->right", checked.right),
                                    named("halo->periodic", checked.periodic)});
    const auto buffers = checkHaloBuffers(call, comm, leftHalo, rightHalo, shard, checked, given);
    requireDisjoint(call, buffers.left, buffers.right, false);
    if (buffers.left.bytes + buffers.right.bytes == 0) return;
    HaloRoute route = haloRoute(given.shape, checked, given.member);
    start(call, comm, std::move(route.route), std::move(route.zeros), {bytesOf(shard)},
          {bytesOf(leftHalo), bytesOf(rightHalo)}, stream);
  });
}

SEQPAR_API seqparResult_t seqparHaloAdjoint(const void* leftHalo, const void* rightHalo, void* shard,
                                            const seqparHalo_t* halo, const seqparShards_t* shards, seqparComm_t handle,
                                            void* stream) {
  const char* call = "seqparHaloAdjoint";
  return onComm(call, handle, [&](Communicator& comm) {
    const Halo checked = checkHalo(call, halo);
    const auto given = checkShards(call, shards, comm,
                                   {named("halo->left", checked.left), named("halo->right", checked.right),
                                    named("halo->periodic", checked.periodic)});
    const auto buffers = checkHaloBuffers(call, comm, leftHalo, rightHalo, shard, checked, given);
    if (buffers.left.bytes + buffers.right.bytes == 0) return;
    start(call, comm, haloAdjoint(given.shape, checked, given.member), given.type,
          {bytesOf(leftHalo), bytesOf(rightHalo)}, {bytesOf(shard)}, stream);
  });
}

}  // extern "C"
