// Convolutions all of whose weights count. Their gradient, for methods that grow connections by gradient or train weights outside the
// mask; and the backward pass of a layer whose weights are all active.
//
//   dw[o][i][r][c] = sum over samples and positions of dz[o][h][w] * x[i][h * stride + r - padding][w * stride + c - padding]
//
// No weight is zero here, so that what is loaded can be shared: a tile of some outputs by some inputs, and by the columns of a kernel of
// three, stays in registers while the positions of some rows pass by. Each position costs as many loads as the tile has outputs and
// inputs, and as many multiply-adds as it has weights.
#pragma once
#include "conv_backward.h"

namespace sparseopt {

// Of a convolution.
struct Window {
  int64_t rows, columns, padding_rows, padding_columns;

  int border() const { return int(std::max(padding_rows, padding_columns)); }
};

// Rows [first, last) of the input of one block, where there are as many zeros around them as the kernel reads.
inline void copy_input(const Input& input, int64_t b, const View& to, int first, int last) {
  with_type(input.from, [&](auto of_x) {
    for (int h = first; h < last; ++h)
      for (int c = 0; c < to.channels; ++c) {
        const auto* from = input.from.of<decltype(of_x)>(b, h, c, 0);
        for (int w = 0; w < to.width; ++w) {
          Vec x = load(from + w * kLanes);
          if (input.norm) x = input.norm.at(c)(x);
          store(to.at(0, h, c, w), input.norm && input.relu ? relu(x) : x);
        }
      }
  });
}

// What a tile reads: output rows [first, last) of dz, and the input around them.
struct DenseRows {
  Window window;
  int stride;
  View dz, x;  // of one block
  int first, last;
};

// O outputs from o, I inputs from i, row r of the kernel, C of its columns from c. Channels beyond the last one are the last one
// again, and lead nowhere.
template <int O, int I, int C>
void dense_tile(const DenseRows& rows, int o, int i, int r, int c, double* totals) {
  const View &dz = rows.dz, &x = rows.x;
  const Window& window = rows.window;
  const int S = rows.stride;
  Vec acc[O][I][C]{};
  for (int h = rows.first; h < rows.last; ++h) {
    const float *d[O], *p[I];
    for (int n = 0; n < O; ++n) d[n] = dz.at(0, h, std::min(o + n, dz.channels - 1), 0);
    for (int n = 0; n < I; ++n)
      p[n] = x.at(0, h * S + r - window.padding_rows, std::min(i + n, x.channels - 1), c - window.padding_columns);
    for (int w = 0; w < dz.width; ++w) {
      Vec g[O];
#pragma GCC unroll 8
      for (int n = 0; n < O; ++n) g[n] = load(d[n] + w * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < I; ++m)
#pragma GCC unroll 8
        for (int k = 0; k < C; ++k) {
          const Vec v = held(load(p[m] + (w * S + k) * kLanes));
#pragma GCC unroll 8
          for (int n = 0; n < O; ++n) acc[n][m][k] += g[n] * v;
        }
    }
  }
  constexpr int kSums = (O * I * C + kLanes - 1) / kLanes * kLanes;
  alignas(64) float vectors[kSums * kLanes] = {}, sums[kSums];
  std::memcpy(vectors, acc, sizeof acc);
  for (int n = 0; n < kSums; n += kLanes) store(sums + n, sum_each(vectors + n * kLanes));
  for (int n = 0; n < std::min(O, dz.channels - o); ++n)
    for (int m = 0; m < std::min(I, x.channels - i); ++m)
      for (int k = 0; k < C; ++k)
        totals[((int64_t(o + n) * x.channels + i + m) * window.rows + r) * window.columns + c + k] += sums[(n * I + m) * C + k];
}

// Inputs first: what one of them has in these rows is read for every output, and stays in the first-level cache.
template <int O, int I, int C>
void dense_rows(const DenseRows& rows, double* totals) {
  for (int i = 0; i < rows.x.channels; i += I)
    for (int o = 0; o < rows.dz.channels; o += O)
      for (int r = 0; r < rows.window.rows; ++r)
        for (int c = 0; c < rows.window.columns; c += C) dense_tile<O, I, C>(rows, o, i, r, c, totals);
}

using InputGradientRow = void (*)(const BackwardLayer&, const View&, int64_t, int, BlockSums&);

template <int S, bool Remake, class X>
void input_gradient_row(const BackwardLayer& layer, const View& dz, int64_t b, int h, BlockSums& sums) {
  backward_row<S, kUnit, Remake, true, X>(layer, dz, b, h, OfInput{}, sums);
}

template <class X>
InputGradientRow choose_input_gradient(int stride, bool remake) {
  if (stride == 1) return remake ? input_gradient_row<1, true, X> : input_gradient_row<1, false, X>;
  return remake ? input_gradient_row<2, true, X> : input_gradient_row<2, false, X>;
}

// gradient [output][input][row][column]; the input's gradient and `sums` as in `conv_backward`. All weights of the layer are active, or
// nobody wants the gradient of its input.
//
// An input row's gradient comes after the weights' gradient of all output rows that read it: it may take the input's place.
inline void conv_dense_backward(const BackwardLayer& layer, const Window& window, const OutputGradient& output, int64_t samples,
                                float* gradient, double* sums) {
  constexpr int kOutputs = kRegisters >= 32 ? 4 : 2;
  constexpr int kPositions = 64;  // that are added up in single precision, or a row
  const View &g = output.g, &from = layer.input.from;
  const int threads = num_threads(), at_once = (kPositions + g.width - 1) / g.width;
  const int64_t weights = int64_t(g.channels) * from.channels * window.rows * window.columns;
  double* totals = scratch<Use::weight_totals>().get<double>(size_t(threads) * weights);
  std::fill_n(totals, size_t(threads) * weights, 0.0);
  const auto of_weights = window.columns == 3 ? dense_rows<kOutputs, 2, 3> : dense_rows<4, kRegisters / 8, 1>;
  const auto choose = from.half ? choose_input_gradient<Half> : choose_input_gradient<float>;
  const InputGradientRow of_input = layer.gradient.to.origin ? choose(layer.stride, bool(layer.input.norm)) : nullptr;
  const bool copied = layer.input.norm || from.half || from.border < window.border();
  Statistics statistics(from.channels, threads);
  parallel_for(0, g.blocks, 1, [&](int64_t begin, int64_t end) {
    const auto one_block = [](const View& like, int around, Scratch& memory) {
      const View shape = make_view(nullptr, 1, like.height, like.channels, like.width, around);
      const View view = make_view(memory.get<float>(shape.block), 1, like.height, like.channels, like.width, around);
      clear_border(view, 0);
      return view;
    };
    DenseRows rows{window, layer.stride, one_block(g, layer.border, scratch<Use::output_rows>()), from};
    if (copied) rows.x = one_block(from, window.border(), scratch<Use::input_rows>());
    BlockSums block_sums(from.channels);
    for (int64_t b = begin; b < end; ++b) {
      const int valid = valid_lanes(samples, b);
      int made = 0, read = 0;
      if (!copied) rows.x.origin = from.at(b, 0, 0, 0);
      for (int h = 0; h < from.height; ++h) {
        while (made < std::min(g.height, h / layer.stride + layer.reach)) {
          rows.first = made, rows.last = made = std::min(g.height, made + at_once);
          output.make_rows(b, rows.dz, rows.first, rows.last, valid);
          const int needed = std::min(from.height, (made - 1) * layer.stride + int(window.rows - window.padding_rows));
          if (copied && needed > read) copy_input(layer.input, b, rows.x, read, needed), read = needed;
          of_weights(rows, totals + thread_num() * weights);
        }
        if (of_input) of_input(layer, rows.dz, b, h, block_sums);
      }
      block_sums.end_block(valid, statistics.of_thread());
    }
  });
  if (sums) statistics.reduce(sums);
  for (int64_t k = 0; k < weights; ++k) {
    double total = 0;
    for (int t = 0; t < threads; ++t) total += totals[t * weights + k];
    gradient[k] = float(total);
  }
}

}  // namespace sparseopt
