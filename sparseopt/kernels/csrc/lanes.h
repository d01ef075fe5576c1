// Into the lane layout and out of it, and the passes that no convolution can take along.
#pragma once
#include <bit>

#include "activation.h"
#include "statistics.h"

namespace sparseopt {

// image [sample][channel][row][column] -> one block; lanes beyond the valid ones become the last of these, or zero.
inline void pack_block(const float* image, int valid, bool repeat, const View& x, int64_t b) {
  const int64_t plane = int64_t(x.height) * x.width, sample = plane * x.channels;
  for (int h = 0; h < x.height; ++h)
    for (int c = 0; c < x.channels; ++c) {
      const float* from = image + c * plane + int64_t(h) * x.width;
      float* to = x.at(b, h, c, 0);
      for (int w = 0; w < x.width; ++w)
        for (int lane = 0; lane < kLanes; ++lane)
          to[w * kLanes + lane] = lane < valid || repeat ? from[std::min(lane, valid - 1) * sample + w] : 0.f;
    }
}

inline float value(float v) { return v; }
inline float value(Half v) { return std::bit_cast<float>(uint32_t(v.bits) << 16); }

template <class X>
void unpack_block(const View& x, int64_t b, int valid, float* image) {
  const int64_t plane = int64_t(x.height) * x.width, sample = plane * x.channels;
  for (int lane = 0; lane < valid; ++lane)
    for (int c = 0; c < x.channels; ++c)
      for (int h = 0; h < x.height; ++h) {
        const X* from = x.of<X>(b, h, c, 0) + lane;
        float* to = image + lane * sample + c * plane + int64_t(h) * x.width;
        for (int w = 0; w < x.width; ++w) to[w] = value(from[w * kLanes]);
      }
}

// Mean over all positions of one block: pooled [sample][channel].
template <class X>
void pool_block(const View& x, int64_t b, int valid, float* pooled) {
  const float share = 1.f / float(x.height * x.width);
  for (int c = 0; c < x.channels; ++c) {
    Vec sum{};
    for (int h = 0; h < x.height; ++h) {
      Vec row{};
      for (int w = 0; w < x.width; ++w) row += load(x.of<X>(b, h, c, w));
      sum += row;
    }
    for (int lane = 0; lane < valid; ++lane) pooled[lane * x.channels + c] = sum[lane] * share;
  }
}

// Calls f(block, valid lanes, first sample) for all blocks, in parallel.
template <class F>
void for_blocks(const View& x, int64_t samples, F f) {
  parallel_for(0, x.blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) f(b, valid_lanes(samples, b), b * kLanes);
  });
}

// repeat: of activations; gradients are zero beyond the batch.
inline void pack(const float* image, int64_t samples, bool repeat, const View& x) {
  const int64_t size = int64_t(x.channels) * x.height * x.width;
  for_blocks(x, samples, [&](int64_t b, int valid, int64_t first) { pack_block(image + first * size, valid, repeat, x, b); });
}

inline void unpack(const View& x, int64_t samples, float* image) {
  const int64_t size = int64_t(x.channels) * x.height * x.width;
  for_blocks(x, samples, [&](int64_t b, int valid, int64_t first) {
    with_type(x, [&](auto of_x) { unpack_block<decltype(of_x)>(x, b, valid, image + first * size); });
  });
}

inline void pool_forward(const View& x, int64_t samples, float* pooled) {
  for_blocks(x, samples, [&](int64_t b, int valid, int64_t first) {
    with_type(x, [&](auto of_x) { pool_block<decltype(of_x)>(x, b, valid, pooled + first * x.channels); });
  });
}

// Complete an activation that no convolution reads.
inline void make_activation(Activation source, const View& x) {
  if (x.half) source.copy = x;
  parallel_for(0, x.blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int h = 0; h < x.height; ++h) {
        View to = x;
        if (x.half) {
          to = make_view(scratch<Use::input_rows>().get<float>(x.channel * x.channels), 1, 1, x.channels, x.width, 0);
          to.row = to.block = 0;
        }
        source.make_rows(b, to, b, h, h + 1);
      }
  });
}

// The gradient of the mean, added to g or written there.
template <bool Accumulate>
void pool_backward(const float* gradient, int64_t samples, const View& g) {
  const float share = 1.f / float(g.height * g.width);
  parallel_for(0, g.blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int c = 0; c < g.channels; ++c) {
        Vec d{};
        for (int lane = 0; lane < valid_lanes(samples, b); ++lane)
          d[lane] = gradient[(b * kLanes + lane) * g.channels + c] * share;
        for (int h = 0; h < g.height; ++h)
          for (int w = 0; w < g.width; ++w) {
            float* to = g.at(b, h, c, w);
            store(to, Accumulate ? load(to) + d : d);
          }
      }
  });
}

// What a residual sum sends back along its shortcut: g of the sum, at the positions and channels the shortcut read. With
// Accumulate it is added to `to`, else `to` becomes it, zero where the shortcut read nothing.
template <bool Accumulate>
void shortcut_backward(const View& g, int stride, int offset, const View& to) {
  parallel_for(0, to.blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int h = 0; h < to.height; ++h)
        for (int c = 0; c < to.channels; ++c)
          for (int w = 0; w < to.width; ++w) {
            const bool read = h % stride == 0 && w % stride == 0;
            if (Accumulate && !read) continue;
            float* p = to.at(b, h, c, w);
            const Vec d = read ? load(g.at(b, h / stride, c + offset, w / stride)) : Vec{};
            store(p, Accumulate ? load(p) + d : d);
          }
  });
}

// Finish a gradient that no convolution finished: the ReLU's mask, and the sums of g and g * (z - mean).
template <class X>
void finish_gradient(const View& g, const View& x, const View& z, const float* means, int64_t samples, double* sums) {
  Statistics statistics(g.channels, num_threads());
  parallel_for(0, g.blocks, 1, [&](int64_t begin, int64_t end) {
    BlockSums block_sums(g.channels);
    for (int64_t b = begin; b < end; ++b) {
      for (int h = 0; h < g.height; ++h) {
        for (int c = 0; c < g.channels; ++c) {
          Vec sum{}, product{};
          const Vec mean = broadcast(means[c]);
          for (int w = 0; w < g.width; ++w) {
            float* p = g.at(b, h, c, w);
            if (x.origin) store(p, where_positive(load(x.of<X>(b, h, c, w)), load(p)));
            sum += load(p);
            product += load(p) * (load(z.of<X>(b, h, c, w)) - mean);
          }
          block_sums.add(c, sum, product);
        }
      }
      block_sums.end_block(valid_lanes(samples, b), statistics.of_thread());
    }
  });
  statistics.reduce(sums);
}

}  // namespace sparseopt
