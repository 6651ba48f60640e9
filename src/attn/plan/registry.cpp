#include "attn/plan/registry.h"

#include <array>

#include "attn/linear/algorithms.h"
#include "attn/softmax/algorithms.h"
#include "attn/softmax/base.h"
#include "attn/softmax/cost.h"

namespace seqpar::attn {
namespace {

const std::array kAlgorithms{
    AlgorithmRow{seqparAttnLocal, "local", "no exchange", true, refusesNothing, contiguousLayout, estimateLocal,
                 makeLocal},
    AlgorithmRow{seqparAttnRing, "ring", "Ring Attention, arXiv 2310.01889, section 3", true, refusesNothing,
                 contiguousLayout, estimateRing, makeRing},
    AlgorithmRow{seqparAttnRingPassQ, "ring_pass_q", "Context Parallelism for Inference, arXiv 2411.01783, section 3.3",
                 true, refusesRingPassQ, balancedLayout, estimateRingPassQ, makeRingPassQ},
    AlgorithmRow{seqparAttnZigzag, "zigzag", "Ring Attention on the zigzag layout", true, refusesZigzag, zigzagLayout,
                 estimateRing, makeRing},
    AlgorithmRow{seqparAttnStriped, "striped", "Striped Attention, arXiv 2311.09431, section 3", true, refusesStriped,
                 stripedLayout, estimateRing, makeRing},
    AlgorithmRow{seqparAttnBurst, "burst", "BurstAttention, arXiv 2403.09347, section 3", true, refusesNothing,
                 balancedLayout, estimateBurst, makeBurst},
    AlgorithmRow{seqparAttnDoubleRing, "double_ring", "LoongTrain, arXiv 2406.18485, Double-Ring-Attention", true,
                 refusesNothing, balancedLayout, estimateDoubleRing, makeDoubleRing},
    AlgorithmRow{seqparAttnAllGatherKv, "allgather_kv", "Llama 3, arXiv 2407.21783, section 3.3.2", true,
                 refusesNothing, balancedLayout, estimateAllGatherKv, makeAllGatherKv},
    AlgorithmRow{seqparAttnUlysses, "ulysses", "DeepSpeed Ulysses, arXiv 2309.14509, section 3", true, refusesNothing,
                 contiguousLayout, estimateUlysses, makeUlysses},
    AlgorithmRow{seqparAttnUsp, "usp", "Unified Sequence Parallelism, arXiv 2405.07719, section 3", true,
                 refusesNothing, balancedLayout, estimateUsp, makeUsp},
    AlgorithmRow{seqparAttnMesh, "mesh", "Mesh-Attention, arXiv 2512.20968, Algorithm 2 and section 3.6", true,
                 refusesNothing, balancedLayout, estimateMesh, makeMesh},
    AlgorithmRow{seqparAttnAttention2d, "attention2d", "Attention2D, arXiv 2503.15758, without overlap", true,
                 refusesNothing, balancedLayout, estimateAttention2d, makeAttention2d},
    AlgorithmRow{seqparAttnDistAttn, "dist_attn", "LightSeq / DistFlashAttn, arXiv 2310.03294, section 3.1", true,
                 refusesDistAttn, contiguousLayout, estimateDistAttn, makeDistAttn},
    AlgorithmRow{seqparAttnStarTrail, "startrail", "StarTrail, arXiv 2407.00611, concentric rings", true,
                 refusesStarTrail, balancedLayout, estimateStarTrail, makeStarTrail},
    AlgorithmRow{seqparAttnRingSelfAttention, "ring_self_attention",
                 "Ring Self-Attention, arXiv 2105.13120, section 3.2", true, refusesNothing, balancedLayout,
                 estimateRingSelfAttention, makeRingSelfAttention},
    AlgorithmRow{seqparAttnMegatronSp, "megatron_sp", "Megatron-LM, arXiv 2205.05198, section 4.2.2", true,
                 refusesNothing, contiguousLayout, estimateMegatronSp, makeMegatronSp},
    AlgorithmRow{seqparAttnLocal, "local", "no exchange", false, linear::refuses, contiguousLayout,
                 linear::estimateLocal, linear::makeLocal},
    AlgorithmRow{seqparAttnZeco, "zeco", "ZeCO, arXiv 2507.01004, Algorithms 1 and 3", false, linear::refuses,
                 contiguousLayout, linear::estimateZeco, linear::makeZeco},
    AlgorithmRow{seqparAttnLasp1, "lasp1", "LASP, arXiv 2404.02882, Algorithms 2 and 3", false, linear::refuses,
                 contiguousLayout, linear::estimateLasp1, linear::makeLasp1},
    AlgorithmRow{seqparAttnLasp2, "lasp2", "LASP-2, arXiv 2502.07563, Algorithms 2 and 4", false, linear::refuses,
                 contiguousLayout, linear::estimateLasp2, linear::makeLasp2},
};

}  // namespace

std::span<const AlgorithmRow> algorithms() {
  return kAlgorithms;
}

const AlgorithmRow* findAlgorithm(int id, bool softmax) {
  for (const auto& row : kAlgorithms) {
    if (row.id == id && row.softmax == softmax) return &row;
  }
  return nullptr;
}

std::string algorithmsThatCan(const Problem& problem) {
  std::string names;
  for (const auto& row : kAlgorithms) {
    if (row.softmax == problem.softmax() && row.refuses(problem).empty()) {
      names += (names.empty() ? "" : ", ") + std::string(row.name);
    }
  }
  return names.empty() ? "none" : names;
}

}  // namespace seqpar::attn

const char* seqparAttnAlgorithmName(int algorithm) {
  if (algorithm == seqparAttnAuto) return "auto";
  for (const auto& row : seqpar::attn::algorithms()) {
    if (row.id == algorithm) return row.name;
  }
  return nullptr;
}
