// The active weights of a layer, as the kernels walk them: one list a channel. `offset` is where a weight reads, relative to
// the position being computed. Shape and padding are all inside the offsets, so one kernel serves every kernel size.
//
// The dense weight is read and its gradient written once a pass, in the order of memory; between the two, the values travel
// packed in forward order. The backward pass walks them in another order, given by `order`.
#pragma once
#include <atomic>
#include <bit>

#include "parallel.h"
#include "scratch.h"
#include "vec.h"

namespace sparseopt {

constexpr int64_t kCopies = 1 << 14;  // entries that are worth a thread

struct Pattern {
  const int* start;  // list of channel c: start[c] .. start[c + 1] - 1
  const int* offset;
  const float* value;
  int64_t size;
};

// The same lists with the values in their order, copied from the order of memory.
inline Pattern ordered(Pattern pattern, const int* order) {
  float* value = scratch<Use::weights>().get<float>(pattern.size);
  parallel_for(0, pattern.size, kCopies, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) value[k] = pattern.value[order[k]];
  });
  pattern.value = value;
  return pattern;
}

// Asks for the memory of an entry to come, into the second-level cache: the next line is rarely the next one in memory.
SPARSEOPT_INLINE void prefetch(const float* dense, const int* position, int64_t k, int64_t end) {
  constexpr int64_t kAhead = 128;
  if (k + kAhead < end) __builtin_prefetch(dense + position[k + kAhead], 0, 2);
}

// The active values of a dense tensor; and whether they are, bit by bit, those before, if these are given.
inline bool gather(const float* dense, const int* position, int64_t size, const float* before, float* values) {
  std::atomic<bool> same = before != nullptr;
  parallel_for(0, size, kCopies, [&](int64_t begin, int64_t end) {
    int32_t differs = 0;
    for (int64_t k = begin; k < end; ++k) {
      prefetch(dense, position, k, end);
      values[k] = dense[position[k]];
      if (before) differs |= std::bit_cast<int32_t>(values[k]) ^ std::bit_cast<int32_t>(before[k]);
    }
    if (differs) same = false;
  });
  return same;
}

// How many entries are not zero; NaN is not.
inline int64_t nonzeros(const float* x, int64_t size) {
  std::atomic<int64_t> found = 0;
  parallel_for(0, size, kCopies, [&](int64_t begin, int64_t end) {
    int64_t total = 0;
    for (int64_t first = begin; first < end; first += 1 << 16) {
      int32_t part = 0;
      for (int64_t k = first; k < std::min<int64_t>(end, first + (1 << 16)); ++k) part += x[k] != 0.f;
      total += part;
    }
    found += total;
  });
  return found;
}

inline void scatter(const float* values, const int* position, int64_t size, float* dense) {
  parallel_for(0, size, kCopies, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      prefetch(dense, position, k, end);
      dense[position[k]] = values[k];
    }
  });
}

}  // namespace sparseopt
