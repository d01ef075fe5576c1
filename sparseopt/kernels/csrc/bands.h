// The layout for inference, where a single sample has to fill a vector: images are cut into horizontal bands, and these into strips
// where bands alone would be too thin. A lane is one such patch of one sample.
//
//   8 lanes, four bands a sample                            one lane, two rows a band, border 1
//
//   lane     0  1  2  3    4  5  6  7                        row -1   last row of the band above      halo
//   band     0  1  2  3    0  1  2  3                        row  0   first row of this band
//   sample   0  0  0  0    1  1  1  1                        row  1   last row of this band
//                                                            row  2   first row of the band below     halo
//   two bands of two strips: lane = 2 * band + strip, and columns beside a strip are its neighbours' in the same way
//
//   memory [row][channel][column][lane], with a border of zeros around every image
//
// Every load is aligned, at any stride. Rows and columns of the last patches that lie beyond the image are zero.
//
// Where an image does not fit the cache, its columns lie in groups, [row][group][channel][column of the group][lane]: what a tile as
// wide as a group reads of all channels is then one run of memory, which comes from far away twice as fast as many short ones. A
// grouped plane has no border columns.
#pragma once
#include <algorithm>

#include "simd.h"
#include "team.h"

namespace sparseopt {

// How the lanes are shared out. `height` and `width` are the image's; a plane's rows and its width are those of a patch. What a lane
// holds is asked for lane by lane at every layer, and is known from a table: divisions took a fifth of a small image's time.
struct Bands {
  int count, strips;  // bands a sample, strips a band
  int height, width;

  Bands(int count, int strips, int height, int width) : count(count), strips(strips), height(height), width(width) {
    for (int lane = 0; lane < kMostLanes; ++lane)
      sample_[lane] = int8_t(lane / lanes()), band_[lane] = int8_t(lane / strips % count), strip_[lane] = int8_t(lane % strips);
  }

  int lanes() const { return count * strips; }  // of a sample
  int sample(int lane) const { return sample_[lane]; }
  int band(int lane) const { return band_[lane]; }
  int strip(int lane) const { return strip_[lane]; }

 private:
  static constexpr int kMostLanes = 16;
  int8_t sample_[kMostLanes], band_[kMostLanes], strip_[kMostLanes];
};

template <int L>
struct Plane {
  float* origin = nullptr;      // row 0, channel 0, column 0: inside the border
  int64_t row = 0, channel = 0, next_group = 0;  // strides in floats
  int channels = 0, rows = 0, width = 0, border = 0;
  int group = 0;  // columns; 0: all of them

  SPARSEOPT_INLINE float* at(int64_t h, int64_t c, int w) const {
    float* const start = origin + h * row + c * channel;
    return group ? start + w / group * next_group + w % group * L : start + w * L;
  }
  // The column behind those that lie side by side from w on, or `last`.
  SPARSEOPT_INLINE int run_end(int w, int last) const { return group ? std::min(last, (w / group + 1) * group) : last; }
  // Columns on either side that are there.
  int sides() const { return group ? 0 : border; }
  Part whole() const { return {0, width, 0, channels}; }
};

// The row of the image that a lane holds in row h of its band; -1 beyond the image.
template <int L>
int image_row(const Bands& bands, const Plane<L>& x, int lane, int h) {
  const int row = bands.band(lane) * x.rows + h;
  return row < bands.height ? row : -1;
}

// Columns of the image that a lane holds; negative if all are beyond it.
template <int L>
int image_columns(const Bands& bands, const Plane<L>& x, int lane) {
  return std::min(x.width, bands.width - bands.strip(lane) * x.width);
}

// Where each lane's row h of a channel is in images [sample][channel][row][column], and how many columns all lanes have that are
// in some image; null beyond the image or the samples.
template <int L, class F>
int images_at(F* images, int samples, const Bands& bands, const Plane<L>& x, int h, int c, F** at) {
  int columns = x.width;
  for (int lane = 0; lane < L; ++lane) {
    const int row = image_row(bands, x, lane, h), sample = bands.sample(lane), own = image_columns(bands, x, lane);
    const bool inside = row >= 0 && own > 0 && sample < samples;
    at[lane] = inside ? images + ((int64_t(sample) * x.channels + c) * bands.height + row) * bands.width + bands.strip(lane) * x.width
                      : nullptr;
    if (inside) columns = std::min(columns, own);
  }
  return columns;
}

// images, at most L / bands.lanes() of them
template <int L>
void read_images(const float* images, int samples, const Bands& bands, const Plane<L>& x) {
  using V = Simd<L>;
  const float* from[L];
  for (int h = 0; h < x.rows; ++h)
    for (int c = 0; c < x.channels; ++c) {
      float* to = x.at(h, c, 0);
      const int columns = images_at(images, samples, bands, x, h, c, from);
      int w = 0;
      for (; w + L <= columns; w += L) {
        typename V::Vec square[L]{};
        for (int lane = 0; lane < L; ++lane)
          if (from[lane]) square[lane] = V::load_unaligned(from[lane] + w);
        V::transpose(square);
        for (int i = 0; i < L; ++i) V::store(to + (w + i) * L, square[i]);
      }
      for (; w < x.width; ++w)
        for (int lane = 0; lane < L; ++lane)
          to[w * L + lane] = from[lane] && w < image_columns(bands, x, lane) ? from[lane][w] : 0.f;
    }
}

template <int L>
void write_images(const Plane<L>& x, const Bands& bands, int samples, float* images) {
  using V = Simd<L>;
  float* to[L];
  for (int h = 0; h < x.rows; ++h)
    for (int c = 0; c < x.channels; ++c) {
      const float* from = x.at(h, c, 0);
      const int columns = images_at(images, samples, bands, x, h, c, to);
      int w = 0;
      for (; w + L <= columns; w += L) {
        typename V::Vec square[L];
        for (int i = 0; i < L; ++i) square[i] = V::load(from + (w + i) * L);
        V::transpose(square);
        for (int lane = 0; lane < L; ++lane)
          if (to[lane]) V::store_unaligned(to[lane] + w, square[lane]);
      }
      for (; w < x.width; ++w)
        for (int lane = 0; lane < L; ++lane)
          if (to[lane] && w < image_columns(bands, x, lane)) to[lane][w] = from[w * L + lane];
    }
}

// Mean over all positions: means [sample][channel].
template <int L>
void write_means(const Plane<L>& x, const Bands& bands, int samples, float* means) {
  using V = Simd<L>;
  const float share = 1.f / float(bands.height * bands.width);
  for (int c = 0; c < x.channels; ++c) {
    typename V::Vec sum{};
    for (int h = 0; h < x.rows; ++h)
      for (int w = 0; w < x.width; ++w) sum += V::load(x.at(h, c, w));
    for (int sample = 0; sample < samples; ++sample) {
      float total = 0;
      for (int lane = 0; lane < bands.lanes(); ++lane) total += sum[sample * bands.lanes() + lane];
      means[int64_t(sample) * x.channels + c] = total * share;
    }
  }
}

// One in the lanes for which f(lane) holds, zero in the others.
template <int L, class F>
typename Simd<L>::Vec lanes_where(F f) {
  typename Simd<L>::Vec mask{};
  for (int lane = 0; lane < L; ++lane) mask[lane] = f(lane) ? 1.f : 0.f;
  return mask;
}

template <int L>
SPARSEOPT_INLINE typename Simd<L>::Vec where(typename Simd<L>::Vec mask, typename Simd<L>::Vec v) {
  using Vec = typename Simd<L>::Vec;
  return mask > Vec{} ? v : Vec{};
}

// Zeros where a patch reaches beyond the image: what a convolution has computed there is nobody's.
template <int L>
void clear_beyond(const Plane<L>& x, const Bands& bands, const Part& part) {
  using V = Simd<L>;
  const int last = bands.lanes() - 1, columns = std::max(0, image_columns(bands, x, last));
  for (int h = 0; h < x.rows; ++h) {
    const bool inside_rows = image_row(bands, x, last, h) >= 0;
    for (int w = inside_rows ? std::max(columns, part.first_column) : part.first_column; w < part.last_column; ++w) {
      const auto inside = lanes_where<L>(
          [&](int lane) { return image_row(bands, x, lane, h) >= 0 && w < image_columns(bands, x, lane); });
      for (int c = part.first_channel; c < part.last_channel; ++c) {
        float* p = x.at(h, c, w);
        V::store(p, where<L>(inside, V::load(p)));
      }
    }
  }
}

// Columns from `first` to `last` - 1 of row h, from those `rows` and `columns` away in the lanes `shift` before (negative: behind), and
// zero in lanes where `known` is. A vector loaded that many floats earlier is the vector of those lanes.
template <int L>
void fill_from(const Plane<L>& x, const Part& part, int h, int first, int last, int rows, int columns, int shift,
               typename Simd<L>::Vec known) {
  using V = Simd<L>;
  for (int w = first, end; w < last; w = end) {
    end = x.run_end(w, last);
    for (int c = part.first_channel; c < part.last_channel; ++c) {
      const float* from = x.at(h + rows, c, w + columns) - shift;
      float* to = x.at(h, c, w);
      for (int i = 0; i < (end - w) * L; i += L) V::store(to + i, where<L>(known, V::load_unaligned(from + i)));
    }
  }
}

// Columns beside a strip: its neighbours', or zeros.
template <int L>
void fill_sides(const Plane<L>& x, const Bands& bands, const Part& part) {
  for (int i = 0; i < x.border; ++i)
    for (const int side : {1, -1}) {
      const int away = side * (1 + i / x.width), w = side > 0 ? -1 - i : x.width + i;
      const auto known = lanes_where<L>([&](int lane) {
        return bands.strip(lane) - away >= 0 && bands.strip(lane) - away < bands.strips;
      });
      for (int h = 0; h < x.rows; ++h) fill_from(x, part, h, w, w + 1, 0, away * x.width, away, known);
    }
}

// Rows above and below a band: its neighbours', or zeros. Sides come along, if they are neighbours' as well.
template <int L>
void fill_ends(const Plane<L>& x, const Bands& bands, const Part& part) {
  const int sides = bands.strips > 1 ? x.border : 0;
  for (int i = 0; i < x.border; ++i)
    for (const int side : {1, -1}) {
      const int away = side * (1 + i / x.rows), h = side > 0 ? -1 - i : x.rows + i;
      const auto known =
          lanes_where<L>([&](int lane) { return bands.band(lane) - away >= 0 && bands.band(lane) - away < bands.count; });
      fill_from(x, part, h, part.first_column - sides, part.last_column + sides, away * x.rows, 0, away * bands.strips, known);
    }
}

// Zeros around images that are whole in their lanes, in rows and columns from first to last - 1 around a plane.
template <int L>
void clear_around(const Plane<L>& x, const Part& part, int first_row, int last_row, int first_column, int last_column) {
  const typename Simd<L>::Vec zero{};
  for (int h = first_row; h < last_row; ++h)
    for (int c = part.first_channel; c < part.last_channel; ++c)
      for (int w = first_column; w < last_column; ++w) Simd<L>::store(x.at(h, c, w), zero);
}

// What is around a patch: neighbours' rows and columns, and zeros around the image. Members of a team that share columns have a
// share of it each, and where there are strips they share channels, because the columns beside one are another's.
template <int L>
void surround(const Plane<L>& x, const Bands& bands, const Part& part) {
  const int border = x.border;
  if (border == 0) return;
  const int left = part.first_column == 0 ? -x.sides() : part.first_column;
  const int right = part.last_column == x.width ? x.width + x.sides() : part.last_column;
  if (bands.strips > 1) {
    fill_sides(x, bands, part);
  } else {
    clear_around(x, part, -border, x.rows + border, left, 0);
    clear_around(x, part, -border, x.rows + border, x.width, right);
  }
  if (bands.count > 1) {
    fill_ends(x, bands, part);
  } else {
    clear_around(x, part, -border, 0, left, right);
    clear_around(x, part, x.rows, x.rows + border, left, right);
  }
}

}  // namespace sparseopt
