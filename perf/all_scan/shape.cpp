#include "shape.h"

#include <algorithm>
#include <string>

#include "common/names.h"

namespace seqpar::perf {
namespace {

constexpr size_t kHeadRows = 128;
constexpr size_t kHeadColumns = 128;

}  // namespace

Shape shapeFor(size_t elements, const ShapeRequest& request) {
  Shape shape{request.heads, request.dk, request.dv};
  if (request.heads > 0) {
    if (shape.dk == 0) shape.dk = std::clamp<size_t>(elements / request.heads, 1, kHeadRows);
    if (shape.dv == 0) shape.dv = elements / (shape.heads * shape.dk);
  } else {
    const size_t columns = request.dv > 0 ? request.dv : kHeadColumns;
    if (shape.dv == 0) shape.dv = std::min(columns, elements / std::max<size_t>(request.dk, 1));
    if (shape.dk == 0) shape.dk = shape.dv == 0 ? 0 : std::min(kHeadRows, elements / shape.dv);
    shape.heads = shape.dk * shape.dv == 0 ? 0 : elements / (shape.dk * shape.dv);
  }
  if (shape.elements() == 0 || shape.elements() > elements) {
    throw UsageError("no state of " + std::to_string(request.heads) + " heads, dk " + std::to_string(request.dk) +
                     ", dv " + std::to_string(request.dv) + " (0: free) has at most the " + std::to_string(elements) +
                     " elements of the size; expected a larger -b");
  }
  return shape;
}

}  // namespace seqpar::perf
