// Batch norm behind a linear layer, on tiles (see linear.h), by the numbers of batch_norm.h. Sums over the samples are in double
// precision throughout; samples that pad the last vector are left out, and their gradient is zero.
#pragma once
#include "linear.h"

namespace sparseopt {

// Calls f.operator()<T>(feature, where its T vectors of a tile are, the first sample in them). A feature has one thread.
template <class F>
void for_features(int64_t features, int64_t padded, const F& f) {
  parallel_for(0, features, kFeatures * kLanes, [&](int64_t begin, int64_t end) {
    for_tiles(padded, [&]<int T>(int64_t n) {
      for (int64_t feature = begin; feature < end; ++feature)
        f.template operator()<T>(feature, n * features + feature * T * kLanes, n);
    });
  });
}

// The vector of samples n .. n + kLanes - 1, zero from `samples` on.
SPARSEOPT_INLINE Vec valid(Vec v, int64_t n, int64_t samples) {
  if (n + kLanes <= samples) return v;
  for (int64_t lane = std::max<int64_t>(0, samples - n); lane < kLanes; ++lane) v[lane] = 0;
  return v;
}

// sums [2][feature]: of z, and of its squares
inline void sum_features(const float* z, int64_t features, int64_t samples, int64_t padded, double* sums) {
  std::fill_n(sums, 2 * features, 0.0);
  for_features(features, padded, [&]<int T>(int64_t feature, int64_t at, int64_t n) {
    DoubleVec sum{}, squares{};
    for (int j = 0; j < T; ++j) {
      const DoubleVec v = widened(valid(load(z + at + j * kLanes), n + j * kLanes, samples));
      sum += v, squares += v * v;
    }
    sums[feature] += sum_lanes(sum), sums[features + feature] += sum_lanes(squares);
  });
}

// y = (z - mean) * scale + bias, and the ReLU; affine [3][feature].
inline void normalise(const float* z, const float* affine, bool relu_behind, int64_t features, int64_t padded, float* y) {
  for_features(features, padded, [&]<int T>(int64_t feature, int64_t at, int64_t) {
    const float mean = affine[feature], scale = affine[features + feature], bias = affine[2 * features + feature];
    for (int j = 0; j < T; ++j) {
      const Vec v = (load(z + at + j * kLanes) - mean) * scale + bias;
      store(y + at + j * kLanes, relu_behind ? relu(v) : v);
    }
  });
}

// The gradient g of y, masked in place where y is behind a ReLU; sums [2][feature]: of g, and of g * (z - mean).
inline void sum_gradients(const float* y, const float* z, const float* mean, int64_t features, int64_t padded, float* g,
                          double* sums) {
  std::fill_n(sums, 2 * features, 0.0);
  for_features(features, padded, [&]<int T>(int64_t feature, int64_t at, int64_t) {
    DoubleVec sum{}, products{};
    for (int j = 0; j < T; ++j) {
      float* p = g + at + j * kLanes;
      if (y) store(p, where_positive(load(y + at + j * kLanes), load(p)));
      const DoubleVec d = widened(load(p));
      sum += d, products += d * widened(load(z + at + j * kLanes) - mean[feature]);
    }
    sums[feature] += sum_lanes(sum), sums[features + feature] += sum_lanes(products);
  });
}

// In place: the gradient of z from that of y; coefficients [4][feature].
inline void normalise_backward(const float* z, const float* coefficients, int64_t features, int64_t samples, int64_t padded,
                               float* g) {
  for_features(features, padded, [&]<int T>(int64_t feature, int64_t at, int64_t n) {
    const float *a = coefficients + feature, *b = a + features, *c = b + features, *mean = c + features;
    for (int j = 0; j < T; ++j) {
      float* p = g + at + j * kLanes;
      const Vec dz = *a * load(p) + *b * (load(z + at + j * kLanes) - *mean) + *c;
      store(p, valid(dz, n + j * kLanes, samples));
    }
  });
}

}  // namespace sparseopt
