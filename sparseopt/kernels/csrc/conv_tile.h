// The heart of every forward convolution: a tile of TH x TW output vectors stays in registers while all active weights of one
// output channel pass by; each weight costs one broadcast and TH * TW fused multiply-adds straight from memory. Where all weights are
// active, the lists of all channels are the same, and the tile is one of O channels: each vector read feeds all of them.
//
// What differs is passed in: how vector j of a row is read, what an accumulator of channel o starts from, and what happens to the
// finished tile of a channel.
#pragma once
#include "pattern.h"
#include "simd.h"

namespace sparseopt {

// Channels of a tile where all weights are active: with four columns, three fill 16 registers.
constexpr int kDenseChannels = kRegisters >= 32 ? 4 : 3;

// Pairs: two weights before the loop asks whether there are more; where registers allow it, of one load.
template <int O, int TH, int TW, bool Pairs, class Read, class Start, class Finish>
SPARSEOPT_INLINE void convolve_tile(const Pattern& w, int first_channel, int last_channel, const float* x, int64_t row, Read read,
                                    Start start, Finish finish) {
  int o = first_channel;
  for (; o + O <= last_channel; o += O) {
    Vec acc[O][TH][TW];
#pragma GCC unroll 8
    for (int n = 0; n < O; ++n)
#pragma GCC unroll 8
      for (int i = 0; i < TH; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < TW; ++j) acc[n][i][j] = broadcast(start(o + n));
    const int count = w.start[o + 1] - w.start[o];
    const int* offset = w.offset + w.start[O > 1 ? first_channel : o];
    const float* value = w.value + w.start[o];
    const auto add_all = [&](const Vec(&weight)[O], int64_t offset) SPARSEOPT_LAMBDA {
      const float* p = x + offset;
#pragma GCC unroll 8
      for (int i = 0; i < TH; ++i) {
        pin(p);
#pragma GCC unroll 8
        for (int j = 0; j < TW; ++j) {
          const Vec v = O > 1 ? held(read(p, j)) : read(p, j);
#pragma GCC unroll 8
          for (int n = 0; n < O; ++n) acc[n][i][j] += weight[n] * v;
        }
        p += row;
      }
    };
    const auto add = [&](int k) SPARSEOPT_LAMBDA {
      Vec weight[O];
#pragma GCC unroll 8
      for (int n = 0; n < O; ++n) weight[n] = broadcast(value[n * int64_t(count) + k]);
      add_all(weight, offset[k]);
    };
    int k = 0;
    if constexpr (Pairs && O == 1 && kRegisters >= 32) {
      in_pairs<kLanes>(value, offset, 0, count, [&](int, Vec weight, int64_t from) SPARSEOPT_LAMBDA { add_all({weight}, from); });
    } else if constexpr (Pairs) {
      if (count % 2) add(k++);
      for (; k < count; k += 2) add(k), add(k + 1);
    } else {
      for (; k < count; ++k) add(k);
    }
#pragma GCC unroll 8
    for (int n = 0; n < O; ++n) finish(o + n, acc[n]);
  }
  if constexpr (O > 1)
    if (o < last_channel) convolve_tile<O - 1, TH, TW, Pairs>(w, o, last_channel, x, row, read, start, finish);
}

}  // namespace sparseopt
