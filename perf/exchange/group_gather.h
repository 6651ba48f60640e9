// seqparMeshAllGather(), compared with all-gathers on communicators of equal groups.
#pragma once

namespace seqpar::perf {

class Session;

/// Collective: the KV groups of the most nearly square mesh, all groups concurrently. A row's size is the gathered size
/// of a rank.
void runGroupGathers(Session& session, int type);

}  // namespace seqpar::perf
