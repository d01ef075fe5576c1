// A whole region without gradients: batch norm is folded into the weights, and every layer writes its finished activation.
// As many samples as fill one vector (see bands.h) run through all layers before the next ones start.
//
// A layer runs in one of many ways (`Way`), which one is fastest depends on its shape and on the machine and is measured: the size of
// its tiles, and whether its input channels are taken in blocks, what a tile reads of one being copied together first. Blocks pay where
// the input of a tile does not fit the first-level cache: then every weight of the block finds it there. What lies together
// already, as a tile of a 1 x 1 convolution finds it in a grouped plane, is not copied.
#pragma once
#include "bands.h"
#include "lists.h"
#include "scratch.h"
#include "tile.h"

namespace sparseopt {

// relu(convolution + bias [+ shortcut]); with `pool`, the maximum over a window as large as the weights, of which there are none. What
// is pooled is never negative, so that the zeros around it do not count.
struct Conv {
  Weights weights;
  const float* bias;
  int64_t input, output, shortcut;  // slots; shortcut -1: none
  int64_t stride, padding_rows, padding_columns, shortcut_stride, shortcut_offset, relu, pool;
};

// tile: its number. block: input channels that are taken together; 0: all. copies: what a tile reads of them is copied together first.
struct Way {
  int tile = 0, block = 0;
  bool copies = false;
};

// An activation's place in the arena, into how many bands and strips a sample is cut in it, and the rows and columns of one patch.
struct Slot {
  int64_t offset, channels, height, width, border, rows, columns, bands, strips, group;

  template <int L>
  Plane<L> plane(float* arena) const {
    Plane<L> x;
    x.channels = int(channels), x.rows = int(rows), x.width = int(columns), x.border = int(border);
    x.group = int(group);
    x.channel = (group ? group : (columns + 2 * border) | 1) * L;  // odd: else channels meet in few sets of the caches
    x.next_group = x.channel * channels;
    x.row = x.next_group * (group ? (columns + group - 1) / group : 1);
    x.origin = arena + offset + border * x.row + x.sides() * L;
    return x;
  }
};

template <int L>
class Layer {
 public:
  explicit Layer(const Conv& conv) : conv(conv), per_channel_(conv.weights.out + 1, 0) {
    const int64_t size = conv.weights.in * conv.weights.height * conv.weights.width;
    for (int64_t k = 0; k < conv.weights.size; ++k) ++per_channel_[conv.weights.position[k] / size + 1];
    for (size_t i = 1; i < per_channel_.size(); ++i) per_channel_[i] += per_channel_[i - 1];
  }

  void choose(const Way& way, const Plane<L>& x) {
    const int S = int(conv.stride);
    const Weights& w = conv.weights;
    size_ = kTiles[way.tile];
    window_rows_ = (size_.rows - 1) * S + int(w.height);
    window_columns_ = (size_.columns - 1) * S + int(w.width);
    phases_ = std::min(S, int(w.width));
    half_ = (window_columns_ + S - 1) / S;
    block_ = way.block ? way.block : int(w.in);
    copies_ = way.copies || (x.group && !lies_together(x)) || !conv_kernel<L>(way.tile, S);
    kernel_ = conv_kernel<L>(way.tile, copies_ ? 1 : S);
    lists_ = make_lists(w, block_, [&](int64_t in, int64_t row, int64_t column) {
      return copies_ ? ((in % block_ * window_rows_ + row) * phases_ * half_ + column % S * half_ + column / S) * L
                     : in * x.channel + (row - conv.padding_rows) * x.row + (column - conv.padding_columns) * L;
    });
  }

  Part part(const Plane<L>& y, bool share_columns, const Member& member) const {
    return part_of(y.width, y.channels, size_.columns, share_columns, member, [&](int c) { return conv.pool ? c : per_channel_[c]; });
  }

  // `y` has as many rows as are computed, times the ratio of `recut`.
  void run(const Plane<L>& x, const Plane<L>& y, const Plane<L>& shortcut, const Part& part, const Recut& recut) const {
    const int rows = y.rows / recut.ratio;
    if (conv.pool) return pool(x, y, part, recut);
    const int S = int(conv.stride), blocks = int((conv.weights.in + block_ - 1) / block_);
    const int64_t T = conv.shortcut_stride;
    Tile t{};
    t.offset = lists_.offset.data(), t.value = lists_.value.data(), t.bias = conv.bias;
    t.first_channel = part.first_channel, t.last_channel = part.last_channel, t.relu = conv.relu != 0;
    t.y_row = y.row, t.y_channel = y.channel, t.recut = recut;
    t.shortcut_row = T * shortcut.row, t.shortcut_channel = shortcut.channel, t.shortcut_column = T * L;
    t.shortcut_offset = int(conv.shortcut_offset), t.shortcut_channels = shortcut.channels;
    t.partial = blocks > 1 ? scratch<Use::output_rows>().get<float>(size_t(y.channels) * size_.rows * size_.columns * L) : nullptr;
    float* copy = copies_ ? scratch<Use::input_rows>().get<float>(copied()) : nullptr;
    t.x_row = copies_ ? int64_t(S) * phases_ * half_ * L : S * x.row;
    for (int h = 0; h < rows; h += size_.rows)
      for (int w = part.first_column; w < part.last_column; w += t.columns) {
        t.rows = std::min(size_.rows, rows - h), t.columns = columns(x, y, shortcut, w, part.last_column);
        t.y = y.at(h, 0, w) + recut.first_lane<L>();
        t.shortcut = shortcut.origin ? shortcut.at(h * T, 0, w * int(T)) : nullptr;
        t.x = copies_ ? copy : x.at(int64_t(h) * S, 0, w * S);
        for (int b = 0; b < blocks; ++b) {
          t.start = lists_.start.data() + int64_t(b) * conv.weights.out;
          t.first_block = b == 0, t.last_block = b == blocks - 1;
          if (copies_) copy_window(x, b * block_, h * S, w * S, copy);
          if (lies_together(x)) look_ahead(x, h, w, b, t);
          kernel_(t);
        }
      }
  }

  const Conv conv;

 private:
  size_t copied() const { return size_t(block_) * window_rows_ * phases_ * half_ * L; }

  // Whether what a tile of one row reads of all channels is one run of memory.
  bool lies_together(const Plane<L>& x) const {
    return x.group && conv.stride == 1 && conv.weights.height == 1 && conv.weights.width == 1;
  }

  // Of the tile that begins at column w: those that are there, and that lie side by side wherever the tile reads or writes.
  int columns(const Plane<L>& x, const Plane<L>& y, const Plane<L>& shortcut, int w, int last) const {
    const int end = shortcut.run_end(w, y.run_end(w, std::min(w + size_.columns, last)));
    return (copies_ ? end : x.run_end(w, end)) - w;
  }

  // Behind a block of channels lies what a tile as wide as a group reads next, be it the next block, the next tile or the next row: it
  // is asked for, little by little, while this block is worked on.
  void look_ahead(const Plane<L>& x, int h, int w, int block, Tile& t) const {
    const int last = std::min(int(conv.weights.in), (block + 1) * block_), channels = std::max(1, t.last_channel - t.first_channel);
    t.ahead = x.at(h, last, w / x.group * x.group);
    t.ahead_end = t.ahead + block_ * x.channel;
    t.ahead_step = (t.ahead_end - t.ahead + channels * kLine - 1) / (channels * kLine) * kLine;
  }

  void pool(const Plane<L>& x, const Plane<L>& y, const Part& part, const Recut& recut) const {
    using V = Simd<L>;
    const auto S = conv.stride;
    for (int h = 0; h < y.rows / recut.ratio; ++h)
      for (int c = part.first_channel; c < part.last_channel; ++c)
        for (int w = part.first_column; w < part.last_column; ++w) {
          const float* from = x.at(h * S - conv.padding_rows, c, w * S - conv.padding_columns);
          auto most = V::load(from);
          for (int r = 0; r < conv.weights.height; ++r)
            for (int i = 0; i < conv.weights.width; ++i) most = V::larger(most, V::load(from + r * x.row + i * L));
          float* to = y.at(h, c, w) + recut.first_lane<L>();
          alignas(64) float made[L];
          V::store(recut.ratio > 1 ? made : to, most);
          if (recut.ratio > 1) store_recut<L>(recut, made, 0, to, 0, 1, 1);
        }
  }

  // What a tile at (h, w) of the input reads of the channels of one block: [channel][row][column mod stride][column / stride][lane].
  // Rows and columns beyond the border are those of a tile that reaches beyond the image, and are left as they are; where a plane has
  // no border columns, they are zero.
  void copy_window(const Plane<L>& x, int channel, int h, int w, float* to) const {
    const int top = h - int(conv.padding_rows), left = w - int(conv.padding_columns);
    const int channels = std::min(block_, int(conv.weights.in) - channel), right = x.width + x.sides();
    const int rows = std::min(window_rows_, x.rows + x.border - top), columns = std::min(window_columns_, right - left);
    for (int r = 0; r < rows; ++r, to += phases_ * half_ * L) {
      for (int i = 0, end; i < columns; i = end) {
        if (left + i < -x.sides()) end = -x.sides() - left, clear(i, end, channels, to);
        else end = x.run_end(left + i, left + columns) - left, copy(x.at(top + r, channel, left + i), x.channel, i, end, channels, to);
      }
      if (x.group) clear(columns, window_columns_, channels, to);
    }
  }

  void copy(const float* from, int64_t next, int first, int last, int channels, float* to) const {
    using V = Simd<L>;
    const int64_t size = int64_t(window_rows_) * phases_ * half_ * L;
    for (int c = 0; c < channels; ++c, from += next, to += size)
      if (conv.stride == 1)
        for (int i = first; i < last; ++i) V::store(to + i * L, V::load(from + (i - first) * L));
      else
        for (int phase = 0; phase < phases_; ++phase)
          for (int i = first + (first + phase) % 2; i < last; i += 2)
            V::store(to + (phase * half_ + i / 2) * L, V::load(from + (i - first) * L));
  }

  void clear(int first, int last, int channels, float* to) const {
    const typename Simd<L>::Vec zero{};
    const int S = int(conv.stride);
    const int64_t size = int64_t(window_rows_) * phases_ * half_ * L;
    for (int c = 0; c < channels; ++c, to += size)
      for (int i = first; i < last; ++i)
        if (i % S < phases_) Simd<L>::store(to + (i % S * half_ + i / S) * L, zero);
  }

  TileSize size_{};
  bool copies_ = false;
  int block_ = 0, window_rows_ = 0, window_columns_ = 0, phases_ = 0, half_ = 0;
  Kernel kernel_ = nullptr;
  Lists lists_;
  std::vector<int> per_channel_;  // weights of the channels before
};

}  // namespace sparseopt
