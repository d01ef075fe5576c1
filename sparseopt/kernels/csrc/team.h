// Several threads on the same few samples: every layer is shared out, and the next one begins when all are done.
#pragma once
#include <algorithm>

#include "layout.h"
#include "parallel.h"

namespace sparseopt {

struct Member {
  int number = 0, of = 1;

  // Until all members have come here. A team of one may be inside somebody else's parallel region, whose threads are not waited for.
  void wait() const {
    if (of > 1) barrier();
  }
};

// Calls f(member) for every member of a team of `size` threads, or of as many as can be had.
template <class F>
void as_team(int size, const F& f) {
  if (size <= 1 || in_parallel_region()) return f(Member{});
  // Where one of them failed, the others would wait for it: rather end.
  in_team(size, [&](int number, int of) noexcept { f(Member{number, of}); });
}

// What one member computes of an image: columns and channels from first to last - 1.
struct Part {
  int first_column, last_column, first_channel, last_channel;
};

inline Part whole(const View& y) { return {0, y.width, 0, y.channels}; }

constexpr int kColumns = 4;  // of a tile

// Columns where there are enough of them: what a member reads in the next layer is then mostly its own. Else channels, so that
// all have as many weights; `start` are the layer's lists.
inline Part part_of(const View& y, const int* start, const Member& member) {
  Part part = whole(y);
  if (y.width >= 2 * kColumns * member.of) {
    const int tiles = (y.width + kColumns - 1) / kColumns;
    const auto column = [&](int number) { return std::min(y.width, tiles * number / member.of * kColumns); };
    part.first_column = column(member.number), part.last_column = column(member.number + 1);
  } else {
    const auto channel = [&](int number) {
      const int weights = int(int64_t(start[y.channels] - start[0]) * number / member.of);
      return number == member.of ? y.channels : int(std::lower_bound(start, start + y.channels, start[0] + weights) - start);
    };
    part.first_channel = channel(member.number), part.last_channel = channel(member.number + 1);
  }
  return part;
}

}  // namespace sparseopt
