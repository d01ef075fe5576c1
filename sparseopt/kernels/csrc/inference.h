// A whole region without gradients: batch norm is folded into the weights, and every layer writes its finished activation.
//
// Two layouts, one program. With enough samples, `kLanes` of them run through all layers before the next ones start, so that
// activations stay in the cache. A single sample runs with neighbouring columns as lanes instead:
//
//   [row][channel][column], border of zeros            one Vec = kLanes columns, loaded unaligned
#pragma once
#include <vector>

#include "conv_tile.h"
#include "lanes.h"

namespace sparseopt {

// An activation's place in the arena: one block, or one sample.
struct Slot {
  int64_t offset;
  int channels, height, width, border;

  View view(float* arena, int lanes) const { return make_view(arena + offset, 1, height, channels, width, border, lanes); }
};

// relu(convolution + bias [+ shortcut])
struct InferenceLayer {
  Pattern weights;
  const float* bias;
  int input, output, shortcut;  // slots; shortcut -1: none
  int stride, shortcut_stride, shortcut_offset;
  bool relu;
};

struct Program {
  std::vector<Slot> slots;
  std::vector<InferenceLayer> layers;
};

struct LayerViews {
  View x, y, shortcut;

  LayerViews(const Program& program, const InferenceLayer& layer, float* arena, int lanes)
      : x(program.slots[layer.input].view(arena, lanes)), y(program.slots[layer.output].view(arena, lanes)) {
    if (layer.shortcut >= 0) shortcut = program.slots[layer.shortcut].view(arena, lanes);
  }

  // The shortcut's row for output channel o and row h; null where it adds nothing.
  const float* shortcut_row(const InferenceLayer& layer, int o, int h) const {
    const int source = o - layer.shortcut_offset;
    if (!shortcut.origin || source < 0 || source >= shortcut.channels) return nullptr;
    return shortcut.at(0, int64_t(h) * layer.shortcut_stride, source, 0);
  }
};

// ---- kLanes samples

template <int TH, int TW, int S>
SPARSEOPT_INLINE void block_tile(const InferenceLayer& layer, const LayerViews& v, int h, int w) {
  const auto read = [](const float* p, int j) SPARSEOPT_LAMBDA { return load(p + j * S * kLanes); };
  const auto start = [&](int o) SPARSEOPT_LAMBDA { return layer.bias[o]; };
  const auto finish = [&](int o, Vec(&acc)[TH][TW]) SPARSEOPT_LAMBDA {
#pragma GCC unroll 8
    for (int i = 0; i < TH; ++i) {
      const float* add = v.shortcut_row(layer, o, h + i);
      float* out = v.y.at(0, h + i, o, w);
#pragma GCC unroll 8
      for (int j = 0; j < TW; ++j) {
        Vec value = acc[i][j];
        if (add) value += load(add + (w + j) * layer.shortcut_stride * kLanes);
        store(out + j * kLanes, layer.relu ? relu(value) : value);
      }
    }
  };
  convolve_tile<TH, TW>(layer.weights, v.y.channels, v.x.at(0, int64_t(h) * S, 0, int64_t(w) * S), S * v.x.row, read, start,
                        finish);
}

template <int TH, int TW, int S>
void block_columns(const InferenceLayer& layer, const LayerViews& v, int h, int w) {
  for (; w + TW <= v.y.width; w += TW) block_tile<TH, TW, S>(layer, v, h, w);
  if constexpr (TW > 1) {
    if (w < v.y.width) block_columns<TH, TW / 2, S>(layer, v, h, w);
  }
}

template <int S>
void block_layer(const InferenceLayer& layer, const LayerViews& v) {
  constexpr int kRows = kRegisters >= 32 ? 4 : 2;
  int h = 0;
  for (; h + kRows <= v.y.height; h += kRows) block_columns<kRows, 4, S>(layer, v, h, 0);
  for (; h < v.y.height; ++h) block_columns<1, 4, S>(layer, v, h, 0);
}

// ---- one sample

template <int TH, int TW, int S>
SPARSEOPT_INLINE void sample_tile(const InferenceLayer& layer, const LayerViews& v, int h, int w) {
  const auto read = [](const float* p, int j) SPARSEOPT_LAMBDA {
    return S == 1 ? load_unaligned(p + j * kLanes) : load_every_second(p + 2 * j * kLanes);
  };
  const auto start = [&](int o) SPARSEOPT_LAMBDA { return layer.bias[o]; };
  const auto finish = [&](int o, Vec(&acc)[TH][TW]) SPARSEOPT_LAMBDA {
#pragma GCC unroll 8
    for (int i = 0; i < TH; ++i) {
      const float* add = v.shortcut_row(layer, o, h + i);
      float* out = v.y.at(0, h + i, o, 0);
#pragma GCC unroll 8
      for (int j = 0; j < TW; ++j) {
        const int column = w + j * kLanes;
        Vec value = acc[i][j];
        if (add) {
          value += layer.shortcut_stride == 1 ? load_unaligned(add + column) : load_every_second(add + 2 * column);
        }
        if (layer.relu) value = relu(value);
        // The last vector of a row may reach beyond it: the border behind it stays zero.
        const int columns = std::min(kLanes, v.y.width - column);
        if (columns == kLanes) __builtin_memcpy(out + column, &value, sizeof value);
        else if (columns > 0) std::memcpy(out + column, &value, columns * sizeof(float));
      }
    }
  };
  convolve_tile<TH, TW>(layer.weights, v.y.channels, v.x.at(0, int64_t(h) * S, 0, 0) + w * S, S * v.x.row, read, start, finish);
}

template <int TH, int TW, int S>
void sample_rows(const InferenceLayer& layer, const LayerViews& v) {
  int h = 0;
  for (; h + TH <= v.y.height; h += TH)
    for (int w = 0; w < v.y.width; w += TW * kLanes) sample_tile<TH, TW, S>(layer, v, h, w);
  for (; h < v.y.height; ++h)
    for (int w = 0; w < v.y.width; w += TW * kLanes) sample_tile<1, TW, S>(layer, v, h, w);
}

// Eight accumulators, as wide as the image.
template <int S>
void sample_layer(const InferenceLayer& layer, const LayerViews& v) {
  if (v.y.width > 2 * kLanes) sample_rows<2, 4, S>(layer, v);
  else if (v.y.width > kLanes) sample_rows<4, 2, S>(layer, v);
  else sample_rows<8, 1, S>(layer, v);
}

// ---- the program

template <bool OneSample>
void run_layers(const Program& program, float* arena) {
  for (const InferenceLayer& layer : program.layers) {
    const LayerViews v(program, layer, arena, OneSample ? 1 : kLanes);
    if constexpr (OneSample) layer.stride == 1 ? sample_layer<1>(layer, v) : sample_layer<2>(layer, v);
    else layer.stride == 1 ? block_layer<1>(layer, v) : block_layer<2>(layer, v);
  }
}

inline void read_sample(const float* image, const View& x) {
  for (int c = 0; c < x.channels; ++c)
    for (int h = 0; h < x.height; ++h, image += x.width) std::memcpy(x.at(0, h, c, 0), image, x.width * sizeof(float));
}

inline void write_sample(const View& x, float* image) {
  for (int c = 0; c < x.channels; ++c)
    for (int h = 0; h < x.height; ++h, image += x.width) std::memcpy(image, x.at(0, h, c, 0), x.width * sizeof(float));
}

inline void pool_sample(const View& x, float* pooled) {
  for (int c = 0; c < x.channels; ++c) {
    double sum = 0;
    for (int h = 0; h < x.height; ++h)
      for (int w = 0; w < x.width; ++w) sum += x.at(0, h, c, 0)[w];
    pooled[c] = float(sum / (x.height * x.width));
  }
}

}  // namespace sparseopt
