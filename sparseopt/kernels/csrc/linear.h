// Sparse linear layers. Activations lie in tiles of samples, so that what a tile's lists read at random is close together:
//
//   [tile][feature][sample]      a tile: kTile vectors of samples, the last one as many as are left
//
// The samples are padded to whole vectors. Forward, the samples of a tile of one output stay in registers while its active weights
// pass by. Backward, those of one input keep x and its gradient there, and every load of the output's gradient feeds both
// products. Threads share the features, so each weight's gradient has one writer.
#pragma once
#include "parallel.h"
#include "pattern.h"

namespace sparseopt {

constexpr int kTile = kRegisters >= 32 ? 8 : 4;
constexpr int64_t kFeatures = 16;  // that are worth a thread
constexpr int kPending = 128;      // weights whose products wait to be added up, in the first-level cache

struct LinearLayer {
  Pattern weights;  // lists by output (forward) or input (backward); offsets count features
  int64_t inputs, outputs, samples;  // samples: padded
};

// Calls f.operator()<T>(n) for every tile, of T vectors from sample n on.
template <int T = kTile, class F>
void for_tiles(int64_t samples, const F& f, int64_t n = 0) {
  for (; n + T * kLanes <= samples; n += T * kLanes) f.template operator()<T>(n);
  if constexpr (T > 1) {
    if (n < samples) for_tiles<T - 1>(samples, f, n);
  }
}

// x [sample][feature] -> tiles; the samples that pad the last vector become the last one, or zero (see layout.h).
inline void tile_samples(const float* x, int64_t samples, bool repeat, int64_t features, int64_t padded, float* tiles) {
  parallel_for(0, features, kFeatures * kLanes, [&](int64_t begin, int64_t end) {
    for_tiles(padded, [&]<int T>(int64_t n) {
      float* tile = tiles + n * features;
      for (int j = 0; j < T; ++j) {
        const int64_t first = n + j * kLanes, valid = std::clamp<int64_t>(samples - first, 0, kLanes);
        int64_t f = begin;
        for (; f + kLanes <= end; f += kLanes) {
          Vec square[kLanes]{};
          for (int lane = 0; lane < valid; ++lane) square[lane] = load_unaligned(x + (first + lane) * features + f);
          for (int64_t lane = valid; repeat && lane < kLanes; ++lane) square[lane] = square[valid - 1];
          transpose(square);
          for (int lane = 0; lane < kLanes; ++lane) store(tile + ((f + lane) * T + j) * kLanes, square[lane]);
        }
        for (; f < end; ++f)
          for (int lane = 0; lane < kLanes; ++lane)
            tile[(f * T + j) * kLanes + lane] =
                lane < valid || repeat ? x[(first + std::min<int64_t>(lane, valid - 1)) * features + f] : 0.f;
      }
    });
  });
}

// Tiles -> x [sample][feature], of the first samples.
inline void untile_samples(const float* tiles, int64_t samples, int64_t features, int64_t padded, float* x) {
  parallel_for(0, features, kFeatures * kLanes, [&](int64_t begin, int64_t end) {
    for_tiles(padded, [&]<int T>(int64_t n) {
      const float* tile = tiles + n * features;
      const int64_t valid = std::min<int64_t>(samples - n, T * kLanes);
      for (int64_t sample = 0; sample < valid; ++sample)
        for (int64_t f = begin; f < end; ++f) x[(n + sample) * features + f] = tile[f * T * kLanes + sample];
    });
  });
}

template <bool Relu>
void linear_forward(const LinearLayer& layer, const float* x, const float* bias, float* y) {
  const Pattern& w = layer.weights;
  parallel_for(0, layer.outputs, kFeatures, [&](int64_t begin, int64_t end) {
    for_tiles(layer.samples, [&]<int T>(int64_t n) {
      for (int64_t o = begin; o < end; ++o) {
        Vec acc[T];
#pragma GCC unroll 8
        for (int j = 0; j < T; ++j) acc[j] = broadcast(bias ? bias[o] : 0.f);
        for (int k = w.start[o]; k < w.start[o + 1]; ++k) {
          const Vec weight = broadcast(w.value[k]);
          const float* p = x + n * layer.inputs + w.offset[k] * int64_t(T * kLanes);
          pin(p);
#pragma GCC unroll 8
          for (int j = 0; j < T; ++j) acc[j] += weight * load(p + j * kLanes);
        }
        float* to = y + n * layer.outputs + o * T * kLanes;
#pragma GCC unroll 8
        for (int j = 0; j < T; ++j) store(to + j * kLanes, Relu ? relu(acc[j]) : acc[j]);
      }
    });
  });
}

// Where the gradient of x goes: nowhere, or to `to`; `relu`: x is behind a ReLU, nothing passes where it is zero.
struct LinearGradient {
  float* to;
  bool relu;
};

// One tile of one input. `products`: a vector a weight, whose lanes add up to the tile's share of that weight's gradient.
template <int T, bool Gradient>
SPARSEOPT_INLINE void linear_backward_tile(const Pattern& w, int64_t i, const float* x, const float* dy, float* to, bool relu,
                                           float* products) {
  Vec in[T], acc[T];
#pragma GCC unroll 8
  for (int j = 0; j < T; ++j) in[j] = load(x + j * kLanes), acc[j] = Vec{};
  const auto weights = [&]<int N>(int k) SPARSEOPT_LAMBDA {  // N of them side by side
    Vec weight[N], product[N];
    const float* p[N];
#pragma GCC unroll 2
    for (int m = 0; m < N; ++m) {
      weight[m] = broadcast(w.value[k + m]), product[m] = Vec{};
      p[m] = dy + w.offset[k + m] * int64_t(T * kLanes);
      pin(p[m]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < T; ++j)
#pragma GCC unroll 2
      for (int m = 0; m < N; ++m) {
        const Vec d = load(p[m] + j * kLanes);
        if constexpr (Gradient) acc[j] += weight[m] * d;
        product[m] += in[j] * d;
      }
#pragma GCC unroll 2
    for (int m = 0; m < N; ++m) store(products + m * kLanes, product[m]);
    products += N * kLanes;
  };
  int k = w.start[i];
  for (; k + 2 <= w.start[i + 1]; k += 2) weights.template operator()<2>(k);
  if (k < w.start[i + 1]) weights.template operator()<1>(k);
  if constexpr (!Gradient) return;
#pragma GCC unroll 8
  for (int j = 0; j < T; ++j) store(to + j * kLanes, relu ? where_positive(in[j], acc[j]) : acc[j]);
}

// Sums of the lanes of `count` vectors, added to `totals`. Vectors and totals have room for whole vectors of weights: zero is
// added to what lies behind the last.
SPARSEOPT_INLINE void add_totals(float* products, int count, float* totals) {
  for (int k = count; k % kLanes; ++k) store(products + k * kLanes, Vec{});
  for (int k = 0; k < count; k += kLanes)
    store_unaligned(totals + k, load_unaligned(totals + k) + sum_each(products + k * kLanes));
}

template <bool Gradient>
void linear_backward(const LinearLayer& layer, const float* x, const float* dy, const LinearGradient& out,
                     const int* order, float* weight_gradient) {
  const Pattern& w = layer.weights;
  parallel_for(0, layer.inputs, kFeatures, [&](int64_t begin, int64_t end) {
    const int first = w.start[begin], size = w.start[end] - first;
    int longest = 0;
    for (int64_t i = begin; i < end; ++i) longest = std::max(longest, w.start[i + 1] - w.start[i]);
    float* products = scratch<Use::weight_sums>().get<float>(size_t(std::max(longest, kPending) + kLanes) * kLanes);
    float* totals = scratch<Use::weight_totals>().get<float>(size + kLanes);
    std::fill_n(totals, size + kLanes, 0.f);
    for_tiles(layer.samples, [&]<int T>(int64_t n) {
      for (int64_t i = begin; i < end;) {
        const int pending = w.start[i];
        do {
          const int64_t at = n * layer.inputs + i * T * kLanes;
          linear_backward_tile<T, Gradient>(w, i, x + at, dy + n * layer.outputs, Gradient ? out.to + at : nullptr, out.relu,
                                            products + int64_t(w.start[i] - pending) * kLanes);
          ++i;
        } while (i < end && w.start[i + 1] - pending <= kPending);
        add_totals(products, w.start[i] - pending, totals + (pending - first));
      }
    });
    for (int k = 0; k < size; ++k) weight_gradient[order[first + k]] = totals[k];
  });
}

// The gradient of the bias: the sum over all samples of each output.
inline void linear_bias_gradient(const LinearLayer& layer, const float* dy, float* gradient) {
  parallel_for(0, layer.outputs, kFeatures * kLanes, [&](int64_t begin, int64_t end) {
    std::fill(gradient + begin, gradient + end, 0.f);
    for_tiles(layer.samples, [&]<int T>(int64_t n) {
      for (int64_t o = begin; o < end; ++o) {
        Vec sum{};
        for (int j = 0; j < T; ++j) sum += load(dy + n * layer.outputs + (o * T + j) * kLanes);
        gradient[o] += sum_lanes(sum);
      }
    });
  });
}

// Nothing passes where an output behind a ReLU is zero.
inline void mask_gradient(const float* y, int64_t size, float* gradient) {
  for (int64_t k = 0; k < size; k += kLanes) store(gradient + k, where_positive(load(y + k), load(gradient + k)));
}

}  // namespace sparseopt
