// mesh_perf: the movements of Mesh-Attention for every shape, including the ring.
#include <algorithm>
#include <memory>

#include "common/session.h"
#include "common/values.h"
#include "exchange/exchange.h"
#include "mesh/traffic.h"

#ifdef SEQPAR_PERF_MPI
#include <mpi.h>
#endif

namespace seqpar::perf {
namespace {

const Names kPasses{{"forward", seqparMeshForward}, {"backward", seqparMeshBackward}};
enum Form { kSteps, kAtOnce };
const Names kForms{{"steps", kSteps}, {"atonce", kAtOnce}};

struct MeshSettings {
  std::vector<int> types{seqparFloat32};
  std::vector<int> passes{seqparMeshForward};
  std::vector<int> forms{kSteps, kAtOnce};
  MeshProblem problem;
};

/// The problem with a query block of about `bytes`.
MeshProblem problemFor(size_t bytes, const MeshSettings& settings) {
  MeshProblem problem = settings.problem;
  const size_t token = static_cast<size_t>(problem.heads * problem.headDim) * bytesOf(problem.type);
  problem.tokens = static_cast<int64_t>(std::max<size_t>(1, (bytes + token / 2) / token));
  return problem;
}

seqparMeshParams_t paramsFor(const MeshProblem& problem, seqparMeshPass_t pass) {
  seqparMeshParams_t params = SEQPAR_MESH_PARAMS_INITIALIZER;
  params.tokens = problem.tokens;
  params.heads = problem.heads;
  params.kvHeads = problem.kvHeads;
  params.headDim = problem.headDim;
  params.dataType = problem.type;
  params.wireType = problem.wireType;
  params.forwardWeight = pass == seqparMeshForward ? 1 : 0;
  params.backwardWeight = pass == seqparMeshForward ? 0 : 1;
  return params;
}

Work meshWork(const std::shared_ptr<MeshTraffic>& traffic, Form form, void* stream) {
  const bool atOnce = form == kAtOnce;
  Work work;
  work.prepare = [traffic, atOnce] { traffic->prepare(atOnce); };
  work.run = [traffic, atOnce, stream] { atOnce ? traffic->runAtOnce(stream) : traffic->runSteps(stream); };
  work.wrong = [traffic, atOnce] { return traffic->wrong(atOnce); };
  work.repeatable = atOnce;  // steps merge into their inputs
  return work;
}

/// An all-gather with the mesh's number of received bytes per rank.
struct PeerGather {
  PeerGather(size_t part, Group& group)
      : send(part, group.comm()), all(part * static_cast<size_t>(group.size()), group.comm()) {
    for (size_t i = 0; i < part; ++i) send.as<unsigned char>()[i] = byteOf(static_cast<size_t>(group.rank()), i);
    send.upload();
  }
  size_t wrong() {
    all.download();
    size_t count = 0;
    for (size_t i = 0; i < all.bytes(); ++i) {
      count += all.as<unsigned char>()[i] == byteOf(i / send.bytes(), i % send.bytes()) ? 0 : 1;
    }
    return count;
  }
  static unsigned char byteOf(size_t sender, size_t index) {
    return static_cast<unsigned char>((index * 31 + sender * 97 + 1) & 0x7f);
  }
  Buffer send, all;
};

template <typename Run>
Work peerWork(size_t bytes, Group& group, Run run) {
  const auto gather = std::make_shared<PeerGather>(bytes / static_cast<size_t>(group.size() - 1), group);
  Work work;
  work.prepare = [gather] { gather->all.fill(0xff); };
  work.run = [gather, run] { run(*gather); };
  work.wrong = [gather] { return gather->wrong(); };
  return work;
}

/// All shapes for one size and pass: measured in turns, printed with the model's choice first.
class Comparison {
 public:
  Comparison(Session& session, const MeshSettings& settings, std::shared_ptr<Nccl> nccl)
      : session_(session), settings_(settings), nccl_(std::move(nccl)) {}

  void run(size_t bytes, seqparMeshPass_t pass) {
    problem_ = problemFor(bytes, settings_);
    const auto params = paramsFor(problem_, pass);
    const auto shapes = plan(params);
    std::vector<std::unique_ptr<Mesh>> meshes;
    std::vector<Case> cases;
    std::vector<const seqparMeshEstimate_t*> shapeOfCase;
    const auto add = [&](const seqparMeshEstimate_t& shape, const std::string& by, Work work) {
      const std::string mark = &shape == &shapes.front() ? "*" : "";
      Row row;
      row.count = static_cast<size_t>(problem_.tokens * problem_.heads * problem_.headDim);
      row.bytes = row.count * bytesOf(problem_.type);
      row.labels = {nameOf(settings_.problem.type, typeNames()), nameOf(pass, kPasses),
                    mark + std::to_string(shape.a) + "x" + std::to_string(shape.b), by};
      cases.push_back({row, std::move(work), {}});
      shapeOfCase.push_back(&shape);
    };
    for (const auto& shape : shapes) {
      meshes.push_back(std::make_unique<Mesh>(shape.a, shape.b, &params, comm()));
      const auto traffic = std::make_shared<MeshTraffic>(meshes.back()->get(), pass, problem_, comm());
      for (const int form : settings_.forms) {
        add(shape, nameOf(form, kForms), meshWork(traffic, static_cast<Form>(form), session_.stream));
      }
      const auto sent = static_cast<size_t>(bytesOfPass(shape, pass));
      if (nccl_ != nullptr) {
        add(shape, "nccl", peerWork(sent, session_.group, [nccl = nccl_](PeerGather& peer) {
              nccl->allGather(peer.send.data(), peer.all.data(), peer.send.bytes());
            }));
      }
#ifdef SEQPAR_PERF_MPI
      if (session_.settings.peers && session_.group.gpu() == nullptr) {
        add(shape, "mpi", peerWork(sent, session_.group, [](PeerGather& peer) {
              const int part = static_cast<int>(peer.send.bytes());
              MPI_Allgather(peer.send.data(), part, MPI_BYTE, peer.all.data(), part, MPI_BYTE, MPI_COMM_WORLD);
            }));
      }
#endif
    }
    std::vector<Row> rows = session_.measure(cases);
    ring_ = &*std::find_if(shapes.begin(), shapes.end(), [](const auto& shape) { return shape.a == 1; });
    for (size_t i = 0; i < rows.size(); ++i) finish(rows[i], *shapeOfCase[i], pass, rows);
  }

 private:
  seqparComm_t comm() {
    return session_.group.comm();
  }

  std::vector<seqparMeshEstimate_t> plan(const seqparMeshParams_t& params) {
    int count = 0;
    require(seqparMeshPlan(&params, comm(), nullptr, &count), "seqparMeshPlan", comm());
    std::vector<seqparMeshEstimate_t> shapes(static_cast<size_t>(count));
    require(seqparMeshPlan(&params, comm(), shapes.data(), &count), "seqparMeshPlan", comm());
    return shapes;
  }

  static int64_t bytesOfPass(const seqparMeshEstimate_t& shape, seqparMeshPass_t pass) {
    return pass == seqparMeshForward ? shape.forwardBytes : shape.backwardBytes;
  }

  void finish(Row& row, const seqparMeshEstimate_t& shape, seqparMeshPass_t pass, const std::vector<Row>& rows) {
    const double us = row.outOfPlace.us;
    const auto sent = static_cast<double>(bytesOfPass(shape, pass));
    const bool peer = row.labels[3] == "mpi" || row.labels[3] == "nccl";
    // The ring moves keys and values only; the reference is its row of the same form.
    const std::string ring = "1x" + std::to_string(session_.group.size());
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
      return other.labels[3] == row.labels[3] && (other.labels[2] == ring || other.labels[2] == "*" + ring);
    });
    const double model = pass == seqparMeshForward ? shape.forwardUs : shape.backwardUs;
    const auto ofRing = static_cast<double>(bytesOfPass(*ring_, pass));
    row.extras = {sent / 1e6, sent / us / 1e3, peer ? Timing::kNone : model, same->outOfPlace.us / us, ofRing / sent};
    session_.report.row(row);
  }

  Session& session_;
  const MeshSettings& settings_;
  std::shared_ptr<Nccl> nccl_;
  MeshProblem problem_;
  const seqparMeshEstimate_t* ring_ = nullptr;
};

void runAll(Session& session, const MeshSettings& settings) {
  const auto nccl = ncclPeer(session);
  forEachSize(session, settings.passes, [&](int pass, size_t size) {
    Comparison(session, settings, nccl).run(size, static_cast<seqparMeshPass_t>(pass));
  });
}

void addOptions(OptionParser& parser, MeshSettings& settings) {
  const auto number = [](int64_t& field) {
    return [&field](const std::string& text) { field = parseInteger(text, 1, 1 << 20); };
  };
  parser.add(0, "pass", "NAMES", "forward, backward or all (forward)",
             [&](const std::string& text) { settings.passes = parseNames(text, kPasses); });
  parser.add(0, "form", "NAMES", "steps, atonce or all (all)",
             [&](const std::string& text) { settings.forms = parseNames(text, kForms); });
  parser.addNames('d', "datatype", "of blocks: float, half, bfloat16 or all (float)", typeNames(), settings.types);
  parser.addName(0, "wire", "of partial results: float, half or bfloat16 (float)", typeNames(),
                 settings.problem.wireType);
  parser.add(0, "heads", "N", "query heads (8)", number(settings.problem.heads));
  parser.add(0, "kv-heads", "N", "heads of keys and values, a divisor of --heads (as many)",
             number(settings.problem.kvHeads));
  parser.add(0, "head-dim,--dim", "N", "length of a query, a key and a value (128)", number(settings.problem.headDim));
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  MeshSettings settings;
  Program program;
  program.name = "mesh_perf";
  program.leastRanks = 2;
  program.summary =
      "The movements of Mesh-Attention without the attention, for all shapes a x b; 1 x n is the ring. Size is a\n"
      "block of queries. steps: the schedule's movements one after the other. atonce: all-gathers and\n"
      "reduce-scatters. mpi, nccl: an all-gather with equal bytes per rank. *: the shape that the model chooses.";
  program.knowsGpus = true;
  program.addOptions = [&](OptionParser& parser) { addOptions(parser, settings); };
  program.checkOptions = [&](Settings&) {
    settings.problem.kvHeads = keyHeadsOf(settings.problem.heads, settings.problem.kvHeads);
  };
  program.layout = [] {
    return Layout{{{"type", "", 8, InPlot::Panel}, {"pass", "", 8}, {"shape", "", 7}, {"by", "", 6}},
                  false,
                  {{"sent", "(MB)", 8},
                   {"sentbw", "(GB/s)", 7},
                   {"model", "(us)", 9},
                   {"ring/", "(x)", 7},
                   {"by sent", "(x)", 8}}};
  };
  program.body = [&](Session& session) {
    for (const int type : settings.types) {
      MeshSettings one = settings;
      one.problem.type = type;
      runAll(session, one);
    }
  };
  return runProgram(program, argc, argv);
}
