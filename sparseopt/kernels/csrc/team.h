// Several threads on the same few samples: every layer is shared out, and the next one begins when all are done.
#pragma once
#include <algorithm>

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

// The first channel of a member, so that all have as many weights; `count`: weights of the channels below c are count(c).
template <class F>
int first_channel(int channels, const Member& member, int number, const F& count) {
  if (number >= member.of) return channels;
  const int64_t wanted = int64_t(count(channels)) * number / member.of;
  int low = 0, high = channels;
  while (low < high) {
    const int middle = (low + high) / 2;
    count(middle) < wanted ? low = middle + 1 : high = middle;
  }
  return low;
}

// Columns where they may be shared and there are enough tiles of them: what a member reads in the next layer is then mostly its own.
// Else channels.
template <class F>
Part part_of(int width, int channels, int tile, bool share_columns, const Member& member, const F& count) {
  Part part{0, width, 0, channels};
  if (member.of == 1) return part;
  const int tiles = (width + tile - 1) / tile;
  if (share_columns && tiles >= 2 * member.of) {
    const auto column = [&](int number) { return std::min(width, tiles * number / member.of * tile); };
    part.first_column = column(member.number), part.last_column = column(member.number + 1);
  } else {
    part.first_channel = first_channel(channels, member, member.number, count);
    part.last_channel = first_channel(channels, member, member.number + 1, count);
  }
  return part;
}

}  // namespace sparseopt
