// Rings.
#include "ring/ring.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <numeric>

#include "api/boundary.h"
#include "api/buffers.h"
#include "base/checked.h"
#include "base/versioned.h"
#include "comm/agreement.h"
#include "seqpar/ring.h"

using namespace seqpar;

namespace {

/// A ring with the communicator's entry, which keeps the entry's address from being reused.
struct RingEntry {
  seqparComm_t handle;
  std::shared_ptr<CommEntry> comm;
  Ring ring;
};

HandleTable<RingEntry, seqparRing_t>& rings() {
  return handleTable<RingEntry, seqparRing_t>();
}

void requireRange(const char* call, const char* field, int value, int least, int most) {
  if (value < least || value > most) {
    fail(seqparInvalidArgument, call, ": params->", field, " is ", value, ", expected ", least, " to ", most);
  }
}

std::vector<int> readRanks(const char* call, const seqparRingParams_t& params, const Communicator& comm) {
  std::vector<int> ranks(static_cast<size_t>(comm.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (params.ranks == nullptr) return ranks;
  requireRange(call, "nranks", params.nranks, 1, comm.size());
  ranks.assign(params.ranks, params.ranks + params.nranks);
  std::vector<bool> seen(static_cast<size_t>(comm.size()));
  for (size_t place = 0; place < ranks.size(); ++place) {
    const int rank = ranks[place];
    if (rank < 0 || rank >= comm.size() || seen[static_cast<size_t>(rank)]) {
      fail(seqparInvalidArgument, call, ": params->ranks[", place, "] is ", rank, ", expected 0 to ", comm.size() - 1,
           ", each once");
    }
    seen[static_cast<size_t>(rank)] = true;
  }
  if (!seen[static_cast<size_t>(comm.rank())]) {
    fail(seqparInvalidArgument, call, ": params->ranks does not have ", comm.rank(),
         ", expected this rank in its list");
  }
  return ranks;
}

RingForm readForm(const char* call, const seqparRingParams_t& params, int places) {
  requireRange(call, "direction", params.direction, seqparForward, seqparReverse);
  requireRange(call, "inner", params.inner, 0, places);
  requireRange(call, "unchanged", params.unchanged, 0, 1);
  requireRange(call, "keepHome", params.keepHome, 0, 1);
  requireRange(call, "steps", params.steps, 0, places);
  RingForm form;
  form.places = places;
  form.inner = params.inner == 0 ? places : params.inner;
  if (places % form.inner != 0) {
    fail(seqparInvalidArgument, call, ": params->inner is ", params.inner, ", expected a divisor of ", places);
  }
  form.reverse = params.direction == seqparReverse;
  form.unchanged = params.unchanged == 1;
  form.keepHome = params.keepHome == 1;
  form.steps = params.steps == 0 ? places - 1 : params.steps;
  return form;
}

std::vector<std::vector<size_t>> readSizes(const char* call, const seqparRingParams_t& params, int places) {
  requireRange(call, "tensors", params.tensors, 1, SEQPAR_RING_MOST_TENSORS);
  requireRange(call, "uneven", params.uneven, 0, 1);
  requirePointer(call, "params->bytes", params.bytes);
  std::vector<std::vector<size_t>> sizes;
  const auto tensors = static_cast<size_t>(params.tensors);
  for (size_t place = 0; place < static_cast<size_t>(places); ++place) {
    const size_t* row = params.bytes + (params.uneven == 1 ? place * tensors : 0);
    sizes.emplace_back(row, row + tensors);
    for (size_t tensor = 0; tensor < tensors; ++tensor) {
      if (row[tensor] > kMostBytes) {
        fail(seqparInvalidArgument, call, ": params->bytes[", row - params.bytes + static_cast<ptrdiff_t>(tensor),
             "] is ", row[tensor], ", expected at most ", kMostBytes);
      }
    }
  }
  return sizes;
}

RingSpec readSpec(const char* call, const seqparRingParams_t& params, const Communicator& comm) {
  RingSpec spec;
  spec.ranks = readRanks(call, params, comm);
  const auto places = static_cast<int>(spec.ranks.size());
  spec.form = readForm(call, params, places);
  spec.bytes = readSizes(call, params, places);
  // The library cannot check the size of the caller's `home`: if it may be too small for a received block, none is
  // stored there. All ranks see equal sizes, so all compute the same schedule.
  const auto differs = [&](const auto& row) { return row != spec.bytes.front(); };
  if (std::any_of(spec.bytes.begin(), spec.bytes.end(), differs)) spec.form.keepHome = true;
  spec.place = static_cast<int>(std::find(spec.ranks.begin(), spec.ranks.end(), comm.rank()) - spec.ranks.begin());
  return spec;
}

/// The caller's buffers, which must not overlap; missing ones stay empty.
RingBuffers readBuffers(const char* call, const seqparRingParams_t& params, const RingSpec& spec,
                        const Communicator& comm) {
  const size_t tensors = spec.bytes.front().size();
  std::vector<size_t> most(tensors, 0);
  for (const auto& row : spec.bytes) {
    for (size_t tensor = 0; tensor < tensors; ++tensor) most[tensor] = std::max(most[tensor], row[tensor]);
  }
  const auto& own = spec.form.keepHome ? spec.bytes[static_cast<size_t>(spec.place)] : most;

  std::deque<std::string> names;
  std::vector<Buffer> all;
  const auto read = [&](const char* name, void* const* pointers, size_t index, size_t bytes) {
    names.push_back(concat("params->", name, "[", index, "]"));
    if (bytes > 0) requirePointer(call, names.back().c_str(), pointers[index]);
    all.push_back({names.back().c_str(), pointers[index], bytes});
    requireMemory(call, all.back(), comm);
    return static_cast<std::byte*>(pointers[index]);
  };
  RingBuffers buffers;
  for (size_t tensor = 0; params.home != nullptr && tensor < tensors; ++tensor) {
    buffers.home.push_back(read("home", params.home, tensor, own[tensor]));
  }
  const auto sets = static_cast<size_t>(ringSchedule(spec.form, spec.place).sets - 1);
  for (size_t set = 0; params.scratch != nullptr && set < sets; ++set) {
    auto& pointers = buffers.scratch.emplace_back();
    for (size_t tensor = 0; tensor < tensors; ++tensor) {
      pointers.push_back(read("scratch", params.scratch, set * tensors + tensor, most[tensor]));
    }
  }
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = a + 1; b < all.size(); ++b) requireDisjoint(call, all[a], all[b], false);
  }
  return buffers;
}

/// Only if the whole communicator is the ring: a subset of the ranks cannot gather.
void compareRanks(const char* call, const RingSpec& spec, Communicator& comm) {
  if (spec.form.places != comm.size()) return;
  int64_t digest = 0;  // of the order of the ranks and of all sizes
  const auto add = [&](size_t value) {
    digest = static_cast<int64_t>(static_cast<uint64_t>(digest) * 1000003 + value);
  };
  for (const int rank : spec.ranks) add(static_cast<size_t>(rank));
  for (const auto& row : spec.bytes) std::for_each(row.begin(), row.end(), add);
  const std::array<NamedValue, 6> values{{{"direction", spec.form.reverse ? seqparReverse : seqparForward},
                                          {"inner", spec.form.inner},
                                          {"unchanged", spec.form.unchanged ? 1 : 0},
                                          {"steps", spec.form.steps},
                                          {"tensors", static_cast<int64_t>(spec.bytes.front().size())},
                                          {"ranks and bytes", digest}}};
  comm.compareNow(call, values);
}

/// body(Ring&, Communicator&) inside a call on the ring's communicator.
template <typename Body>
seqparResult_t onRing(const char* call, seqparRing_t handle, Body&& body) noexcept {
  std::shared_ptr<RingEntry> entry;
  const auto result = atBoundary(call, [&] {
    entry = require(rings(), handle, call, "ring", "ring");
    const CallGuard callGuard(call, entry->handle);
    body(entry->ring, *callGuard.entry().comm);
  });
  if (result != seqparSuccess && entry) keepError(entry->handle);
  return result;
}

seqparRingInfo_t describe(const Ring& ring) {
  seqparRingInfo_t info = SEQPAR_RING_INFO_INITIALIZER;
  info.nranks = ring.spec().form.places;
  info.place = ring.spec().place;
  info.steps = ring.spec().form.steps;
  info.step = ring.step();
  info.posted = ring.posted() ? 1 : 0;
  info.source = ring.spec().ranks[static_cast<size_t>(ring.origin())];
  std::strncpy(info.engine, ring.backendName(), sizeof(info.engine) - 1);
  std::strncpy(info.reason, ring.reason().c_str(), sizeof(info.reason) - 1);
  return info;
}

}  // namespace

extern "C" {

SEQPAR_API seqparResult_t seqparRingCreate(seqparRing_t* ring, const seqparRingParams_t* params, seqparComm_t handle) {
  const char* call = "seqparRingCreate";
  return onEntry(call, handle, [&](CommEntry& entry) {
    requirePointer(call, "ring", ring);
    *ring = nullptr;
    const auto given = readVersioned(call, "params", params, seqparRingParams_t SEQPAR_RING_PARAMS_INITIALIZER);
    RingSpec spec = readSpec(call, given, *entry.comm);
    RingBuffers buffers = readBuffers(call, given, spec, *entry.comm);
    compareRanks(call, spec, *entry.comm);
    *ring = rings().add(
        std::shared_ptr<RingEntry>(new RingEntry{// NOLINT: an aggregate
                                                 handle, require(comms(), handle, call, "comm", "communicator"),
                                                 Ring(entry.comm, std::move(spec), std::move(buffers))}));
  });
}

SEQPAR_API seqparResult_t seqparRingScratch(const seqparRingParams_t* params, seqparComm_t handle, int* sets) {
  const char* call = "seqparRingScratch";
  return onComm(call, handle, [&](Communicator& comm) {
    requirePointer(call, "sets", sets);
    const auto given = readVersioned(call, "params", params, seqparRingParams_t SEQPAR_RING_PARAMS_INITIALIZER);
    const RingSpec spec = readSpec(call, given, comm);
    *sets = ringSchedule(spec.form, spec.place).sets - 1;
  });
}

SEQPAR_API seqparResult_t seqparRingDestroy(seqparRing_t ring) {
  const char* call = "seqparRingDestroy";
  return atBoundary(call, [&] {
    if (ring != nullptr && !rings().remove(ring)) require(rings(), ring, call, "ring", "ring");
  });
}

SEQPAR_API seqparResult_t seqparRingPost(seqparRing_t handle, void* stream) {
  const char* call = "seqparRingPost";
  return onRing(call, handle, [&](Ring& ring, Communicator& comm) {
    CallScope::setAlgorithm(ring.backendName());
    ring.post(callerStream(call, stream, comm));
  });
}

SEQPAR_API seqparResult_t seqparRingWait(seqparRing_t handle, void* stream) {
  const char* call = "seqparRingWait";
  return onRing(call, handle, [&](Ring& ring, Communicator& comm) { ring.wait(callerStream(call, stream, comm)); });
}

SEQPAR_API seqparResult_t seqparRingReset(seqparRing_t handle) {
  return onRing("seqparRingReset", handle, [](Ring& ring, Communicator&) { ring.reset(); });
}

SEQPAR_API seqparResult_t seqparRingResetFrom(seqparRing_t handle, const void* const* tensors) {
  const char* call = "seqparRingResetFrom";
  return onRing(call, handle, [&](Ring& ring, Communicator& comm) {
    requirePointer(call, "tensors", tensors);
    std::vector<const std::byte*> own;
    for (size_t tensor = 0; tensor < ring.tensors(); ++tensor) {
      const auto name = concat("tensors[", tensor, "]");
      const size_t bytes = ring.ownBytes(tensor);
      if (bytes > 0) requirePointer(call, name.c_str(), tensors[tensor]);
      requireMemory(call, {name.c_str(), tensors[tensor], bytes}, comm);
      own.push_back(static_cast<const std::byte*>(tensors[tensor]));
    }
    ring.reset(std::move(own));
  });
}

SEQPAR_API seqparResult_t seqparRingCurrent(seqparRing_t handle, int tensor, void** pointer, size_t* bytes) {
  const char* call = "seqparRingCurrent";
  return onRing(call, handle, [&](Ring& ring, Communicator&) {
    if (tensor < 0 || static_cast<size_t>(tensor) >= ring.tensors()) {
      fail(seqparInvalidArgument, call, ": tensor is ", tensor, ", expected 0 to ", ring.tensors() - 1);
    }
    if (pointer != nullptr) *pointer = ring.current(static_cast<size_t>(tensor));
    if (bytes != nullptr) *bytes = ring.currentBytes(static_cast<size_t>(tensor));
  });
}

SEQPAR_API seqparResult_t seqparRingQuery(seqparRing_t handle, seqparRingInfo_t* info) {
  const char* call = "seqparRingQuery";
  return onRing(call, handle, [&](Ring& ring, Communicator&) { writeVersioned(call, "info", info, describe(ring)); });
}

}  // extern "C"
