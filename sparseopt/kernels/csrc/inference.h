// A whole region without gradients: batch norm is folded into the weights, and every layer writes its finished activation.
// As many samples as fill one vector (see bands.h) run through all layers before the next ones start.
//
// A layer runs in one of many ways (`Way`), which one is fastest depends on its shape and on the machine and is measured: the size of
// its tiles, and whether it reads its input where it is, or copies what a tile reads of some input channels together first. The
// latter pays where the input of a tile does not fit the first-level cache: then every weight of the block finds it there.
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

// tile: its number. block: input channels that are copied together; 0: they are read where they are.
struct Way {
  int tile = 0, block = 0;
};

// An activation's place in the arena, into how many bands and strips a sample is cut in it, and the rows and columns of one patch.
struct Slot {
  int64_t offset, channels, height, width, border, rows, columns, bands, strips;

  template <int L>
  Plane<L> plane(float* arena) const {
    Plane<L> x;
    x.channels = int(channels), x.rows = int(rows), x.width = int(columns), x.border = int(border);
    x.channel = (columns + 2 * border) * L;
    x.row = x.channel * channels;
    x.origin = arena + offset + border * (x.row + L);
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
    half_ = (window_columns_ + S - 1) / S;
    if (way.block == 0) {
      block_ = 0, kernel_ = conv_kernel<L>(way.tile, S);
      lists_ = make_lists(w, int(w.in), [&](int64_t in, int64_t row, int64_t column) {
        return in * x.channel + (row - conv.padding_rows) * x.row + (column - conv.padding_columns) * L;
      });
    } else {
      block_ = way.block, kernel_ = conv_kernel<L>(way.tile, 1);
      lists_ = make_lists(w, block_, [&](int64_t in, int64_t row, int64_t column) {
        return ((in % block_ * window_rows_ + row) * S * half_ + column % S * half_ + column / S) * L;
      });
    }
  }

  // Columns from `part.first_column` on have to begin a tile.
  Part part(const Plane<L>& y, bool share_columns, const Member& member) const {
    return part_of(y.width, y.channels, size_.columns, share_columns, member, [&](int c) { return conv.pool ? c : per_channel_[c]; });
  }

  void run(const Plane<L>& x, const Plane<L>& y, const Plane<L>& shortcut, const Part& part) const {
    if (conv.pool) return pool(x, y, part);
    const int S = int(conv.stride), blocks = block_ ? int((conv.weights.in + block_ - 1) / block_) : 1;
    const int64_t T = conv.shortcut_stride;
    Tile t;
    t.offset = lists_.offset.data(), t.value = lists_.value.data(), t.bias = conv.bias;
    t.first_channel = part.first_channel, t.last_channel = part.last_channel, t.relu = conv.relu != 0;
    t.y_row = y.row, t.y_channel = y.channel;
    t.shortcut_row = T * shortcut.row, t.shortcut_channel = shortcut.channel, t.shortcut_column = T * L;
    t.shortcut_offset = int(conv.shortcut_offset), t.shortcut_channels = shortcut.channels;
    t.partial = blocks > 1 ? scratch<Use::output_rows>().get<float>(size_t(y.channels) * size_.rows * size_.columns * L) : nullptr;
    float* copy = block_ ? scratch<Use::input_rows>().get<float>(copied()) : nullptr;
    t.x_row = block_ ? int64_t(S) * S * half_ * L : S * x.row;
    for (int h = 0; h < y.rows; h += size_.rows)
      for (int w = part.first_column; w < part.last_column; w += size_.columns) {
        t.rows = std::min(size_.rows, y.rows - h), t.columns = std::min(size_.columns, part.last_column - w);
        t.y = y.at(h, 0, w);
        t.shortcut = shortcut.origin ? shortcut.at(h * T, 0, w * T) : nullptr;
        for (int b = 0; b < blocks; ++b) {
          t.start = lists_.start.data() + int64_t(b) * conv.weights.out;
          t.first_block = b == 0, t.last_block = b == blocks - 1;
          t.x = x.at(int64_t(h) * S, 0, int64_t(w) * S);
          if (block_) copy_window(x, b * block_, h * S, w * S, copy), t.x = copy;
          kernel_(t);
        }
      }
  }

  const Conv conv;

 private:
  size_t copied() const { return size_t(block_) * window_rows_ * conv.stride * half_ * L; }

  void pool(const Plane<L>& x, const Plane<L>& y, const Part& part) const {
    using V = Simd<L>;
    const auto S = conv.stride;
    for (int h = 0; h < y.rows; ++h)
      for (int c = part.first_channel; c < part.last_channel; ++c)
        for (int w = part.first_column; w < part.last_column; ++w) {
          const float* from = x.at(h * S - conv.padding_rows, c, w * S - conv.padding_columns);
          auto most = V::load(from);
          for (int r = 0; r < conv.weights.height; ++r)
            for (int i = 0; i < conv.weights.width; ++i) most = V::larger(most, V::load(from + r * x.row + i * L));
          V::store(y.at(h, c, w), most);
        }
  }

  // What a tile at (h, w) of the input reads of the channels of one block: [channel][row][column mod stride][column / stride][lane].
  // Rows and columns beyond the border are those of a tile that reaches beyond the image, and are left as they are.
  void copy_window(const Plane<L>& x, int channel, int h, int w, float* to) const {
    using V = Simd<L>;
    const int S = int(conv.stride), top = h - int(conv.padding_rows), left = w - int(conv.padding_columns);
    const int last = std::min(int(conv.weights.in), channel + block_);
    const int rows = std::min(window_rows_, x.rows + x.border - top), columns = std::min(window_columns_, x.width + x.border - left);
    for (int c = channel; c < last; ++c, to += window_rows_ * S * half_ * L)
      for (int r = 0; r < rows; ++r) {
        const float* from = x.at(top + r, c, left);
        float* row = to + r * S * half_ * L;
        if (S == 1)
          for (int i = 0; i < columns; ++i) V::store(row + i * L, V::load(from + i * L));
        else
          for (int i = 0; i < columns; ++i) V::store(row + (i % 2 * half_ + i / 2) * L, V::load(from + i * L));
      }
  }

  TileSize size_{};
  int block_ = 0, window_rows_ = 0, window_columns_ = 0, half_ = 0;
  Kernel kernel_ = nullptr;
  Lists lists_;
  std::vector<int> per_channel_;  // weights of the channels before
};

}  // namespace sparseopt
