// The heart of inference: a tile of TH x TW output vectors stays in registers while the weights of one output channel pass by;
// each costs one broadcast and TH * TW fused multiply-adds straight from memory.
//
// The weights of a channel may come in several blocks of input channels, so that what they read stays in the first-level cache: the
// sums then wait in `partial` for the next block. Whatever the tile, the blocks and the lanes, an output is the same sum in the same
// order: bias, weights in the order of memory, shortcut. So it is the same bits.
#pragma once
#include <algorithm>

#include "recut.h"
#include "simd.h"

namespace sparseopt {

// What one call of a kernel computes: output channels from first to last - 1 of one tile, by the weights of one block.
struct Tile {
  const int* start;  // list of channel c: start[c] .. start[c + 1] - 1
  const int* offset;
  const float* value;
  const float* bias;
  int first_channel, last_channel;
  bool first_block, last_block, relu;
  const float* x;
  int64_t x_row;   // from one row of the tile to the next, in floats
  float* partial;  // [channel][TH][TW][lane]
  float* y;
  int64_t y_row, y_channel;
  int rows, columns;      // of the tile that exist: a tile may reach beyond the image
  Recut recut;            // of the output
  const float* shortcut;  // null: none
  int64_t shortcut_row, shortcut_channel, shortcut_column;
  int shortcut_offset, shortcut_channels;
  const float *ahead, *ahead_end;  // what is read next
  int64_t ahead_step;              // floats of it that an output channel asks for
};

constexpr int64_t kLine = 16;  // floats of a cache line
constexpr int kChannelsAhead = 4;  // of the one at work, whose place among other shares is asked for

// S: vectors from one column of the tile to the next. Scale: floats that an offset counts.
template <int L, int TH, int TW, int S, int Scale>
void convolve(const Tile& tile) {
  const Tile t = tile;  // so that no store can change it
  using V = Simd<L>;
  using Vec = typename V::Vec;
  const bool whole = t.rows == TH && t.columns == TW;
  const auto each = [](auto f) SPARSEOPT_LAMBDA {
#pragma GCC unroll 16
    for (int i = 0; i < TH; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < TW; ++j) f(i, j);
  };
  const float* ahead = t.ahead;
  for (int o = t.first_channel; o < t.last_channel; ++o) {
    for (const float* end = std::min(ahead + t.ahead_step, t.ahead_end); ahead < end; ahead += kLine) __builtin_prefetch(ahead, 0, 2);
    if (t.last_block && t.recut.ratio > 1) {  // half-written lines of another time: they are far away
      const float* soon = t.y + std::min(o + kChannelsAhead, t.last_channel - 1) * t.y_channel;
      for (int part = 0; part < t.recut.ratio; ++part)
        for (int i = 0; i < TH; ++i)
#pragma GCC unroll 16
          for (int j = 0; j < TW * L; j += kLine) __builtin_prefetch(soon + part * t.recut.part + i * t.y_row + j, 1, 2);
    }
    Vec acc[TH][TW];
    float* partial = t.partial + int64_t(o) * (TH * TW * L);
    if (t.first_block) {
      const Vec begin = V::broadcast(t.bias[o]);
      each([&](int i, int j) SPARSEOPT_LAMBDA { acc[i][j] = begin; });
    } else {
      each([&](int i, int j) SPARSEOPT_LAMBDA { acc[i][j] = V::load(partial + (i * TW + j) * L); });
    }
    in_pairs<L>(t.value, t.offset, t.start[o], t.start[o + 1], [&](int, Vec weight, int64_t offset) SPARSEOPT_LAMBDA {
      const float* p = t.x + offset * Scale;
#pragma GCC unroll 16
      for (int i = 0; i < TH; ++i) {
        pin(p);
#pragma GCC unroll 16
        for (int j = 0; j < TW; ++j) acc[i][j] += weight * V::load(p + j * S * L);
        if (TH > 1) p += t.x_row;
      }
    });
    if (!t.last_block) {
      each([&](int i, int j) SPARSEOPT_LAMBDA { V::store(partial + (i * TW + j) * L, acc[i][j]); });
      continue;
    }
    const int source = o - t.shortcut_offset;
    if (t.shortcut && source >= 0 && source < t.shortcut_channels) {
      const float* add = t.shortcut + source * t.shortcut_channel;
      each([&](int i, int j) SPARSEOPT_LAMBDA {
        if (whole || (i < t.rows && j < t.columns)) acc[i][j] += V::load(add + i * t.shortcut_row + j * t.shortcut_column);
      });
    }
    if (t.relu) each([&](int i, int j) SPARSEOPT_LAMBDA { acc[i][j] = V::relu(acc[i][j]); });
    float* y = t.y + o * t.y_channel;
    if (t.recut.ratio == 2 && whole) {  // what cuts mostly are, without a way through memory
      each([&](int i, int j) SPARSEOPT_LAMBDA { store_parts<L, 2>(y + i * t.y_row + j * L, acc[i][j], t.recut.part); });
    } else if (t.recut.ratio > 1) {
      alignas(64) float made[TH * TW * L];
      each([&](int i, int j) SPARSEOPT_LAMBDA { V::store(made + (i * TW + j) * L, acc[i][j]); });
      store_recut<L>(t.recut, made, TW * L, y, t.y_row, t.rows, t.columns);
    } else if (whole) {
      each([&](int i, int j) SPARSEOPT_LAMBDA { V::store(y + i * t.y_row + j * L, acc[i][j]); });
    } else {
      each([&](int i, int j) SPARSEOPT_LAMBDA {
        if (i < t.rows && j < t.columns) V::store(y + i * t.y_row + j * L, acc[i][j]);
      });
    }
  }
}

using Kernel = void (*)(const Tile&);

// The tiles there are.
struct TileSize {
  int rows, columns;
};
constexpr TileSize kTiles[] = {{1, 4}, {2, 4}, {1, 7}, {1, 8}, {4, 2}, {2, 7}, {1, 14}, {4, 4}, {2, 14}, {4, 7}};
constexpr int kTileCount = sizeof kTiles / sizeof kTiles[0];

// Tiles of more than 14 vectors need the 32 registers of AVX-512; without them they are compiled for the fewest lanes alone, to be
// tested, as more lanes than a register has are with small tiles. With a stride between its columns a tile reads twice as far: only
// small ones are compiled so.
template <int L>
constexpr bool has_kernel(TileSize size, int stride) {
  const int vectors = size.rows * size.columns, most = kRegisters >= 32 || L == 4 ? 28 : L > kLanes ? 8 : 14;
  return vectors <= (stride == 1 ? most : 8);
}

// The kernel of tile number `tile` and a stride of 1 or 2 between its columns; null if there is none.
template <int L, int N = 0>
Kernel conv_kernel(int tile, int stride) {
  if constexpr (N < kTileCount) {
    if (tile != N) return conv_kernel<L, N + 1>(tile, stride);
    constexpr TileSize size = kTiles[N];
    if constexpr (has_kernel<L>(size, 1))
      if (stride == 1) return convolve<L, size.rows, size.columns, 1, 1>;
    if constexpr (has_kernel<L>(size, 2))
      if (stride == 2) return convolve<L, size.rows, size.columns, 2, 1>;
  }
  return nullptr;
}

}  // namespace sparseopt
