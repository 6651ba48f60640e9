// seqparMeshAllGather() beside all-gathers of communicators of the same ranks.
#pragma once

namespace seqpar::perf {

class Session;

/// Collective: the KV groups of the mesh that is most nearly square, all groups at once. A row's size is that of what a
/// rank has afterwards.
void runGroupGathers(Session& session, int type);

}  // namespace seqpar::perf
