// Calls of a thread's last moments: in destructors of thread variables and of global objects, which run after those of
// the library's own thread variables.
#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "common/ranks.h"
#include "seqpar/mesh.h"

using namespace seqpar::test;

namespace {

struct Handles {
  seqparComm_t comm = nullptr;
  seqparStream_t stream = nullptr;
};

void use(const Handles& handles) {
  float sent = 1, received = 0;
  for (void* const stream : {static_cast<void*>(nullptr), static_cast<void*>(handles.stream)}) {
    received = 0;
    expectSuccess(seqparCommCallBegin("call", nullptr, 0, handles.comm, stream), "seqparCommCallBegin");
    expectSuccess(seqparSendRecv(&sent, sizeof(sent), 0, &received, sizeof(received), 0, handles.comm, stream),
                  "seqparSendRecv");
    expectSuccess(seqparStreamSynchronize(handles.stream), "seqparStreamSynchronize");
    expect(received == 1, "received ", received);
    expectSuccess(seqparCommCallEnd(), "seqparCommCallEnd");
  }
  seqparMesh_t mesh = nullptr;
  expectSuccess(seqparMeshCreate(&mesh, 1, 1, nullptr, handles.comm), "seqparMeshCreate");
  expectSuccess(seqparMeshDestroy(mesh), "seqparMeshDestroy");
  expect(seqparCommUserRank(handles.comm, nullptr) == seqparInvalidArgument, "NULL");
  for (seqparComm_t comm : {handles.comm, seqparComm_t{nullptr}}) {
    const std::string text = seqparGetLastError(comm);
    expect(text == "seqparCommUserRank: rank is NULL", text);
  }
}

/// Its destructor is the last use.
struct Last {
  Handles handles;
  std::string* error = nullptr;
  ~Last() {
    error->clear();
    try {
      use(handles);
      use(handles);
      expectSuccess(seqparStreamDestroy(handles.stream), "seqparStreamDestroy");
      expectSuccess(seqparCommDestroy(handles.comm), "seqparCommDestroy");
    } catch (const std::exception& wrong) {
      *error = wrong.what();
    }
  }
};

}  // namespace

TEST_CASE("a thread may call in the destructor of a variable that it made before its first call") {
  std::string ofThread, ofDestructor = "it did not run";
  std::thread([&] {
    thread_local Last last;
    last.error = &ofDestructor;
    try {
      expectSuccess(seqparCommInitAll(&last.handles.comm, 1, nullptr), "seqparCommInitAll");
      expectSuccess(seqparStreamCreate(&last.handles.stream), "seqparStreamCreate");
      use(last.handles);
    } catch (const std::exception& wrong) {
      ofThread = wrong.what();
    }
  }).join();
  CHECK(ofThread == "");
  CHECK(ofDestructor == "");
}
