// Sparse linear layers on transposed activations: x [feature][sample], the samples padded to whole vectors.
//
// Forward, a tile of samples of one output stays in registers while its active weights pass by. Backward, a tile of samples
// of one input keeps x and its gradient there, and every load of the output gradient feeds both products. Threads share the
// features, so each weight's gradient has one writer.
#pragma once
#include <ATen/Parallel.h>

#include "pattern.h"

namespace sparseopt {

constexpr int kLinearForward = 8;
constexpr int kLinearBackward = kRegisters >= 32 ? 8 : 4;

struct LinearLayer {
  Pattern weights;  // lists by output (forward) or input (backward); offsets count features
  int64_t inputs, outputs, samples;  // samples: padded
};

template <int T, bool Relu>
SPARSEOPT_INLINE void linear_forward_tile(const LinearLayer& layer, int64_t o, const float* x, float bias, float* y) {
  const Pattern& w = layer.weights;
  Vec acc[T];
#pragma GCC unroll 8
  for (int j = 0; j < T; ++j) acc[j] = broadcast(bias);
  for (int k = w.start[o]; k < w.start[o + 1]; ++k) {
    const Vec weight = broadcast(w.value[k]);
    const float* p = x + w.offset[k] * layer.samples;
    pin(p);
#pragma GCC unroll 8
    for (int j = 0; j < T; ++j) acc[j] += weight * load(p + j * kLanes);
  }
#pragma GCC unroll 8
  for (int j = 0; j < T; ++j) store(y + j * kLanes, Relu ? relu(acc[j]) : acc[j]);
}

template <int T, bool Relu>
void linear_forward_samples(const LinearLayer& layer, int64_t o, const float* x, float bias, float* y, int64_t n) {
  for (; n + T * kLanes <= layer.samples; n += T * kLanes) linear_forward_tile<T, Relu>(layer, o, x + n, bias, y + n);
  if constexpr (T > 1) {
    if (n < layer.samples) linear_forward_samples<T / 2, Relu>(layer, o, x, bias, y, n);
  }
}

template <bool Relu>
void linear_forward(const LinearLayer& layer, const float* x, const float* bias, float* y) {
  at::parallel_for(0, layer.outputs, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      linear_forward_samples<kLinearForward, Relu>(layer, o, x, bias ? bias[o] : 0.f, y + o * layer.samples, 0);
  });
}

// Where the gradient of x goes: nowhere, or to `to`; `relu`: x is behind a ReLU, nothing passes where it is zero.
struct LinearGradient {
  float* to;
  bool relu;
};

template <int T, bool Gradient>
SPARSEOPT_INLINE void linear_backward_tile(const LinearLayer& layer, int64_t i, const float* x, const float* dy, float* to,
                                           bool relu, float* weight_sums) {
  const Pattern& w = layer.weights;
  Vec in[T], acc[T];
#pragma GCC unroll 8
  for (int j = 0; j < T; ++j) in[j] = load(x + j * kLanes), acc[j] = Vec{};
  for (int k = w.start[i], n = 0; k < w.start[i + 1]; ++k, ++n) {
    const Vec weight = broadcast(w.value[k]);
    const float* p = dy + w.offset[k] * layer.samples;
    pin(p);
    Vec even{}, odd{};
#pragma GCC unroll 8
    for (int j = 0; j < T; ++j) {
      const Vec d = load(p + j * kLanes);
      if constexpr (Gradient) acc[j] += weight * d;
      (j % 2 ? odd : even) += in[j] * d;
    }
    store(weight_sums + n * kLanes, load(weight_sums + n * kLanes) + (even + odd));
  }
  if constexpr (!Gradient) return;
#pragma GCC unroll 8
  for (int j = 0; j < T; ++j) store(to + j * kLanes, relu ? where_positive(in[j], acc[j]) : acc[j]);
}

template <int T, bool Gradient>
void linear_backward_samples(const LinearLayer& layer, int64_t i, const float* x, const float* dy, const LinearGradient& out,
                             float* weight_sums, int64_t n) {
  const int64_t row = i * layer.samples;
  for (; n + T * kLanes <= layer.samples; n += T * kLanes)
    linear_backward_tile<T, Gradient>(layer, i, x + row + n, dy + n, Gradient ? out.to + row + n : nullptr, out.relu,
                                      weight_sums);
  if constexpr (T > 1) {
    if (n < layer.samples) linear_backward_samples<T / 2, Gradient>(layer, i, x, dy, out, weight_sums, n);
  }
}

template <bool Gradient>
void linear_backward(const LinearLayer& layer, const float* x, const float* dy, const LinearGradient& out,
                     const int* order, float* weight_gradient) {
  const Pattern& w = layer.weights;
  at::parallel_for(0, layer.inputs, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int first = w.start[i], count = w.start[i + 1] - first;
      float* sums = scratch<Use::weight_sums>().get<float>(size_t(count) * kLanes);
      std::fill_n(sums, size_t(count) * kLanes, 0.f);
      linear_backward_samples<kLinearBackward, Gradient>(layer, i, x, dy, out, sums, 0);
      for (int n = 0; n < count; ++n) weight_gradient[order[first + n]] = sum_lanes(load(sums + n * kLanes));
    }
  });
}

}  // namespace sparseopt
