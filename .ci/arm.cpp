// A convolution and a linear layer through the library's C functions, on whole numbers, against plain loops: exact on any machine.
#include "library.cpp"

#include <cstdio>

namespace {

int number(int64_t i) { return int(i * 7 % 11) - 5; }

template <class T>
T* aligned(size_t count) {
  const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
  return static_cast<T*>(std::memset(std::aligned_alloc(64, bytes), 0, bytes));
}

float* numbers(size_t count) {
  float* found = aligned<float>(count);
  for (size_t i = 0; i < count; ++i) found[i] = float(number(int64_t(i)));
  return found;
}

int differences(const char* what, const float* found, const float* wanted, size_t count) {
  int wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += found[i] != wanted[i];
  std::printf("%s: %d of %zu values differ\n", what, wrong, count);
  return wrong;
}

int check_convolution() {
  const int N = 6, C = 3, O = 5, H = 7, W = 6, blocks = (N + kLanes - 1) / kLanes;
  float *image = numbers(N * C * H * W), *weight = numbers(O * C * 9), *wanted = aligned<float>(N * O * H * W);
  for (int n = 0; n < N; ++n)
    for (int o = 0; o < O; ++o)
      for (int h = 0; h < H; ++h)
        for (int w = 0; w < W; ++w)
          for (int c = 0; c < C; ++c)
            for (int r = 0; r < 3; ++r)
              for (int s = 0; s < 3; ++s) {
                const int y = h + r - 1, x = w + s - 1;
                if (y < 0 || y >= H || x < 0 || x >= W) continue;
                wanted[((n * O + o) * H + h) * W + w] +=
                    weight[((o * C + c) * 3 + r) * 3 + s] * image[((n * C + c) * H + y) * W + x];
              }
  int *start = aligned<int>(O + 1), *offset = aligned<int>(O * C * 9);
  const int channel = (W + 2) * kLanes, row = C * channel;
  for (int o = 0; o <= O; ++o) start[o] = o * C * 9;
  for (int k = 0; k < O * C * 9; ++k) offset[k] = k / 9 % C * channel + (k / 3 % 3 - 1) * row + (k % 3 - 1) * kLanes;
  const Image x{aligned<float>(size_t(blocks) * (H + 2) * row), blocks, H, C, W, 1};
  const Image z{aligned<float>(size_t(blocks) * H * O * W * kLanes), blocks, H, O, W, 0};
  const Pattern pattern{start, offset, weight, O * C * 9};
  float *shift = aligned<float>(O), *found = aligned<float>(N * O * H * W);
  sparseopt_pack(1, image, N, 1, &x);
  int wrong = 0;
  const int tiles = sparseopt_training_tiles(0);
  for (int tile = 0; tile <= tiles; ++tile) {  // and the one for layers whose weights are all active
    sparseopt_conv_forward(1, &x, 1, nullptr, &pattern, 1, 2, N, &z, shift, nullptr, tile % tiles, tile == tiles);
    sparseopt_unpack(1, &z, N, found);
    wrong += differences("convolution", found, wanted, size_t(N) * O * H * W);
  }
  return wrong;
}

int check_linear() {
  const int N = 21, I = 13, O = 10, vectors = (N + kLanes - 1) / kLanes, padded = vectors * kLanes;
  float *x = numbers(N * I), *weight = numbers(O * I), *wanted = aligned<float>(N * O), *found = aligned<float>(N * O);
  int *start = aligned<int>(O + 1), *offset = aligned<int>(O * I);
  for (int o = 0; o <= O; ++o) start[o] = o * I;
  for (int k = 0; k < O * I; ++k) offset[k] = k % I;
  for (int n = 0; n < N; ++n)
    for (int o = 0; o < O; ++o) {
      for (int i = 0; i < I; ++i) wanted[n * O + o] += weight[o * I + i] * x[n * I + i];
      wanted[n * O + o] = std::max(0.f, wanted[n * O + o]);
    }
  float* tiles[2] = {aligned<float>(size_t(padded) * I), aligned<float>(size_t(padded) * O)};
  Linear layer{};
  layer.weights = {start, offset, weight, O * I}, layer.relu = 1, layer.inputs = I, layer.outputs = O;
  sparseopt_tile_samples(1, x, N, 1, I, padded, tiles[0]);
  sparseopt_chain_forward(1, 1, &layer, padded, tiles);
  sparseopt_untile_samples(1, tiles[1], N, O, padded, found);
  return differences("linear layer", found, wanted, size_t(N) * O);
}

}  // namespace

int main() { return check_convolution() + check_linear() > 0; }
