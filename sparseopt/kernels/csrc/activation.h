// Rows of an activation, made where they are needed: x = relu(norm(z) [+ shortcut]).
//
// The batch norm of a layer, its ReLU and the residual sum have no pass over memory of their own: the convolution that reads
// x asks for its rows just before it uses them, while they are in the cache.
#pragma once
#include "layout.h"

namespace sparseopt {

// A batch norm as three numbers a channel: (z - mean) * scale + bias. Subtracting first keeps the digits that folding the mean
// into the bias would lose.
struct Affine {
  const float* mean = nullptr;
  const float* scale = nullptr;
  const float* bias = nullptr;

  explicit operator bool() const { return mean; }

  struct Channel {
    Vec mean, scale, bias;
    SPARSEOPT_INLINE Vec operator()(Vec z) const { return (z - mean) * scale + bias; }
  };

  SPARSEOPT_INLINE Channel at(int c) const { return {broadcast(mean[c]), broadcast(scale[c]), broadcast(bias[c])}; }
};

// From [3][channel].
inline Affine affine(const float* p, int channels) {
  return p ? Affine{p, p + channels, p + 2 * channels} : Affine{};
}

// What a residual sum adds: another activation, subsampled by `stride`, its channels placed from `offset` on (padding
// shortcut), or a projection's z with its own batch norm.
struct Shortcut {
  View from;
  Affine norm;
  int stride = 1, offset = 0;

  bool reaches(int channel) const { return from.origin && channel >= offset && channel < offset + from.channels; }
};

struct Activation {
  View z;
  Affine norm;  // null: z is the activation itself, in half precision
  Shortcut shortcut;
  bool relu = true;
  View copy;  // where it is kept in half precision; no origin: nowhere

  // One row of one channel. Z and A: what z and the shortcut are kept as.
  template <bool Relu, bool Copy, class Z, class A>
  SPARSEOPT_INLINE void make_channel(int64_t b, int h, int c, float* out) const {
    const Affine::Channel map = norm.at(c);
    const Z* in = z.of<Z>(b, h, c, 0);
    Half* kept = Copy ? copy.of<Half>(b, h, c, 0) : nullptr;
    const auto finish = [&](int w, Vec v) SPARSEOPT_LAMBDA {
      if (Relu) v = sparseopt::relu(v);
      if constexpr (Copy) v = rounded(v), store(kept + w * kLanes, v);
      store(out + w * kLanes, v);
    };
    if (!shortcut.reaches(c)) {
      for (int w = 0; w < z.width; ++w) finish(w, map(load(in + w * kLanes)));
      return;
    }
    const int source = c - shortcut.offset, step = shortcut.stride * kLanes;
    const A* add = shortcut.from.of<A>(b, int64_t(h) * shortcut.stride, source, 0);
    if (shortcut.norm) {
      const Affine::Channel add_map = shortcut.norm.at(source);
      for (int w = 0; w < z.width; ++w) finish(w, map(load(in + w * kLanes)) + add_map(load(add + w * step)));
    } else {
      for (int w = 0; w < z.width; ++w) finish(w, map(load(in + w * kLanes)) + load(add + w * step));
    }
  }

  template <bool Relu, bool Copy>
  void make_row(int64_t b, int h, const View& x, int64_t to) const {
    with_type(z, [&](auto of_z) {
      with_type(shortcut.from, [&](auto of_shortcut) {
        for (int c = 0; c < z.channels; ++c)
          make_channel<Relu, Copy, decltype(of_z), decltype(of_shortcut)>(b, h, c, x.at(to, h, c, 0));
      });
    });
  }

  void widen_row(int64_t b, int h, const View& x, int64_t to) const {
    for (int c = 0; c < z.channels; ++c)
      for (int w = 0; w < z.width; ++w) store(x.at(to, h, c, w), load(z.of<Half>(b, h, c, w)));
  }

  // Rows [first, last) of block b into block `to` of x.
  void make_rows(int64_t b, const View& x, int64_t to, int first, int last) const {
    for (int h = first; h < last; ++h) {
      if (!norm) widen_row(b, h, x, to);
      else if (copy.origin) relu ? make_row<true, true>(b, h, x, to) : make_row<false, true>(b, h, x, to);
      else relu ? make_row<true, false>(b, h, x, to) : make_row<false, false>(b, h, x, to);
    }
  }
};

}  // namespace sparseopt
