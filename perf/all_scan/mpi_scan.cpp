#include "mpi_scan.h"

#include <algorithm>
#include <climits>
#include <stdexcept>

namespace seqpar::perf {
namespace {

constexpr size_t kCacheLine = 64;

size_t padded(size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

/// The parts of an element in memory: the map's shape, A, S.
static_assert(sizeof(AffineMap) <= kCacheLine);
const AffineMap& mapOf(const void* element) {
  return *static_cast<const AffineMap*>(element);
}
template <typename Byte>
auto* transitionOf(Byte* element) {
  return reinterpret_cast<std::conditional_t<std::is_const_v<Byte>, const float, float>*>(element + kCacheLine);
}
template <typename Byte>
auto* stateOf(Byte* element) {
  return transitionOf(element + padded(mapOf(element).coefficients() * sizeof(float)));
}

size_t elementBytes(const AffineMap& map) {
  const size_t bytes =
      kCacheLine + padded(map.coefficients() * sizeof(float)) + padded(map.shape.elements() * sizeof(float));
  if (bytes > INT_MAX)
    throw std::runtime_error("MPI peers: a state of " + std::to_string(bytes) + " bytes is too large");
  return bytes;
}

/// later <- later o earlier; MPI calls it with the lower ranks' value first.
void composeElements(void* earlier, void* later, int* count, MPI_Datatype*) {
  const size_t bytes = elementBytes(mapOf(later));
  for (int i = 0; i < *count; ++i) {
    const auto* const from = static_cast<const std::byte*>(earlier) + static_cast<size_t>(i) * bytes;
    auto* const into = static_cast<std::byte*>(later) + static_cast<size_t>(i) * bytes;
    mapOf(into).compose(transitionOf(from), stateOf(from), transitionOf(into), stateOf(into));
  }
}

}  // namespace

MpiOrder::MpiOrder(seqparDirection_t direction) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, 0, direction == seqparForward ? rank : -rank, &comm_);
}

int MpiOrder::position() const {
  int rank = 0;
  MPI_Comm_rank(comm_, &rank);
  return rank;
}

int MpiOrder::size() const {
  int size = 0;
  MPI_Comm_size(comm_, &size);
  return size;
}

MpiExscan::MpiExscan(const AffineMap& map, seqparDirection_t direction, seqparComm_t comm)
    : map_(map), order_(direction), send_(elementBytes(map), comm), receive_(elementBytes(map), comm) {
  *send_.as<AffineMap>() = *receive_.as<AffineMap>() = map;
  MPI_Type_contiguous(static_cast<int>(send_.bytes()), MPI_BYTE, &element_);
  MPI_Type_commit(&element_);
  MPI_Op_create(composeElements, 0, &compose_);
}

MpiExscan::~MpiExscan() {
  MPI_Op_free(&compose_);
  MPI_Type_free(&element_);
}

float* MpiExscan::transition() {
  return transitionOf(send_.as<std::byte>());
}
float* MpiExscan::state() {
  return stateOf(send_.as<std::byte>());
}
float* MpiExscan::result(bool inPlace) {
  return stateOf((inPlace ? send_ : receive_).as<std::byte>());
}

void MpiExscan::run(bool inPlace, bool wantPrefix, float* total) {
  // For both outputs, the total needs A and S after the scan, so the scan itself cannot be in place.
  const bool replace = inPlace && total == nullptr;
  const void* const from = replace ? MPI_IN_PLACE : send_.data();
  void* const into = replace ? send_.data() : receive_.data();
  if (!wantPrefix) {
    MPI_Scan(from, into, 1, element_, compose_, order_.comm());
    return;
  }
  MPI_Exscan(from, into, 1, element_, compose_, order_.comm());
  float* const prefix = stateOf(static_cast<std::byte*>(into));
  const size_t count = map_.shape.elements();
  // MPI leaves the first rank's result undefined.
  const bool first = order_.position() == 0;
  if (total != nullptr) map_.apply(transition(), state(), first ? nullptr : prefix, total, 0, map_.units());
  if (first) std::fill_n(result(inPlace), count, 0.0f);
  if (!first && inPlace && !replace) std::copy_n(prefix, count, state());
}

MpiChain::MpiChain(const AffineMap& map, seqparDirection_t direction, seqparComm_t comm)
    : map_(map),
      order_(direction),
      incoming_(map.shape.elements() * sizeof(float), comm),
      outgoing_(map.shape.elements() * sizeof(float), comm) {}

void MpiChain::run(const float* a, const float* state, float* prefix, float* total, size_t blocks) {
  const int position = order_.position();
  const bool first = position == 0;
  const bool last = position + 1 == order_.size();
  blocks = std::min(blocks, map_.units());
  const auto unit = [&](size_t block) { return map_.units() * block / blocks; };
  const auto begin = [&](size_t block) { return unit(block) * map_.unitElements(); };
  const auto count = [&](size_t block) { return static_cast<int>(begin(block + 1) - begin(block)); };

  float* const x = prefix != nullptr && prefix != state ? prefix : incoming_.as<float>();
  receives_.assign(first ? 0 : blocks, MPI_REQUEST_NULL);
  sends_.assign(last ? 0 : blocks, MPI_REQUEST_NULL);
  for (size_t k = 0; k < receives_.size(); ++k) {
    MPI_Irecv(x + begin(k), count(k), MPI_FLOAT, position - 1, static_cast<int>(k), order_.comm(), &receives_[k]);
  }
  float* const out = total != nullptr ? total : outgoing_.as<float>();
  const bool combine = total != nullptr || !(first || last);
  for (size_t k = 0; k < blocks; ++k) {
    if (!first) MPI_Wait(&receives_[k], MPI_STATUS_IGNORE);
    if (combine) {
      map_.apply(a, state, first ? nullptr : x, out, unit(k), unit(k + 1));
    }
    if (!last) {
      const float* const from = combine ? out : state;
      MPI_Isend(from + begin(k), count(k), MPI_FLOAT, position + 1, static_cast<int>(k), order_.comm(), &sends_[k]);
    }
  }
  MPI_Waitall(static_cast<int>(sends_.size()), sends_.data(), MPI_STATUSES_IGNORE);
  if (prefix == nullptr) return;
  if (first) std::fill_n(prefix, map_.shape.elements(), 0.0f);
  if (!first && prefix == state) std::copy_n(x, map_.shape.elements(), prefix);
}

}  // namespace seqpar::perf
