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
  Affine norm;
  Shortcut shortcut;
  bool relu = true;

  template <bool Relu>
  SPARSEOPT_INLINE void make_channel(int64_t b, int h, int c, float* out) const {
    const Affine::Channel map = norm.at(c);
    const float* in = z.at(b, h, c, 0);
    const auto finish = [](Vec v) { return Relu ? sparseopt::relu(v) : v; };
    if (!shortcut.reaches(c)) {
      for (int w = 0; w < z.width; ++w) store(out + w * kLanes, finish(map(load(in + w * kLanes))));
      return;
    }
    const int source = c - shortcut.offset, step = shortcut.stride * kLanes;
    const float* add = shortcut.from.at(b, int64_t(h) * shortcut.stride, source, 0);
    if (shortcut.norm) {
      const Affine::Channel add_map = shortcut.norm.at(source);
      for (int w = 0; w < z.width; ++w)
        store(out + w * kLanes, finish(map(load(in + w * kLanes)) + add_map(load(add + w * step))));
    } else {
      for (int w = 0; w < z.width; ++w) store(out + w * kLanes, finish(map(load(in + w * kLanes)) + load(add + w * step)));
    }
  }

  // Rows [first, last) of block b into block `to` of x.
  void make_rows(int64_t b, const View& x, int64_t to, int first, int last) const {
    for (int h = first; h < last; ++h)
      for (int c = 0; c < z.channels; ++c) {
        if (relu) make_channel<true>(b, h, c, x.at(to, h, c, 0));
        else make_channel<false>(b, h, c, x.at(to, h, c, 0));
      }
  }
};

}  // namespace sparseopt
