// A forked child has its parent's memory but not its threads, and other ranks would take its data for the parent's.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/ranks.h"
#include "common/sanitized.h"

using namespace seqpar::test;

namespace {

void expectForked(seqparResult_t result, const char* call) {
  const std::string text = seqparGetLastError(nullptr);
  expect(result == seqparInvalidArgument, call, " returned ", result);
  expect(text.find(call) == 0 && text.find("a forked process cannot use those of its parent") != std::string::npos,
         text);
}

void useInChild(seqparComm_t comm, seqparStream_t stream, int rank) {
  char sent = 1, received = 0;
  expectForked(seqparSendRecv(&sent, 1, 1 - rank, &received, 1, 1 - rank, comm, nullptr), "seqparSendRecv");
  expectForked(seqparCommBarrier(comm), "seqparCommBarrier");
  expectForked(seqparStreamSynchronize(stream), "seqparStreamSynchronize");
  expectForked(seqparCommAbort(comm), "seqparCommAbort");
  expectForked(seqparCommDestroy(comm), "seqparCommDestroy");
#ifdef SEQPAR_SANITIZED  // the thread sanitizer ends a child that creates threads
  return;
#endif
  const auto errors = onCommunicator(2, [](seqparComm_t own, int place) {
    int from = -1;
    expectSuccess(seqparSendRecv(&place, sizeof(place), 1 - place, &from, sizeof(from), 1 - place, own, nullptr),
                  "own");
    expect(from == 1 - place, "received ", from);
  });
  expect(errors.empty(), errors);
}

/// The child's exit status: 0 if body() found nothing wrong.
int inChild(const std::function<void()>& body) {
  const pid_t pid = fork();
  expect(pid >= 0, "fork failed");
  if (pid == 0) {
    alarm(600);  // should it hang
    try {
      body();
    } catch (const std::exception& error) {
      fprintf(stderr, "forked child: %s\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("a forked child's calls on its parent's communicator are refused, and the parent's continue") {
  const auto errors = onCommunicator(2, [](seqparComm_t comm, int rank) {
    seqparStream_t stream = nullptr;
    expectSuccess(seqparStreamCreate(&stream), "seqparStreamCreate");
    const auto exchange = [&](int value) {
      int sent = value + rank, received = -1;
      expectSuccess(seqparSendRecv(&sent, sizeof(sent), 1 - rank, &received, sizeof(received), 1 - rank, comm, stream),
                    "seqparSendRecv", comm);
      expectSuccess(seqparStreamSynchronize(stream), "seqparStreamSynchronize");
      expect(received == value + 1 - rank, "received ", received);
    };
    exchange(10);
    const int status = rank == 0 ? inChild([&] { useInChild(comm, stream, rank); }) : 0;
    expect(status == 0, "the child ended with status ", status);
    for (int i = 0; i < 20; ++i) exchange(20 + i);
    expectSuccess(seqparStreamDestroy(stream), "seqparStreamDestroy");
  });
  CHECK(errors == "");
}

TEST_CASE("a forked child frees memory while its parent's threads allocate") {
  seqparComm_t comm = nullptr;
  REQUIRE(seqparCommInitAll(&comm, 1, nullptr) == seqparSuccess);
  void* buffer = nullptr;
  REQUIRE(seqparMemAlloc(&buffer, 100, comm) == seqparSuccess);
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      void* own = nullptr;
      while (!stop && seqparMemAlloc(&own, 100, comm) == seqparSuccess) seqparMemFree(own);
    });
  }
  int status = 0;
  for (int child = 0; child < 50 && status == 0; ++child) {
    status = inChild([&] {
      alarm(60);
      expectSuccess(seqparMemFree(buffer), "seqparMemFree");
    });
  }
  stop = true;
  threads.clear();
  CHECK(status == 0);
  CHECK(seqparMemFree(buffer) == seqparSuccess);
  CHECK(seqparCommDestroy(comm) == seqparSuccess);
}
