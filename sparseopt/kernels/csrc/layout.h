// The layout all convolution kernels share: `kLanes` samples innermost, a border of zeros around every image.
//
//   tensor [block][row][channel][column][lane]                one row of one block, kLanes = 8, border 1
//
//   block   : samples 8b .. 8b+7                                channel 0   0 | x00 x01 ... x0W | 0
//   row     : -border .. height-1+border                       channel 1   0 | x10 x11 ... x1W | 0
//   channel : 0 .. channels-1                                    ...
//   column  : -border .. width-1+border                         each x is one Vec: the 8 samples of the block
//   lane    : the sample within its block
//
// Every shifted load is aligned and needs no bounds check, a weight is one broadcast, and the vector length does not depend on
// the image size. Samples beyond the batch are lanes nobody counts: their gradient is zero, and statistics leave them out. They hold
// the last sample once more, so that they are as finite as the batch is: zero times infinity would count.
#pragma once
#include <algorithm>
#include <cstring>

#include "vec.h"

namespace sparseopt {

struct View {
  float* origin = nullptr;  // row 0, channel 0, column 0 of block 0: inside the border
  int64_t block = 0, row = 0, channel = 0;  // strides in values
  int blocks = 0, height = 0, channels = 0, width = 0, border = 0;
  bool half = false;  // values are `Half`; `origin` is their address all the same

  SPARSEOPT_INLINE float* at(int64_t b, int64_t h, int64_t c, int64_t w) const {
    return origin + b * block + h * row + c * channel + w * kLanes;
  }

  template <class T>
  SPARSEOPT_INLINE T* of(int64_t b, int64_t h, int64_t c, int64_t w) const {
    return reinterpret_cast<T*>(origin) + b * block + h * row + c * channel + w * kLanes;
  }
};

// Calls f with a value of the type that the view holds.
template <class F>
SPARSEOPT_INLINE void with_type(const View& v, const F& f) {
  if (v.half) f(Half{});
  else f(float{});
}

inline View make_view(float* data, int blocks, int height, int channels, int width, int border, int lanes = kLanes,
                      bool half = false) {
  View v;
  v.blocks = blocks, v.height = height, v.channels = channels, v.width = width, v.border = border;
  v.channel = int64_t(width + 2 * border) * lanes;
  v.row = v.channel * channels;
  v.block = v.row * (height + 2 * border);
  const int64_t inside = border * (v.row + lanes);
  v.half = half;
  v.origin = half ? reinterpret_cast<float*>(reinterpret_cast<Half*>(data) + inside) : data + inside;
  return v;
}

inline int valid_lanes(int64_t samples, int64_t block) {
  return int(std::clamp<int64_t>(samples - block * kLanes, 0, kLanes));
}

// Zeros around the image of one block; scratch memory is reused between layers of different shape.
inline void clear_border(const View& v, int64_t b) {
  if (v.border == 0) return;
  const size_t side = size_t(v.border) * kLanes * sizeof(float), rows = size_t(v.border) * v.row * sizeof(float);
  float* first = v.origin + b * v.block - v.border * (v.row + kLanes);
  std::memset(first, 0, rows);
  std::memset(first + (v.height + v.border) * v.row, 0, rows);
  for (int h = 0; h < v.height; ++h)
    for (int c = 0; c < v.channels; ++c) {
      std::memset(v.at(b, h, c, -v.border), 0, side);
      std::memset(v.at(b, h, c, v.width), 0, side);
    }
}

}  // namespace sparseopt
