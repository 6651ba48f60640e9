// Random programs of threads that share, fail and destroy objects of the library. A wrong result is an exception.
#pragma once

#include <random>

namespace seqpar::test {

/// Threads that launch work on the streams of other threads, also from within work, record events and wait for them,
/// let work fail, and destroy streams and events in use. Work runs once, and no error of work is lost.
void shareStreams(unsigned seed);

/// Ranks as threads with several communicators and streams. One rank may fail a function or a communicator, or abort
/// one, and all end them in any order and from several threads. No collective that succeeds has a wrong result.
void shareCommunicators(unsigned seed);

using Random = std::minstd_rand;

/// A number from 0 to `count` - 1.
inline int draw(Random& random, int count) {
  return static_cast<int>(random() % static_cast<unsigned>(count));
}

}  // namespace seqpar::test
