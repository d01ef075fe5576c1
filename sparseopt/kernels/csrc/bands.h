// The layout for inference, where a single sample has to fill a vector: images are cut into horizontal bands, and a lane is one
// band of one sample.
//
//   8 lanes, four bands a sample                            one lane, two rows a band, border 1
//
//   lane     0  1  2  3    4  5  6  7                        row -1   last row of the band above      halo
//   band     0  1  2  3    0  1  2  3                        row  0   first row of this band
//   sample   0  0  0  0    1  1  1  1                        row  1   last row of this band
//                                                            row  2   first row of the band below     halo
//
//   memory [row][channel][column][lane], with a border of zeros around every image
//
// Every load is aligned, at any stride. Rows of the last bands that lie beyond the image are zero.
#pragma once
#include <algorithm>

#include "simd.h"
#include "team.h"

namespace sparseopt {

// How the lanes are shared out. `height` is the image's; a plane's rows are those of a band.
struct Bands {
  int count;  // a sample
  int height;
};

template <int L>
struct Plane {
  float* origin = nullptr;      // row 0, channel 0, column 0: inside the border
  int64_t row = 0, channel = 0;  // strides in floats
  int channels = 0, rows = 0, width = 0, border = 0;

  SPARSEOPT_INLINE float* at(int64_t h, int64_t c, int64_t w) const { return origin + h * row + c * channel + w * L; }
  Part whole() const { return {0, width, 0, channels}; }
};

// The row of the image that a lane holds in row h of its band; -1 beyond the image.
template <int L>
int image_row(const Bands& bands, const Plane<L>& x, int lane, int h) {
  const int row = lane % bands.count * x.rows + h;
  return row < bands.height ? row : -1;
}

// Where a lane's row h of a channel is in images [sample][channel][row][column]; null beyond the image or the samples.
template <int L, class F>
F* image_at(F* images, int samples, const Bands& bands, const Plane<L>& x, int lane, int h, int c) {
  const int row = image_row(bands, x, lane, h), sample = lane / bands.count;
  if (row < 0 || sample >= samples) return nullptr;
  return images + ((int64_t(sample) * x.channels + c) * bands.height + row) * x.width;
}

// images, at most L / bands.count of them
template <int L>
void read_images(const float* images, int samples, const Bands& bands, const Plane<L>& x) {
  using V = Simd<L>;
  const float* from[L];
  for (int h = 0; h < x.rows; ++h)
    for (int c = 0; c < x.channels; ++c) {
      float* to = x.at(h, c, 0);
      for (int lane = 0; lane < L; ++lane) from[lane] = image_at(images, samples, bands, x, lane, h, c);
      int w = 0;
      for (; w + L <= x.width; w += L) {
        typename V::Vec square[L]{};
        for (int lane = 0; lane < L; ++lane)
          if (from[lane]) square[lane] = V::load_unaligned(from[lane] + w);
        V::transpose(square);
        for (int i = 0; i < L; ++i) V::store(to + (w + i) * L, square[i]);
      }
      for (; w < x.width; ++w)
        for (int lane = 0; lane < L; ++lane) to[w * L + lane] = from[lane] ? from[lane][w] : 0.f;
    }
}

template <int L>
void write_images(const Plane<L>& x, const Bands& bands, int samples, float* images) {
  using V = Simd<L>;
  float* to[L];
  for (int h = 0; h < x.rows; ++h)
    for (int c = 0; c < x.channels; ++c) {
      const float* from = x.at(h, c, 0);
      for (int lane = 0; lane < L; ++lane) to[lane] = image_at(images, samples, bands, x, lane, h, c);
      int w = 0;
      for (; w + L <= x.width; w += L) {
        typename V::Vec square[L];
        for (int i = 0; i < L; ++i) square[i] = V::load(from + (w + i) * L);
        V::transpose(square);
        for (int lane = 0; lane < L; ++lane)
          if (to[lane]) V::store_unaligned(to[lane] + w, square[lane]);
      }
      for (; w < x.width; ++w)
        for (int lane = 0; lane < L; ++lane)
          if (to[lane]) to[lane][w] = from[w * L + lane];
    }
}

// Mean over all positions: means [sample][channel].
template <int L>
void write_means(const Plane<L>& x, const Bands& bands, int samples, float* means) {
  using V = Simd<L>;
  const float share = 1.f / float(bands.height * x.width);
  for (int c = 0; c < x.channels; ++c) {
    typename V::Vec sum{};
    for (int h = 0; h < x.rows; ++h)
      for (int w = 0; w < x.width; ++w) sum += V::load(x.at(h, c, w));
    for (int sample = 0; sample < samples; ++sample) {
      float total = 0;
      for (int band = 0; band < bands.count; ++band) total += sum[sample * bands.count + band];
      means[int64_t(sample) * x.channels + c] = total * share;
    }
  }
}

// One in the lanes for which f(band) holds, zero in the others.
template <int L, class F>
typename Simd<L>::Vec lanes_where(const Bands& bands, F f) {
  typename Simd<L>::Vec mask{};
  for (int lane = 0; lane < L; ++lane) mask[lane] = f(lane % bands.count) ? 1.f : 0.f;
  return mask;
}

template <int L>
SPARSEOPT_INLINE typename Simd<L>::Vec where(typename Simd<L>::Vec mask, typename Simd<L>::Vec v) {
  using Vec = typename Simd<L>::Vec;
  return mask > Vec{} ? v : Vec{};
}

// Zeros where a band reaches beyond the image: what a convolution has computed there is nobody's.
template <int L>
void clear_beyond(const Plane<L>& x, const Bands& bands, const Part& part) {
  using V = Simd<L>;
  for (int h = 0; h < x.rows; ++h) {
    if (image_row(bands, x, bands.count - 1, h) >= 0) continue;
    const auto inside = lanes_where<L>(bands, [&](int band) { return image_row(bands, x, band, h) >= 0; });
    for (int c = part.first_channel; c < part.last_channel; ++c)
      for (int w = part.first_column; w < part.last_column; ++w) {
        float* p = x.at(h, c, w);
        V::store(p, where<L>(inside, V::load(p)));
      }
  }
}

// One halo row from the bands `shift` lanes before (negative: behind). A vector loaded that many floats earlier is the vector of
// those lanes; what comes along from another column or sample is masked.
template <int L>
void fill_halo_row(const Plane<L>& x, const Bands& bands, const Part& part, int h, int shift) {
  using V = Simd<L>;
  const auto known = lanes_where<L>(bands, [&](int band) { return band - shift >= 0 && band - shift < bands.count; });
  for (int c = part.first_channel; c < part.last_channel; ++c) {
    const float* from = x.at(h + shift * x.rows, c, 0) - shift;
    float* to = x.at(h, c, 0);
    for (int i = part.first_column * L; i < part.last_column * L; i += L)
      V::store(to + i, where<L>(known, V::load_unaligned(from + i)));
  }
}

template <int L>
void fill_halo(const Plane<L>& x, const Bands& bands, const Part& part) {
  if (bands.count == 1) return;  // the border of zeros is all there is above and below
  for (int i = 0; i < x.border; ++i) {
    const int shift = 1 + i / x.rows;
    fill_halo_row(x, bands, part, -1 - i, shift);
    fill_halo_row(x, bands, part, x.rows + i, -shift);
  }
}

// Zeros around the images. Rows above and below a band are those of its neighbours where there are several.
template <int L>
void clear_border(const Plane<L>& x, const Bands& bands, const Part& part) {
  using V = Simd<L>;
  if (x.border == 0) return;
  const typename V::Vec zero{};
  const int left = part.first_column == 0 ? -x.border : part.first_column;
  const int right = part.last_column == x.width ? x.width + x.border : part.last_column;
  for (int h = -x.border; h < x.rows + x.border; ++h) {
    const bool whole = bands.count == 1 && (h < 0 || h >= x.rows);
    for (int c = part.first_channel; c < part.last_channel; ++c) {
      for (int w = left; w < (whole ? right : 0); ++w) V::store(x.at(h, c, w), zero);
      for (int w = x.width; w < right; ++w) V::store(x.at(h, c, w), zero);
    }
  }
}

// A value of images cut into `from` bands, to be one share of a value of Ratio times as many images in as many times fewer bands: what
// was a band is then a part of one, and the lanes of one part lie side by side.
//
//   8 lanes, Ratio 2         from   row r          band  0  1  2  3  4  5  6  7
//                            to     row r          band  0  2  4  6  in lanes 4 * share ...
//                                   row rows + r         1  3  5  7
template <int L, int Ratio, int Part_ = 0>
void recut_vector(const float* from, float* to, int64_t part) {
  if constexpr (Part_ < Ratio) {
    Simd<L>::template store_every<Ratio, Part_>(to + Part_ * part, Simd<L>::load(from));
    recut_vector<L, Ratio, Part_ + 1>(from, to, part);
  }
}

template <int L, int Ratio>
void recut_by(const Plane<L>& from, const Plane<L>& to, int share, const Part& part) {
  for (int h = 0; h < from.rows; ++h)
    for (int c = part.first_channel; c < part.last_channel; ++c)
      for (int w = part.first_column; w < part.last_column; ++w)
        recut_vector<L, Ratio>(from.at(h, c, w), to.at(h, c, w) + share * (L / Ratio), from.rows * to.row);
}

template <int L>
void recut(const Plane<L>& from, const Plane<L>& to, int ratio, int share, const Part& part) {
  if (ratio == 2) return recut_by<L, 2>(from, to, share, part);
  if (ratio == 4) return recut_by<L, 4>(from, to, share, part);
  if constexpr (L >= 8)
    if (ratio == 8) return recut_by<L, 8>(from, to, share, part);
  if constexpr (L >= 16)
    if (ratio == 16) return recut_by<L, 16>(from, to, share, part);
}

}  // namespace sparseopt
