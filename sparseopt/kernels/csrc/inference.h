// A whole region without gradients: batch norm is folded into the weights, and every layer writes its finished activation.
// As many samples as fill one vector (see bands.h) run through all layers before the next ones start, so that activations stay
// in the cache.
#pragma once
#include <vector>

#include "bands.h"
#include "conv_tile.h"
#include "team.h"

namespace sparseopt {

// An activation's place in the arena, with the rows of one band.
struct Slot {
  int64_t offset;
  int channels, height, width, border, rows;

  View view(float* arena) const { return make_view(arena + offset, 1, rows, channels, width, border); }
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
  int bands;  // a sample
  std::vector<Slot> slots;
  std::vector<InferenceLayer> layers;

  Bands bands_of(int slot) const { return {bands, slots[slot].height}; }

  // Threads that are worth their waiting for one another, which costs about as much as kWorth multiply-adds of vectors.
  int largest_team() const {
    constexpr int64_t kWorth = 20'000;
    int64_t work = 0;
    for (const InferenceLayer& layer : layers) {
      const Slot& y = slots[layer.output];
      work += int64_t(layer.weights.start[y.channels] - layer.weights.start[0]) * y.rows * y.width;
    }
    return int(std::max<int64_t>(1, work / (kWorth * std::max<int64_t>(1, layers.size()))));
  }
};

struct LayerViews {
  View x, y, shortcut;

  LayerViews(const Program& program, const InferenceLayer& layer, float* arena)
      : x(program.slots[layer.input].view(arena)), y(program.slots[layer.output].view(arena)) {
    if (layer.shortcut >= 0) shortcut = program.slots[layer.shortcut].view(arena);
  }

  // What the shortcut adds to output channel o at row h, column w; null where it adds nothing.
  SPARSEOPT_INLINE const float* shortcut_at(const InferenceLayer& layer, int o, int h, int w) const {
    const int source = o - layer.shortcut_offset;
    if (!shortcut.origin || source < 0 || source >= shortcut.channels) return nullptr;
    return shortcut.at(0, int64_t(h) * layer.shortcut_stride, source, int64_t(w) * layer.shortcut_stride);
  }
};

template <int TH, int TW, int S>
SPARSEOPT_INLINE void inference_tile(const InferenceLayer& layer, const LayerViews& v, const Part& part, int h, int w) {
  const auto read = [](const float* p, int j) SPARSEOPT_LAMBDA { return load(p + j * S * kLanes); };
  const auto start = [&](int o) SPARSEOPT_LAMBDA { return layer.bias[o]; };
  const int64_t shortcut_row = layer.shortcut_stride * v.shortcut.row, shortcut_column = layer.shortcut_stride * kLanes;
  const auto finish = [&](int o, Vec(&acc)[TH][TW]) SPARSEOPT_LAMBDA {
    if (const float* add = v.shortcut_at(layer, o, h, w))
#pragma GCC unroll 8
      for (int i = 0; i < TH; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < TW; ++j) acc[i][j] += load(add + i * shortcut_row + j * shortcut_column);
    if (layer.relu)
#pragma GCC unroll 8
      for (int i = 0; i < TH; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < TW; ++j) acc[i][j] = relu(acc[i][j]);
    float* out = v.y.at(0, h, o, w);
#pragma GCC unroll 8
    for (int i = 0; i < TH; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < TW; ++j) store(out + i * v.y.row + j * kLanes, acc[i][j]);
  };
  convolve_tile<TH, TW>(layer.weights, part.first_channel, part.last_channel, v.x.at(0, int64_t(h) * S, 0, int64_t(w) * S),
                        S * v.x.row, read, start, finish);
}

// Columns from w on of TH output rows: full tiles, then narrower ones.
template <int TH, int TW, int S>
void inference_columns(const InferenceLayer& layer, const LayerViews& v, const Part& part, int h, int w) {
  for (; w + TW <= part.last_column; w += TW) inference_tile<TH, TW, S>(layer, v, part, h, w);
  if constexpr (TW > 1) {
    if (w < part.last_column) inference_columns<TH, TW / 2, S>(layer, v, part, h, w);
  }
}

template <int S>
void inference_layer(const InferenceLayer& layer, const LayerViews& v, const Part& part) {
  constexpr int kRows = kRegisters >= 32 ? 4 : 2;
  int h = 0;
  for (; h + kRows <= v.y.height; h += kRows) inference_columns<kRows, kColumns, S>(layer, v, part, h, part.first_column);
  for (; h < v.y.height; ++h) inference_columns<1, 2 * kColumns, S>(layer, v, part, h, part.first_column);
}

inline void run_layers(const Program& program, float* arena, const Member& member) {
  for (const InferenceLayer& layer : program.layers) {
    const LayerViews v(program, layer, arena);
    const Part part = part_of(v.y, layer.weights.start, member);
    layer.stride == 1 ? inference_layer<1>(layer, v, part) : inference_layer<2>(layer, v, part);
    clear_beyond(v.y, program.bands_of(layer.output), part);
    fill_halo(v.y, program.bands_of(layer.output), part);
    member.wait();
  }
}

}  // namespace sparseopt
