// The heart of every forward convolution: a tile of TH x TW output vectors stays in registers while all active weights of one
// output channel pass by; each weight costs one broadcast and TH * TW fused multiply-adds straight from memory.
//
// What differs between training and inference is passed in: how vector j of a row is read, what an accumulator of channel o
// starts from, and what happens to the finished tile.
#pragma once
#include "pattern.h"
#include "vec.h"

namespace sparseopt {

template <int TH, int TW, class Read, class Start, class Finish>
SPARSEOPT_INLINE void convolve_tile(const Pattern& w, int first_channel, int last_channel, const float* x, int64_t row, Read read,
                                    Start start, Finish finish) {
  for (int o = first_channel; o < last_channel; ++o) {
    Vec acc[TH][TW];
    const Vec begin = broadcast(start(o));
#pragma GCC unroll 8
    for (int i = 0; i < TH; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < TW; ++j) acc[i][j] = begin;
    for (int k = w.start[o]; k < w.start[o + 1]; ++k) {
      const Vec weight = broadcast(w.value[k]);
      const float* p = x + w.offset[k];
#pragma GCC unroll 8
      for (int i = 0; i < TH; ++i) {
        pin(p);
#pragma GCC unroll 8
        for (int j = 0; j < TW; ++j) acc[i][j] += weight * read(p, j);
        p += row;
      }
    }
    finish(o, acc);
  }
}

}  // namespace sparseopt
