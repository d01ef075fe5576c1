// GELU, x * P(normal < x), in place. P is 1 - q beyond zero and q below, with q = erfc(|x| / sqrt 2) / 2 as a polynomial times an
// exponential (Abramowitz and Stegun 7.1.26, off by at most 0.75e-7), so neither tail loses digits to a difference of two ones.
#pragma once
#include <cstring>

#include "vec.h"

namespace sparseopt {

using IntVec = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

// exp(-y) for y >= 0; beyond 87 it is exp(-87). 2^n by its bits, the rest of y by a polynomial.
SPARSEOPT_INLINE Vec exp_minus(Vec y) {
  const Vec limit = broadcast(87.f), magic = broadcast(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  y = y > limit ? limit : y;
  const Vec shifted = y * -1.44269504f + magic, n = shifted - magic;
  const Vec r = -y - n * 0.693359375f + n * 2.12194440e-4f;  // log 2 in two parts
  Vec p = broadcast(1.f / 720);
  for (const float c : {1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f}) p = p * r + c;
  const IntVec power = ((IntVec)shifted - (IntVec)magic + 127) << 23;
  return p * (Vec)power;
}

SPARSEOPT_INLINE Vec gelu(Vec x) {
  const Vec z = (x < Vec{} ? -x : x) * 0.707106781f, t = 1.f / (z * 0.3275911f + 1.f);
  Vec p = broadcast(1.061405429f);
  for (const float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.f}) p = p * t + c;
  const Vec q = p * exp_minus(z * z) * 0.5f;
  return x > Vec{} ? x * (1.f - q) : x * q;  // of infinity, infinity
}

// The same bits for an entry wherever it is: what fills no vector is computed in one all the same.
inline void gelu(float* p, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_unaligned(p + i, gelu(load_unaligned(p + i)));
  if (i == count) return;
  float rest[kLanes]{};
  std::memcpy(rest, p + i, (count - i) * sizeof(float));
  store_unaligned(rest, gelu(load_unaligned(rest)));
  std::memcpy(p + i, rest, (count - i) * sizeof(float));
}

}  // namespace sparseopt
