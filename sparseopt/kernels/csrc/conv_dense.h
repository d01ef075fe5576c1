// The gradient of all weights of a convolution, active or not: what methods read that grow connections by gradient, or train weights
// outside the mask.
//
//   dw[o][i][r][c] = sum over samples and positions of dz[o][h][w] * x[i][h * stride + r - padding][w * stride + c - padding]
//
// No weight is zero here, so that what is loaded can be shared: a tile of some outputs by some inputs, and by the columns of a kernel of
// three, stays in registers while all positions of a block of samples pass by. Each position costs as many loads as the tile has outputs
// and inputs, and as many multiply-adds as it has weights.
#pragma once
#include "conv_backward.h"

namespace sparseopt {

struct DenseLayer {
  Input input;
  int stride, rows, columns, padding_rows, padding_columns;  // of the kernel
};

// The input of one block with as many zeros around it as the kernel reads.
inline void copy_input(const Input& input, int64_t b, const View& to) {
  with_type(input.from, [&](auto of_x) {
    for (int h = 0; h < to.height; ++h)
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

// Adds up one block: O outputs from o, I inputs from i, row r of the kernel, C of its columns from c. Channels beyond the last one are
// the last one again, and lead nowhere.
template <int O, int I, int C>
void dense_tile(const DenseLayer& layer, const View& dz, const View& x, int o, int i, int r, int c, double* totals) {
  const int S = layer.stride;
  Vec acc[O][I][C]{};
  for (int h = 0; h < dz.height; ++h) {
    const float *d[O], *p[I];
    for (int n = 0; n < O; ++n) d[n] = dz.at(0, h, std::min(o + n, dz.channels - 1), 0);
    for (int n = 0; n < I; ++n)
      p[n] = x.at(0, h * S + r - layer.padding_rows, std::min(i + n, x.channels - 1), c - layer.padding_columns);
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
  for (int n = 0; n < std::min(O, dz.channels - o); ++n)
    for (int m = 0; m < std::min(I, x.channels - i); ++m)
      for (int k = 0; k < C; ++k)
        totals[((int64_t(o + n) * x.channels + i + m) * layer.rows + r) * layer.columns + c + k] += sum_lanes(widened(acc[n][m][k]));
}

template <int O, int I, int C>
void dense_block(const DenseLayer& layer, const View& dz, const View& x, double* totals) {
  for (int o = 0; o < dz.channels; o += O)
    for (int i = 0; i < x.channels; i += I)
      for (int r = 0; r < layer.rows; ++r)
        for (int c = 0; c < layer.columns; c += C) dense_tile<O, I, C>(layer, dz, x, o, i, r, c, totals);
}

// gradient [output][input][row][column]
inline void conv_dense_gradient(const DenseLayer& layer, const OutputGradient& output, int64_t samples, float* gradient) {
  constexpr int kOutputs = kRegisters >= 32 ? 4 : 2;
  const View &g = output.g, &from = layer.input.from;
  const int threads = num_threads(), border = std::max(layer.padding_rows, layer.padding_columns);
  const int64_t weights = int64_t(g.channels) * from.channels * layer.rows * layer.columns;
  double* totals = scratch<Use::weight_totals>().get<double>(size_t(threads) * weights);
  std::fill_n(totals, size_t(threads) * weights, 0.0);
  const auto run = layer.columns == 3 ? dense_block<kOutputs, 2, 3> : dense_block<4, kRegisters / 8, 1>;
  parallel_for(0, g.blocks, 1, [&](int64_t begin, int64_t end) {
    const auto one_block = [](const View& like, int around, Scratch& memory) {
      const View shape = make_view(nullptr, 1, like.height, like.channels, like.width, around);
      return make_view(memory.get<float>(shape.block), 1, like.height, like.channels, like.width, around);
    };
    const View dz = one_block(g, 0, scratch<Use::output_rows>()), x = one_block(from, border, scratch<Use::input_rows>());
    clear_border(x, 0);
    for (int64_t b = begin; b < end; ++b) {
      output.make_rows(b, dz, 0, dz.height, valid_lanes(samples, b));
      copy_input(layer.input, b, x);
      run(layer, dz, x, totals + thread_num() * weights);
    }
  });
  for (int64_t k = 0; k < weights; ++k) {
    double total = 0;
    for (int t = 0; t < threads; ++t) total += totals[t * weights + k];
    gradient[k] = float(total);
  }
}

}  // namespace sparseopt
