// Descriptions of the families of linear attention.
#include "attn/boundary.h"
#include "attn/linear/families/family.h"
#include "base/arguments.h"
#include "base/versioned.h"

using namespace seqpar;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

seqparResult_t seqparAttnFamilyQuery(int id, seqparAttnFamilyInfo_t* info) {
  constexpr const char* kCall = "seqparAttnFamilyQuery";
  return guard(kCall, [&] {
    const linear::Family* const family = linear::findFamily(id);
    if (family == nullptr) {
      fail(seqparInvalidArgument, kCall, ": family is ", id, ", expected 1 to ", SEQPAR_ATTN_FAMILIES - 1);
    }
    seqparAttnFamilyInfo_t found = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
    found.name = family->name;
    found.paper = family->paper;
    found.transition = family->transition;
    found.gates = static_cast<int>(family->gateCount);
    for (size_t i = 0; i < family->gateCount; ++i) {
      found.gateNames[i] = family->gateRows[i].name;
      found.gateShapes[i] = family->gateRows[i].shape;
    }
    writeVersioned(kCall, "info", info, found);
  });
}
