// Sparse convolution, backward: one pass gives the gradient of the input and of the active weights.
//
// A tile of TW input positions of one channel keeps x and the gradient of x in registers while all active weights of that input
// channel pass by; every load of the output gradient feeds both products. With stride 2 the input positions fall into four
// parity classes, each reached by its own subset of the weights, so the tile is the same.
//
// The output gradient itself is made on the fly, row by row, from the gradient of the batch norm's output:
//   dz = a * g + b * (z - mean) + c      (a, b, c, mean: one a channel, from the statistics the layer above gathered)
// and the input gradient leaves finished: other consumers' share added, ReLU applied, and the sums that the batch norm below
// needs gathered while the values are in registers.
#pragma once
#include "activation.h"
#include "conv_tile.h"
#include "statistics.h"

namespace sparseopt {

// As in the forward pass: tiles of which the fastest is measured. Sums are those of four columns in single precision, whatever the tile.
constexpr int kBackwardColumns[] = {4, 8};
constexpr int kBackwardTileCount = kRegisters >= 32 ? 2 : 1;  // eight columns take more than 16 registers
constexpr int kUnit = 4;

// dz from g and z, in rows of one block of scratch.
struct OutputGradient {
  View g, z;
  const float *a, *b, *c, *mean;

  void make_rows(int64_t block, const View& dz, int first, int last, int valid) const {
    with_type(z, [&](auto of_z) { make_rows_from<decltype(of_z)>(block, dz, first, last, valid); });
  }

  template <class Z>
  void make_rows_from(int64_t block, const View& dz, int first, int last, int valid) const {
    Vec mask{};
    for (int lane = 0; lane < valid; ++lane) mask[lane] = 1.f;
    for (int h = first; h < last; ++h)
      for (int o = 0; o < g.channels; ++o) {
        const Vec va = broadcast(a[o]), vb = broadcast(b[o]), vc = broadcast(c[o]), vm = broadcast(mean[o]);
        const float* from_g = g.at(block, h, o, 0);
        const Z* from_z = z.of<Z>(block, h, o, 0);
        float* to = dz.at(0, h, o, 0);
        for (int w = 0; w < g.width * kLanes; w += kLanes)
          store(to + w, (va * load(from_g + w) + (vb * (load(from_z + w) - vm) + vc)) * mask);
      }
  }
};

// Where the input's gradient goes and what happens to it on the way.
struct InputGradient {
  View to;              // no origin: nobody wants it
  bool accumulate;      // add to what other consumers left in `to`
  View shortcut;        // gradient of a residual sum that reads the same input, subsampled by the layer's stride
  int shortcut_offset;  // its channel for the input's channel 0
  bool relu;            // the input is behind a ReLU: nothing passes where it is zero
  View z;               // the z behind the input: sums of g and g * (z - mean) are gathered; no origin: not wanted
  const float* mean;    // of that z, one a channel
};

// The input itself: rows that were kept, or z to make them from again.
struct Input {
  View from;
  Affine norm;  // null: `from` is x
  bool relu;
};

struct BackwardLayer {
  Pattern weights;  // lists by parity class, then input channel
  int stride;
  int reach;  // input row h reads rows of dz below h / stride + reach
  int border; // of dz
  Input input;
  InputGradient gradient;
  int tile = 0;
};

// All pointers at the tile's first position, channel 0. X: what the input, and the z behind it, are kept as.
template <class X>
struct BackwardTile {
  const X *x, *z;
  const float *dz, *shortcut;
  float* to;
  const int* start;
};

template <int TW, int S, bool Remake, class X>
SPARSEOPT_INLINE void load_input(const BackwardLayer& layer, const BackwardTile<X>& tile, int c, Vec (&x)[TW]) {
#pragma GCC unroll 8
  for (int j = 0; j < TW; ++j) {
    x[j] = load(tile.x + c * layer.input.from.channel + j * S * kLanes);
    if constexpr (Remake) {
      x[j] = layer.input.norm.at(c)(x[j]);
      if (layer.input.relu) x[j] = relu(x[j]);
    }
  }
}

// The gradient of x leaves: with the other shares, behind the ReLU, into the sums.
template <int TW, int S, class X>
SPARSEOPT_INLINE void leave(const InputGradient& out, const BackwardTile<X>& tile, int c, const Vec (&x)[TW], Vec (&acc)[TW],
                            BlockSums& sums) {
  float* to = tile.to + c * out.to.channel;
  if (out.accumulate)
#pragma GCC unroll 8
    for (int j = 0; j < TW; ++j) acc[j] += load(to + j * S * kLanes);
  if (tile.shortcut)
#pragma GCC unroll 8
    for (int j = 0; j < TW; ++j) acc[j] += load(tile.shortcut + c * out.shortcut.channel + j * kLanes);
  if (out.relu)
#pragma GCC unroll 8
    for (int j = 0; j < TW; ++j) acc[j] = where_positive(x[j], acc[j]);
#pragma GCC unroll 8
  for (int j = 0; j < TW; ++j) store(to + j * S * kLanes, acc[j]);
  if (!tile.z) return;
  const Vec mean = broadcast(out.mean[c]);
#pragma GCC unroll 8
  for (int first = 0; first < TW; first += kUnit) {
    Vec sum{}, product{};
#pragma GCC unroll 8
    for (int j = first; j < std::min(TW, first + kUnit); ++j) {
      sum += acc[j];
      product += acc[j] * (load(tile.z + c * out.z.channel + j * S * kLanes) - mean);
    }
    sums.add(c, sum, product);
  }
}

// Both gradients: one vector of sums a weight.
struct Fused {
  float* weight_sums;

  template <int TW, int S, bool Remake, bool Gradient, class X>
  SPARSEOPT_INLINE void run(const BackwardLayer& layer, const BackwardTile<X>& tile, BlockSums& sums) const {
    const Pattern& w = layer.weights;
    for (int c = 0; c < layer.input.from.channels; ++c) {
      // z to make the input from has no border, and comes by itself: measured.
      if constexpr (!Remake) ask_for<TW * S * kLanes>(tile.x + c * layer.input.from.channel + layer.input.from.row);
      Vec x[TW], acc[TW]{};
      load_input<TW, S, Remake>(layer, tile, c, x);
      const auto pass = [&](int k, Vec weight, int64_t offset) SPARSEOPT_LAMBDA {
        const float* p = tile.dz + offset;
        pin(p);
        float* s = weight_sums + int64_t(k) * kLanes;
        Vec total = load(s);
#pragma GCC unroll 8
        for (int first = 0; first < TW; first += kUnit) {
          Vec even{}, odd{};
#pragma GCC unroll 8
          for (int j = first; j < std::min(TW, first + kUnit); ++j) {
            const Vec d = held(load(p + j * kLanes));
            if constexpr (Gradient) acc[j] += weight * d;
            (j % 2 ? odd : even) += x[j] * d;
          }
          total += even + odd;
        }
        store(s, total);
      };
      if constexpr (kRegisters >= 32) in_pairs<kLanes>(w.value, w.offset, tile.start[c], tile.start[c + 1], pass);
      else
        for (int k = tile.start[c]; k < tile.start[c + 1]; ++k) pass(k, broadcast(w.value[k]), w.offset[k]);
      if constexpr (Gradient) leave<TW, S>(layer.gradient, tile, c, x, acc, sums);
    }
  }
};

// The input's gradient alone, where all weights are active: the lists of all input channels of a parity class are the same, and each
// vector read feeds several of them. The weights' gradient has a tile of its own (`conv_dense.h`).
struct OfInput {
  template <int TW, int S, bool Remake, bool Gradient, class X>
  SPARSEOPT_INLINE void run(const BackwardLayer& layer, const BackwardTile<X>& tile, BlockSums& sums) const {
    const Pattern lists{tile.start, layer.weights.offset, layer.weights.value, layer.weights.size};
    const auto read = [](const float* p, int j) SPARSEOPT_LAMBDA { return load(p + j * kLanes); };
    const auto start = [](int) SPARSEOPT_LAMBDA { return 0.f; };
    const auto finish = [&](int c, Vec(&acc)[1][TW]) SPARSEOPT_LAMBDA {
      Vec x[TW]{};
      if (layer.gradient.relu) load_input<TW, S, Remake>(layer, tile, c, x);
      leave<TW, S>(layer.gradient, tile, c, x, acc[0], sums);
    };
    convolve_tile<kDenseChannels, 1, TW, false>(lists, 0, layer.input.from.channels, tile.dz, 0, read, start, finish);
  }
};

// Columns [q, end) of one parity class of input row h.
template <int TW, int S, bool Remake, bool Gradient, class X, class Way>
void backward_columns(const BackwardLayer& layer, const View& dz, int64_t b, int h, int parity, int q, int end, const Way& way,
                      BlockSums& sums) {
  const InputGradient& out = layer.gradient;
  const int q_row = h / S, class_index = h % S * S + parity;
  const bool shortcut = out.shortcut.origin && class_index == 0;
  for (; q + TW <= end; q += TW) {
    const int w = q * S + parity;
    BackwardTile<X> tile{};
    tile.x = layer.input.from.of<X>(b, h, 0, w);
    tile.dz = dz.at(0, q_row, 0, q);
    tile.start = layer.weights.start + class_index * layer.input.from.channels;
    if constexpr (Gradient) {
      tile.to = out.to.at(b, h, 0, w);
      if (shortcut) tile.shortcut = out.shortcut.at(b, q_row, out.shortcut_offset, q);
      if (out.z.origin) tile.z = out.z.of<X>(b, h, 0, w);
    }
    way.template run<TW, S, Remake, Gradient>(layer, tile, sums);
  }
  if constexpr (TW > 1) {
    if (q < end) backward_columns<TW / 2, S, Remake, Gradient, X>(layer, dz, b, h, parity, q, end, way, sums);
  }
}

// Input row h of a block.
template <int S, int Columns, bool Remake, bool Gradient, class X, class Way>
void backward_row(const BackwardLayer& layer, const View& dz, int64_t b, int h, const Way& way, BlockSums& sums) {
  for (int parity = 0; parity < S; ++parity)
    backward_columns<Columns, S, Remake, Gradient, X>(layer, dz, b, h, parity, 0, (layer.input.from.width - parity + S - 1) / S, way,
                                                      sums);
}

template <int S, int Columns, bool Remake, bool Gradient, class X>
void backward_rows(const BackwardLayer& layer, const OutputGradient& output, const View& dz, int64_t b, int valid,
                    float* weight_sums, BlockSums& sums) {
  const View& x = layer.input.from;
  int made = 0;
  for (int h = 0; h < x.height; ++h) {
    const int needed = std::min(dz.height, h / S + layer.reach);
    if (needed > made) output.make_rows(b, dz, made, needed, valid), made = needed;
    backward_row<S, Columns, Remake, Gradient, X>(layer, dz, b, h, Fused{weight_sums}, sums);
  }
}

template <int S, bool Remake, bool Gradient, class X, int N = 0>
void backward_block(const BackwardLayer& layer, const OutputGradient& output, const View& dz, int64_t b, int valid,
                    float* weight_sums, BlockSums& sums) {
  if constexpr (N < kBackwardTileCount) {
    if (layer.tile != N) return backward_block<S, Remake, Gradient, X, N + 1>(layer, output, dz, b, valid, weight_sums, sums);
    backward_rows<S, kBackwardColumns[N], Remake, Gradient, X>(layer, output, dz, b, valid, weight_sums, sums);
  }
}

using BackwardBlock = void (*)(const BackwardLayer&, const OutputGradient&, const View&, int64_t, int, float*, BlockSums&);

template <class X>
BackwardBlock choose_backward(int stride, bool remake, bool gradient) {
  if (stride == 1) {
    if (remake) return gradient ? backward_block<1, true, true, X> : backward_block<1, true, false, X>;
    return gradient ? backward_block<1, false, true, X> : backward_block<1, false, false, X>;
  }
  if (remake) return gradient ? backward_block<2, true, true, X> : backward_block<2, true, false, X>;
  return gradient ? backward_block<2, false, true, X> : backward_block<2, false, false, X>;
}

// One block's sums for the weights, a vector each, leave for totals in double precision.
inline void move_sums(float* weight_sums, int64_t weights, double* totals) {
  for (int64_t k = 0; k < weights; ++k) {
    totals[k] += sum_lanes(widened(load(weight_sums + k * kLanes)));
    store(weight_sums + k * kLanes, Vec{});
  }
}

// Gradient of the active weights into `weight_gradient`, at the places `order` gives; `sums` [2][channel] of the finished input
// gradient: sum of g and of g * (z - mean).
inline void conv_backward(const BackwardLayer& layer, const OutputGradient& output, int64_t samples, const int* order,
                          float* weight_gradient, double* sums) {
  const View& g = output.g;
  const int threads = num_threads(), channels = layer.input.from.channels;
  const int64_t weights = layer.weights.size;
  double* totals = scratch<Use::weight_totals>().get<double>(size_t(threads) * weights);
  std::fill_n(totals, size_t(threads) * weights, 0.0);
  const auto choose = layer.input.from.half ? choose_backward<Half> : choose_backward<float>;
  const BackwardBlock run = choose(layer.stride, bool(layer.input.norm), layer.gradient.to.origin);
  Statistics statistics(channels, threads);
  parallel_for(0, g.blocks, 1, [&](int64_t begin, int64_t end) {
    const View shape = make_view(nullptr, 1, g.height, g.channels, g.width, layer.border);
    const View dz = make_view(scratch<Use::output_rows>().get<float>(shape.block), 1, g.height, g.channels, g.width, layer.border);
    clear_border(dz, 0);
    BlockSums block_sums(channels);
    float* weight_sums = scratch<Use::weight_sums>().get<float>(size_t(weights) * kLanes);
    std::fill_n(weight_sums, size_t(weights) * kLanes, 0.f);
    for (int64_t b = begin; b < end; ++b) {
      const int valid = valid_lanes(samples, b);
      run(layer, output, dz, b, valid, weight_sums, block_sums);
      move_sums(weight_sums, weights, totals + thread_num() * weights);
      block_sums.end_block(valid, statistics.of_thread());
    }
  });
  if (sums) statistics.reduce(sums);
  for (int64_t k = 0; k < weights; ++k) {
    double total = 0;
    for (int t = 0; t < threads; ++t) total += totals[t * weights + k];
    weight_gradient[order[k]] = float(total);
  }
}

}  // namespace sparseopt
