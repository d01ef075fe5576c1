// Sparse convolution, forward: z = w * x, with the sums that batch norm needs.
//
// Batch norm only needs z up to a constant a channel. Where the mean is large, the accumulators start at -shift, an estimate of
// it: the one-pass variance of z - shift then has nothing to cancel, and it costs nothing.
#pragma once
#include "activation.h"
#include "conv_tile.h"
#include "statistics.h"

namespace sparseopt {

// The tiles there are; which is fastest is measured at the first step (`conv/tiles.py`). Sums are those of two rows by four columns in
// single precision, whatever the tile: so all give the same bits. A layer whose weights are all active always has the tile of its own,
// and sums of one row.
struct ForwardTile {
  int outputs, rows;
  bool pairs;
};
constexpr ForwardTile kForwardTiles[] = {{1, 2, kRegisters >= 32}, {1, kRegisters >= 32 ? 4 : 2, true}};  // four rows want 32 registers
constexpr ForwardTile kDenseTile{kDenseChannels, 1, false};
constexpr int kForwardTileCount = sizeof kForwardTiles / sizeof kForwardTiles[0];
constexpr int kForwardColumns = 4;

struct ForwardLayer {
  Pattern weights;
  View z;
  int stride;
  int reach;  // output row h reads input rows below h * stride + reach
  const float* shift;  // one a channel
  int tile = 0;
  bool dense = false;  // all weights are active
};

// first: where the tile begins in x. Z: what z is kept as.
template <ForwardTile T, int TH, int TW, int S, class Z>
SPARSEOPT_INLINE void forward_tile(const ForwardLayer& layer, const View& x, const float* first, Z* z, BlockSums* sums) {
  const auto read = [](const float* p, int j) SPARSEOPT_LAMBDA { return load(p + j * S * kLanes); };
  const auto start = [&](int o) SPARSEOPT_LAMBDA { return -layer.shift[o]; };
  const auto finish = [&](int o, Vec(&acc)[TH][TW]) SPARSEOPT_LAMBDA {
    Z* out = z + o * layer.z.channel;
    if constexpr (T.outputs > 1)  // computing is fast enough here to wait for the input, too
      for (int c = o; c < x.channels; c += layer.z.channels)
#pragma GCC unroll 8
        for (int i = 0; i < S; ++i) ask_for<TW * S * kLanes>(first + c * x.channel + (layer.reach + i) * x.row);
#pragma GCC unroll 8
    for (int i = 0; i < TH; ++i) ask_for<TW * kLanes>(out + (TH + i) * layer.z.row);
#pragma GCC unroll 8
    for (int first = 0; first < TH; first += 2) {
      Vec sum{}, square{};
#pragma GCC unroll 8
      for (int i = first; i < std::min(TH, first + 2); ++i)
#pragma GCC unroll 8
        for (int j = 0; j < TW; ++j) {
          const Vec v = as_stored<Z>(acc[i][j]);
          store(out + i * layer.z.row + j * kLanes, v);
          sum += v;
          square += v * v;
        }
      if (sums) sums->add(o, sum, square);
    }
  };
  convolve_tile<T.outputs, TH, TW, T.pairs>(layer.weights, 0, layer.z.channels, first, S * x.row, read, start, finish);
}

// Columns [w, end) of TH output rows: full tiles, then narrower ones.
template <ForwardTile T, int TH, int TW, int S, class Z>
void forward_columns(const ForwardLayer& layer, const View& x, int64_t xb, int64_t b, int h, int w, int end, BlockSums* sums) {
  for (; w + TW <= end; w += TW)
    forward_tile<T, TH, TW, S>(layer, x, x.at(xb, int64_t(h) * S, 0, int64_t(w) * S), layer.z.of<Z>(b, h, 0, w), sums);
  if constexpr (TW > 1) {
    if (w < end) forward_columns<T, TH, TW / 2, S, Z>(layer, x, xb, b, h, w, end, sums);
  }
}

// One block: input rows are made just ahead of the output rows that read them. `source` is null when x is complete.
template <ForwardTile T, int S, class Z>
void forward_rows(const ForwardLayer& layer, const Activation* source, const View& x, int64_t xb, int64_t b, BlockSums* sums) {
  int made = source ? 0 : x.height;
  const auto make_until = [&](int h) {
    const int needed = std::min(x.height, h * S + layer.reach);
    if (needed > made) source->make_rows(b, x, xb, made, needed), made = needed;
  };
  int h = 0;
  for (; h + T.rows <= layer.z.height; h += T.rows) {
    make_until(h + T.rows - 1);
    forward_columns<T, T.rows, kForwardColumns, S, Z>(layer, x, xb, b, h, 0, layer.z.width, sums);
  }
  if constexpr (T.rows > 2)
    for (; h + 2 <= layer.z.height; h += 2) {
      make_until(h + 1);
      forward_columns<T, 2, kForwardColumns, S, Z>(layer, x, xb, b, h, 0, layer.z.width, sums);
    }
  for (; h < layer.z.height; ++h) {
    make_until(h);
    forward_columns<T, 1, kForwardColumns, S, Z>(layer, x, xb, b, h, 0, layer.z.width, sums);
  }
  // Rows no output reads are still the activation's: a shortcut or the backward pass may want them.
  if (made < x.height) source->make_rows(b, x, xb, made, x.height);
}

template <int S, class Z, int N = 0>
void forward_block(const ForwardLayer& layer, const Activation* source, const View& x, int64_t xb, int64_t b, BlockSums* sums) {
  if constexpr (N < kForwardTileCount) {
    if (layer.dense) return forward_rows<kDenseTile, S, Z>(layer, source, x, xb, b, sums);
    if (layer.tile != N) return forward_block<S, Z, N + 1>(layer, source, x, xb, b, sums);
    forward_rows<kForwardTiles[N], S, Z>(layer, source, x, xb, b, sums);
  }
}

inline void forward_block(const ForwardLayer& layer, const Activation* source, const View& x, int64_t xb, int64_t b,
                          BlockSums* sums) {
  with_type(layer.z, [&](auto of_z) {
    using Z = decltype(of_z);
    if (layer.stride == 1) forward_block<1, Z>(layer, source, x, xb, b, sums);
    else forward_block<2, Z>(layer, source, x, xb, b, sums);
  });
}

// Where a channel's mean is far from zero, measured in its own deviation, an estimate of it; elsewhere zero, which costs no
// rounding. Estimated from the middle row of the first block.
template <int S>
void estimate_shift(ForwardLayer layer, const Activation* source, const View& x, int valid, float* shift) {
  constexpr double kFar = 1;
  const int h = layer.z.height / 2, channels = layer.z.channels, width = layer.z.width;
  if (source) source->make_rows(0, x, 0, std::max(0, h * S - x.border), std::min(x.height, h * S + layer.reach));
  std::fill_n(shift, channels, 0.f);
  layer.shift = shift;
  layer.z = make_view(scratch<Use::pilot>().get<float>(size_t(channels) * width * kLanes), 1, 1, channels, width, 0);
  View row = x;
  row.origin = x.at(0, int64_t(h) * S, 0, 0);
  BlockSums sums(channels);
  forward_columns<kForwardTiles[0], 1, kForwardColumns, S, float>(layer, row, 0, 0, 0, 0, width, &sums);
  std::vector<double> totals(size_t(channels) * 2, 0.0);
  sums.end_block(valid, totals.data());
  for (int c = 0; c < channels; ++c) {
    const double count = double(valid) * width, mean = totals[2 * c] / count;
    const double variance = std::max(totals[2 * c + 1] / count - mean * mean, 0.0);
    if (mean * mean > kFar * kFar * variance) shift[c] = float(mean);
  }
}

// The whole layer. `x` is where the input rows are or go; with `x_is_scratch` it only gives the shape, and each thread keeps
// the rows of one block. `sums` [2][channel] receives sum and sum of squares of z - shift.
inline void conv_forward(ForwardLayer layer, const Activation* source, View x, bool x_is_scratch, int64_t samples,
                         float* shift, double* sums) {
  const int channels = layer.z.channels;
  const auto rows_of_thread = [&]() -> View {
    if (!x_is_scratch) return x;
    View rows = make_view(scratch<Use::input_rows>().get<float>(x.block), 1, x.height, x.channels, x.width, x.border);
    clear_border(rows, 0);
    return rows;
  };
  layer.shift = shift;
  if (sums && samples > 0) {
    const View rows = rows_of_thread();
    const int valid = valid_lanes(samples, 0);
    if (layer.stride == 1) estimate_shift<1>(layer, source, rows, valid, shift);
    else estimate_shift<2>(layer, source, rows, valid, shift);
  }
  Statistics statistics(channels, num_threads());
  parallel_for(0, layer.z.blocks, 1, [&](int64_t begin, int64_t end) {
    const View rows = rows_of_thread();
    BlockSums block_sums(channels);
    for (int64_t b = begin; b < end; ++b) {
      forward_block(layer, source, rows, x_is_scratch ? 0 : b, b, sums ? &block_sums : nullptr);
      if (sums) block_sums.end_block(valid_lanes(samples, b), statistics.of_thread());
    }
  });
  if (sums) statistics.reduce(sums);
}

}  // namespace sparseopt
