// One vector of samples: the unit every kernel computes with. The width follows the instruction set the file is compiled for,
// so the kernels are written once and never name an intrinsic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

namespace sparseopt {

#if defined(__AVX512F__) || defined(SPARSEOPT_WIDE)  // WIDE: to test what AVX-512 runs on machines without it
constexpr int kLanes = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRegisters = 16;
#else
constexpr int kLanes = 4, kRegisters = 16;
#endif

using Vec = float __attribute__((vector_size(kLanes * sizeof(float))));

#define SPARSEOPT_INLINE inline __attribute__((always_inline))
#define SPARSEOPT_LAMBDA __attribute__((always_inline))

SPARSEOPT_INLINE Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
SPARSEOPT_INLINE void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
SPARSEOPT_INLINE Vec broadcast(float f) { return f - Vec{}; }
// As in torch, what is not a number stays so, and lets gradients pass.
SPARSEOPT_INLINE Vec relu(Vec v) { return Vec{} > v ? Vec{} : v; }
SPARSEOPT_INLINE Vec where_positive(Vec condition, Vec v) { return condition <= Vec{} ? Vec{} : v; }

SPARSEOPT_INLINE Vec load_unaligned(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

SPARSEOPT_INLINE void store_unaligned(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

// Half of a float: what is kept of an activation where memory counts (bfloat16). Arithmetic is in single precision.
struct Half {
  uint16_t bits;
};

using Bits = uint32_t __attribute__((vector_size(sizeof(Vec))));
using HalfVec = uint16_t __attribute__((vector_size(sizeof(Vec) / 2)));

SPARSEOPT_INLINE Vec load(const Half* p) {
  HalfVec half;
  __builtin_memcpy(&half, p, sizeof half);
  return (Vec)(__builtin_convertvector(half, Bits) << 16);
}

// To the nearest that Half holds, ties to even; what is not a number stays so.
SPARSEOPT_INLINE Vec rounded(Vec v) {
  const Bits bits = (Bits)v, nearest = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  return v == v ? (Vec)nearest : (Vec)(bits | 0x400000);
}

// Of values that are rounded already.
SPARSEOPT_INLINE void store(Half* p, Vec v) {
  const HalfVec half = __builtin_convertvector((Bits)v >> 16, HalfVec);
  __builtin_memcpy(p, &half, sizeof half);
}

// As it will be read again from memory of this kind.
template <class T>
SPARSEOPT_INLINE Vec as_stored(Vec v) {
  if constexpr (sizeof(T) == sizeof(Half)) return rounded(v);
  return v;
}

using DoubleVec = double __attribute__((vector_size(kLanes * sizeof(double))));

SPARSEOPT_INLINE DoubleVec widened(Vec v) { return __builtin_convertvector(v, DoubleVec); }

// Adds a vector to one of doubles in memory.
SPARSEOPT_INLINE void add_to(double* p, Vec v) { *reinterpret_cast<DoubleVec*>(p) += widened(v); }

SPARSEOPT_INLINE double sum_lanes(DoubleVec v) {
  double sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += v[lane];
  return sum;
}

SPARSEOPT_INLINE float sum_lanes(Vec v) {
  float lanes[kLanes];
  __builtin_memcpy(lanes, &v, sizeof v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

// Lanes of two vectors, by constant index: kLanes and above are those of b.
template <int... Index>
SPARSEOPT_INLINE Vec shuffle(Vec a, Vec b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, Index...);
#else
  using Indices = int32_t __attribute__((vector_size(sizeof(Vec))));
  return __builtin_shuffle(a, b, Indices{Index...});
#endif
}

// Lanes whose numbers differ in one bit change places between two vectors: those of a with the bit, those of b without it.
template <int Bit, int... Lane>
SPARSEOPT_INLINE void exchange(Vec& a, Vec& b, std::integer_sequence<int, Lane...>) {
  const Vec first = shuffle<(Lane & Bit ? kLanes : 0) + (Lane & ~Bit)...>(a, b);
  b = shuffle<(Lane & Bit ? kLanes : 0) + (Lane | Bit)...>(a, b);
  a = first;
}

// A square of kLanes vectors: after exchanges by every bit, lane n of vector m is lane m of vector n.
template <int Bit = 1>
SPARSEOPT_INLINE void transpose(Vec* square) {
  if constexpr (Bit < kLanes) {
#pragma GCC unroll 16
    for (int n = 0; n < kLanes; ++n)
      if (!(n & Bit)) exchange<Bit>(square[n], square[n + Bit], std::make_integer_sequence<int, kLanes>{});
    transpose<2 * Bit>(square);
  }
}

// The sums of the lanes of `Count` vectors from `vectors` on; for kLanes of them, each in the lane of its vector.
template <int Count = kLanes>
SPARSEOPT_INLINE Vec sum_each(const float* vectors) {
  if constexpr (Count == 1) {
    return load(vectors);
  } else {
    Vec a = sum_each<Count / 2>(vectors), b = sum_each<Count / 2>(vectors + Count / 2 * kLanes);
    exchange<Count / 2>(a, b, std::make_integer_sequence<int, kLanes>{});
    return a + b;
  }
}

// Keeps a pointer in one register. Without it the compiler derives every address of an unrolled tile from scratch and spills
// the accumulators to make room for them.
template <class T>
SPARSEOPT_INLINE void pin(T*& p) {
  asm("" : "+r"(p));
}

// Asks for `Count` values to come, into the second-level cache. A tile's place in the next row is too far from all that the CPU has
// seen for it to guess; without this, waiting for memory and computing take turns.
template <int Count, class T>
SPARSEOPT_INLINE void ask_for(const T* p) {
  constexpr int kLine = 64 / sizeof(T);
#pragma GCC unroll 8
  for (int i = 0; i < Count; i += kLine) __builtin_prefetch(p + i, 0, 2);
}

// Keeps a vector in a register. Without it the compiler reads from memory again for every use: it takes an operand in memory for
// free, where the loads are what the loop waits for.
SPARSEOPT_INLINE Vec held(Vec v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__AVX__) && !defined(SPARSEOPT_WIDE)
  asm("" : "+x"(v));
#endif
  return v;
}

}  // namespace sparseopt
