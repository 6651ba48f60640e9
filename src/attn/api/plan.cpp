// The C calls of seqpar/attn_plan.h.
#include <cstring>
#include <memory>

#include "attn/api/arguments.h"
#include "attn/boundary.h"
#include "attn/packing.h"
#include "attn/plan/plan.h"
#include "base/arguments.h"
#include "base/checked.h"
#include "base/handle_table.h"
#include "base/versioned.h"

namespace seqpar::attn {
namespace {

HandleTable<Plan, seqparAttnPlan_t>& plans() {
  return handleTable<Plan, seqparAttnPlan_t>();
}

std::shared_ptr<Plan> find(const char* call, seqparAttnPlan_t plan) {
  requirePointer(call, "plan", plan);
  return seqpar::require(plans(), plan, call, "plan", "plan");
}

std::shared_ptr<Plan> findPrepared(const char* call, seqparAttnPlan_t plan) {
  auto found = find(call, plan);
  if (!found->prepared()) {
    fail(seqparInvalidUsage, call, ": the plan is not prepared, expected seqparAttnPlanPrepare() first");
  }
  return found;
}

void checkWorkspace(const char* call, const Plan& plan, const void* workspace, size_t bytes) {
  if (workspace == nullptr) {
    if (bytes != 0) fail(seqparInvalidArgument, call, ": workspace is NULL with bytes ", bytes, ", expected 0");
    return;
  }
  requireArray(call, "workspace", workspace, bytes, 1);
  if (bytes < plan.workspaceBytes()) {
    fail(seqparInvalidArgument, call, ": bytes is ", bytes, ", expected at least ", plan.workspaceBytes());
  }
  if (reinterpret_cast<std::uintptr_t>(workspace) % Arena::kAlignment != 0) {
    fail(seqparInvalidArgument, call, ": workspace is ", workspace, ", expected a multiple of ", Arena::kAlignment);
  }
}

/// Checks the arguments of a pass and enqueues it.
template <typename Args>
void run(const char* call, Plan& plan, const Args& args, void* stream, void (Operator::*pass)(const Args&)) {
  const auto& problem = plan.problem();
  checkArguments(call, problem, args, plan.reserveBytes());
  plan.chosen().check(call, args);
  requireUse(call, problem.comm, problem.onDevice(), stream);
  plan.run(call, stream, outputsOf(problem, args), args.reserve, [&](Operator& chosen) { (chosen.*pass)(args); });
}

constexpr seqparAttnForwardArgs_t kForwardDefaults = SEQPAR_ATTN_FORWARD_INITIALIZER;
constexpr seqparAttnBackwardArgs_t kBackwardDefaults = SEQPAR_ATTN_BACKWARD_INITIALIZER;

}  // namespace
}  // namespace seqpar::attn

using namespace seqpar;        // NOLINT(google-build-using-namespace)
using namespace seqpar::attn;  // NOLINT(google-build-using-namespace)

seqparResult_t seqparAttnPlanCreate(seqparAttnPlan_t* plan, const seqparAttnDesc_t* desc, seqparComm_t comm) {
  constexpr const char* kCall = "seqparAttnPlanCreate";
  return guard(kCall, [&] {
    requirePointer(kCall, "plan", plan);
    *plan = plans().add(std::make_shared<Plan>(kCall, desc, comm));
  });
}

seqparResult_t seqparAttnPlanDestroy(seqparAttnPlan_t plan) {
  constexpr const char* kCall = "seqparAttnPlanDestroy";
  return guard(kCall, [&] {
    if (plan == nullptr) return;
    find(kCall, plan);
    plans().remove(plan);
  });
}

seqparResult_t seqparAttnPlanWorkspaceSize(seqparAttnPlan_t plan, size_t* bytes) {
  constexpr const char* kCall = "seqparAttnPlanWorkspaceSize";
  return guard(kCall, [&] {
    const auto found = find(kCall, plan);
    requirePointer(kCall, "bytes", bytes);
    *bytes = found->workspaceBytes();
  });
}

seqparResult_t seqparAttnPlanReserveSize(seqparAttnPlan_t plan, size_t* bytes) {
  constexpr const char* kCall = "seqparAttnPlanReserveSize";
  return guard(kCall, [&] {
    const auto found = find(kCall, plan);
    requirePointer(kCall, "bytes", bytes);
    *bytes = found->reserveBytes();
  });
}

seqparResult_t seqparAttnPlanPrepare(seqparAttnPlan_t plan, void* workspace, size_t bytes) {
  constexpr const char* kCall = "seqparAttnPlanPrepare";
  return guard(kCall, [&] {
    const auto found = find(kCall, plan);
    if (found->prepared()) fail(seqparInvalidUsage, kCall, ": the plan was prepared before");
    checkWorkspace(kCall, *found, workspace, bytes);
    found->prepare(workspace);
  });
}

seqparResult_t seqparAttnPlanLayout(seqparAttnPlan_t plan, seqparLayout_t* layout, int64_t* localTokens) {
  constexpr const char* kCall = "seqparAttnPlanLayout";
  return guard(kCall, [&] {
    const auto found = find(kCall, plan);
    const auto& problem = found->problem();
    if (layout != nullptr) writeVersioned(kCall, "layout", layout, problem.queries.layout());
    if (localTokens != nullptr) *localTokens = problem.tokens();
  });
}

seqparResult_t seqparAttnPlanExplain(seqparAttnPlan_t plan, char* text, size_t* bytes) {
  constexpr const char* kCall = "seqparAttnPlanExplain";
  return guard(kCall, [&] {
    const auto whole = find(kCall, plan)->explain();
    requirePointer(kCall, "bytes", bytes);
    const size_t needed = whole.size() + 1;
    if (text != nullptr) {
      if (*bytes < needed) fail(seqparInvalidArgument, kCall, ": *bytes is ", *bytes, ", expected at least ", needed);
      std::memcpy(text, whole.c_str(), needed);
    }
    *bytes = needed;
  });
}

seqparResult_t seqparAttnForward(seqparAttnPlan_t plan, const seqparAttnForwardArgs_t* args, void* stream) {
  constexpr const char* kCall = "seqparAttnForward";
  return guard(kCall, [&] {
    const auto found = findPrepared(kCall, plan);
    run(kCall, *found, readVersioned(kCall, "args", args, kForwardDefaults), stream, &Operator::forward);
  });
}

seqparResult_t seqparAttnBackward(seqparAttnPlan_t plan, const seqparAttnBackwardArgs_t* args, void* stream) {
  constexpr const char* kCall = "seqparAttnBackward";
  return guard(kCall, [&] {
    const auto found = findPrepared(kCall, plan);
    if (!found->problem().training()) {
      fail(seqparInvalidUsage, kCall, ": the plan has training 0, expected a plan with training 1");
    }
    run(kCall, *found, readVersioned(kCall, "args", args, kBackwardDefaults), stream, &Operator::backward);
  });
}
