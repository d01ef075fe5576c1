// The layout for inference, where a single sample has to fill a vector: images are cut into horizontal bands, and a lane is one
// band of one sample.
//
//   kLanes = 8, four bands a sample                         one lane, two rows a band, border 1
//
//   lane     0  1  2  3    4  5  6  7                        row -1   last row of the band above      halo
//   band     0  1  2  3    0  1  2  3                        row  0   first row of this band
//   sample   0  0  0  0    1  1  1  1                        row  1   last row of this band
//                                                            row  2   first row of the band below     halo
//
// Apart from the halo this is the layout of training (layout.h) with the rows of one band for its height, so the same tiles run
// on it: every load is aligned, at any stride. One band a sample is the layout of training itself. Rows of the last bands that
// lie beyond the image are zero.
#pragma once
#include "layout.h"
#include "team.h"

namespace sparseopt {

// How the lanes of a view are shared out. `height` is the image's; the view's height is that of a band.
struct Bands {
  int count;  // a sample
  int height;

  int samples() const { return kLanes / count; }
};

// The row of the image that a lane holds in row h of its band; -1 beyond the image.
inline int image_row(const Bands& bands, const View& x, int lane, int h) {
  const int row = lane % bands.count * x.height + h;
  return row < bands.height ? row : -1;
}

// Calls f(lane, row of the lane's sample) for every lane that holds a row of a sample in row h.
template <class F>
void for_lanes(const Bands& bands, const View& x, int h, int samples, F f) {
  for (int lane = 0; lane < samples * bands.count; ++lane)
    if (const int row = image_row(bands, x, lane, h); row >= 0) f(lane, row);
}

// images [sample][channel][row][column], at most `bands.samples()` of them
inline void read_images(const float* images, int samples, const Bands& bands, const View& x) {
  const int64_t plane = int64_t(bands.height) * x.width;
  for (int h = 0; h < x.height; ++h)
    for (int c = 0; c < x.channels; ++c) {
      float* to = x.at(0, h, c, 0);
      std::fill_n(to, x.width * kLanes, 0.f);
      for_lanes(bands, x, h, samples, [&](int lane, int row) {
        const float* from = images + (int64_t(lane / bands.count) * x.channels + c) * plane + int64_t(row) * x.width;
        for (int w = 0; w < x.width; ++w) to[w * kLanes + lane] = from[w];
      });
    }
}

inline void write_images(const View& x, const Bands& bands, int samples, float* images) {
  const int64_t plane = int64_t(bands.height) * x.width;
  for (int h = 0; h < x.height; ++h)
    for (int c = 0; c < x.channels; ++c) {
      const float* from = x.at(0, h, c, 0);
      for_lanes(bands, x, h, samples, [&](int lane, int row) {
        float* to = images + (int64_t(lane / bands.count) * x.channels + c) * plane + int64_t(row) * x.width;
        for (int w = 0; w < x.width; ++w) to[w] = from[w * kLanes + lane];
      });
    }
}

// Mean over all positions: means [sample][channel].
inline void write_means(const View& x, const Bands& bands, int samples, float* means) {
  const float share = 1.f / float(bands.height * x.width);
  for (int c = 0; c < x.channels; ++c) {
    Vec sum{};
    for (int h = 0; h < x.height; ++h)
      for (int w = 0; w < x.width; ++w) sum += load(x.at(0, h, c, w));
    for (int sample = 0; sample < samples; ++sample) {
      float total = 0;
      for (int band = 0; band < bands.count; ++band) total += sum[sample * bands.count + band];
      means[sample * x.channels + c] = total * share;
    }
  }
}

// Positive in the lanes for which f(band) holds.
template <class F>
Vec lanes_where(const Bands& bands, F f) {
  Vec mask{};
  for (int lane = 0; lane < kLanes; ++lane) mask[lane] = f(lane % bands.count) ? 1.f : 0.f;
  return mask;
}

// Zeros where a band reaches beyond the image: what a convolution has computed there is nobody's.
inline void clear_beyond(const View& x, const Bands& bands, const Part& part) {
  for (int h = 0; h < x.height; ++h) {
    if (image_row(bands, x, bands.count - 1, h) >= 0) continue;
    const Vec inside = lanes_where(bands, [&](int band) { return image_row(bands, x, band, h) >= 0; });
    for (int c = part.first_channel; c < part.last_channel; ++c)
      for (int w = part.first_column; w < part.last_column; ++w)
        store(x.at(0, h, c, w), where_positive(inside, load(x.at(0, h, c, w))));
  }
}

// One halo row from the bands `shift` lanes before (negative: behind). A vector loaded that many floats earlier is the vector of
// those lanes; what comes along from another column or sample is masked.
inline void fill_halo_row(const View& x, const Bands& bands, const Part& part, int h, int shift) {
  const Vec known = lanes_where(bands, [&](int band) { return band - shift >= 0 && band - shift < bands.count; });
  for (int c = part.first_channel; c < part.last_channel; ++c) {
    const float* from = x.at(0, h + shift * x.height, c, 0) - shift;
    float* to = x.at(0, h, c, 0);
    for (int i = part.first_column * kLanes; i < part.last_column * kLanes; i += kLanes)
      store(to + i, where_positive(known, load_unaligned(from + i)));
  }
}

inline void fill_halo(const View& x, const Bands& bands, const Part& part) {
  if (bands.count == 1) return;  // the border of zeros is all there is above and below
  for (int i = 0; i < x.border; ++i) {
    const int shift = 1 + i / x.height;
    fill_halo_row(x, bands, part, -1 - i, shift);
    fill_halo_row(x, bands, part, x.height + i, -shift);
  }
}

}  // namespace sparseopt
