// The heart of every forward convolution: a tile of TH x TW output vectors stays in registers while all active weights of one
// output channel pass by; each weight costs one broadcast and TH * TW fused multiply-adds straight from memory.
//
// What differs between training and inference is passed in: how vector j of a row is read, what an accumulator of channel o
// starts from, and what happens to the finished tile.
#pragma once
#include "pattern.h"
#include "vec.h"

namespace sparseopt {

// Pairs: two weights before the loop asks whether there are more.
template <int TH, int TW, bool Pairs, class Read, class Start, class Finish>
SPARSEOPT_INLINE void convolve_tile(const Pattern& w, int first_channel, int last_channel, const float* x, int64_t row, Read read,
                                    Start start, Finish finish) {
  for (int o = first_channel; o < last_channel; ++o) {
    Vec acc[TH][TW];
    const Vec begin = broadcast(start(o));
#pragma GCC unroll 8
    for (int i = 0; i < TH; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < TW; ++j) acc[i][j] = begin;
    const auto add = [&](int k) SPARSEOPT_LAMBDA {
      const Vec weight = broadcast(w.value[k]);
      const float* p = x + w.offset[k];
#pragma GCC unroll 8
      for (int i = 0; i < TH; ++i) {
        pin(p);
#pragma GCC unroll 8
        for (int j = 0; j < TW; ++j) acc[i][j] += weight * read(p, j);
        p += row;
      }
    };
    const int last = w.start[o + 1];
    int k = w.start[o];
    if constexpr (Pairs) {
      if ((last - k) % 2) add(k++);
      for (; k < last; k += 2) add(k), add(k + 1);
    } else {
      for (; k < last; ++k) add(k);
    }
    finish(o, acc);
  }
}

}  // namespace sparseopt
