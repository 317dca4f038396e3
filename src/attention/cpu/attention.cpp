#include "attention/cpu/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention/cpu/softmax_tile.hpp"
#include "core/half.hpp"
#include "core/online_softmax.hpp"
#include "device/cpu/gemm.hpp"
#include "device/cpu/parallel.hpp"
#include "formats/codes.hpp"

namespace vcattn::attention_cpu {

namespace {

using formats::CodeFormat;
using formats::SequenceExtent;
using Slab = formats::SlabView<std::byte const>;

constexpr std::size_t kAlignment = 64;

template <typename T>
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::int64_t count) : storage_(static_cast<std::size_t>(count) * sizeof(T) + kAlignment) {
    void* pointer = storage_.data();
    std::size_t space = storage_.size();
    data_ = static_cast<T*>(std::align(kAlignment, storage_.size() - kAlignment, pointer, space));
  }
  T* data() { return data_; }

 private:
  std::vector<std::byte> storage_;
  T* data_;
};

/// Kernels for the accumulator type.
template <typename T>
struct Kernels {
  device::cpu::GemmKernels const& gemm;
  SoftmaxKernels const& softmax;

  void scores(std::int64_t m, std::int64_t n, std::int64_t k, T const* q, T const* keys, T* s) const {
    if constexpr (std::is_same_v<T, float>) {
      gemm.nt_f32(m, n, k, q, k, keys, k, s, kTile);
    } else {
      gemm.nt_f64(m, n, k, q, k, keys, k, s, kTile);
    }
  }
  /// acc[m][n] += a[m][k] * b[k][n].
  void accumulate(std::int64_t m, std::int64_t n, std::int64_t k, T const* a, std::int64_t lda, T const* b, T* acc) const {
    if constexpr (std::is_same_v<T, float>) {
      gemm.nn_add_f32(m, n, k, a, lda, b, n, acc, n);
    } else {
      gemm.nn_add_f64(m, n, k, a, lda, b, n, acc, n);
    }
  }
  void softmax_tile(SoftmaxTile<T> const& tile) const {
    if constexpr (std::is_same_v<T, float>) {
      softmax.tile_f32(tile);
    } else {
      softmax.tile_f64(tile);
    }
  }
  void rescale(int rows, int width, T const* alpha, T* acc) const {
    if constexpr (std::is_same_v<T, float>) {
      softmax.rescale_f32(rows, width, alpha, acc);
    } else {
      softmax.rescale_f64(rows, width, alpha, acc);
    }
  }
};

/// Decoded K, V, means of one KV head, in the caller's workspace.
template <typename T>
struct KvHead {
  T* k = nullptr;       // [tiles][128][width] in units of the K descale
  T* v = nullptr;       // [tiles][128 keys][width] in units of v_descale
  T* k_high = nullptr;  // [tiles][128][width]; nullptr without Q means
  T* means = nullptr;   // [tiles][blocks][width] in units of v_descale; nullptr without block means
};

/// Elements of each part for a head of `tiles` tiles, in the order of KvHead.
struct KvSizes {
  std::int64_t k, v, k_high, means;
  KvSizes(formats::PreparedLayout const& l, std::int64_t tiles)
      : k(tiles * kTile * l.head_dim_padded),
        v(k),
        k_high(l.k_high.bytes != 0 ? k : 0),
        means(tiles * l.v_blocks_per_tile * l.head_dim_padded) {}
  std::int64_t total() const { return k + v + k_high + means; }
};

template <typename T>
KvHead<T> split_workspace(std::byte* workspace, KvSizes const& sizes) {
  KvHead<T> head;
  T* const base = reinterpret_cast<T*>(workspace);
  head.k = base;
  head.v = head.k + sizes.k;
  head.k_high = sizes.k_high != 0 ? head.v + sizes.v : nullptr;
  head.means = sizes.means != 0 ? head.v + sizes.v + sizes.k_high : nullptr;
  return head;
}

/// Decodes one row of codes into T.
template <typename T>
void decode_values(CodeFormat format, std::byte const* codes, std::uint8_t const* factors, int n, T* out) {
  if constexpr (std::is_same_v<T, float>) {
    formats::decode_row(format, codes, factors, n, out);
  } else {
    float values[256];
    formats::decode_row(format, codes, factors, n, values);
    std::copy_n(values, n, out);
  }
}

template <typename T>
void decode_rows(CodeFormat format, std::byte const* codes, std::uint8_t const* factors, std::int64_t first_row, int rows, int width,
                 T* out) {
  std::int64_t const row_bytes = static_cast<std::int64_t>(width) * formats::code_bits(format) / 8;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::uint8_t const* const row_factors = factors == nullptr ? nullptr : factors + (first_row + r) * (width / core::kNvfp4Group);
    decode_values(format, codes + (first_row + r) * row_bytes, row_factors, width, out + r * width);
  }
}

template <typename T>
void decode_kv_tile(Slab const& slab, Options const& options, std::int64_t tile, std::int64_t j, KvHead<T> const& head) {
  auto const& l = slab.layout();
  int const width = static_cast<int>(l.head_dim_padded);
  decode_rows(formats::code_format(options.qk), slab.section<std::byte>(l.k_codes), slab.section<std::uint8_t>(l.k_scale_factors),
              tile * kTile, kTile, width, head.k + j * kTile * width);
  // V is stored [channel][slot]: decode a channel, then scatter its slots to keys.
  CodeFormat const v_format = formats::code_format(options.v);
  std::int64_t const channel_bytes = kTile * l.v_bits / 8;
  T channel[kTile];
  for (std::int64_t d = 0; d < width; ++d) {
    std::int64_t const row = tile * width + d;
    auto const* const factors = slab.section<std::uint8_t>(l.v_scale_factors);
    decode_values(v_format, slab.section<std::byte>(l.v_codes) + row * channel_bytes,
                  factors == nullptr ? nullptr : factors + row * (kTile / core::kNvfp4Group), kTile, channel);
    for (int slot = 0; slot < kTile; ++slot) head.v[(j * kTile + formats::key_of_slot(slot)) * width + d] = channel[slot];
  }
  if (head.k_high != nullptr) {
    auto const* const source = slab.section<std::uint16_t>(l.k_high) + tile * kTile * width;
    for (std::int64_t i = 0; i < kTile * width; ++i) head.k_high[j * kTile * width + i] = static_cast<T>(core::bf16_decode(source[i]));
  }
  if (head.means != nullptr) {
    std::int64_t const size = l.v_blocks_per_tile * static_cast<std::int64_t>(width);
    auto const* const source = slab.section<std::uint16_t>(l.v_mean) + tile * size;
    for (std::int64_t i = 0; i < size; ++i) head.means[j * size + i] = static_cast<T>(core::fp16_decode(source[i]));
  }
}

void store(MutableTensorView const& o, std::int64_t element, float value) {
  switch (o.dtype) {
    case DType::f32:
      static_cast<float*>(o.data)[element] = value;
      return;
    case DType::f16:
      static_cast<std::uint16_t*>(o.data)[element] = core::fp16_encode(value);
      return;
    case DType::bf16:
      static_cast<std::uint16_t*>(o.data)[element] = core::bf16_encode(value);
      return;
  }
}

/// The loop over key tiles of one query tile.
template <typename T>
class QueryTile {
 public:
  QueryTile(Slab const& slab, Options const& options, Kernels<T> const& kernels, KvHead<T> const& head, std::int64_t sequence,
            std::int64_t h)
      : slab_(slab),
        l_(slab.layout()),
        s_(slab.sequences()[static_cast<std::size_t>(sequence)]),
        options_(options),
        kernels_(kernels),
        head_(head),
        sequence_(sequence),
        h_(h),
        width_(static_cast<int>(l_.head_dim_padded)) {}

  void run(std::int64_t j_q, bool varlen, MutableTensorView const& o, std::span<float> lse) {
    begin_ = j_q * kTile;
    rows_ = static_cast<int>(std::min<std::int64_t>(kTile, s_.seqlen_q - begin_));
    AlignedBuffer<T> query(kTile * width_);
    AlignedBuffer<T> acc(kTile * width_);
    std::fill_n(acc.data(), kTile * width_, T{0});
    load_query(j_q, query.data());
    loop(j_q, query.data(), acc.data());
    write(acc.data(), varlen, o, lse);
  }

 private:
  void load_query(std::int64_t j_q, T* query) {
    std::int64_t const tile = slab_.tile_q(s_, h_, j_q);
    decode_rows(formats::code_format(options_.qk), slab_.section<std::byte>(l_.q_codes), slab_.section<std::uint8_t>(l_.q_scale_factors),
                tile * kTile, kTile, width_, query);
    auto const* const descale = slab_.section<float>(l_.q_descale);
    std::int64_t const index = sequence_ * l_.num_heads + h_;
    multiplier_ = slab_.section<float>(l_.score_multiplier)[index];
    unit_ = options_.qk == QkFormat::e4m3 && options_.qk_scaling == QkScaling::unit;
    f16_scores_ = slab_.section<formats::ScoreVariant>(l_.score_variant)[index] == formats::ScoreVariant::f16;
    int const block = kTile / l_.q_blocks_per_tile;
    for (int r = 0; r < kTile; ++r) {
      float const q_descale = l_.scales_per_block != 0 ? descale[tile * l_.q_blocks_per_tile + r / block] : descale[index];
      row_factor_[r] = static_cast<T>(unit_ ? multiplier_ : q_descale * multiplier_);
    }
    for (int r = 0; r < kTile; ++r) {
      state_.row_max[r] = -std::numeric_limits<T>::infinity();
      state_.row_const[r] = T{0};
      state_.row_sum[r] = T{0};
    }
  }

  /// Keys of tile j that row r sees.
  std::int32_t visible_keys(std::int64_t j, int r) const {
    std::int64_t last = s_.seqlen_kv;
    if (l_.causal != 0) last = std::min(last, begin_ + r + s_.seqlen_kv - s_.seqlen_q + 1);
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(last - j * kTile, 0, kTile));
  }

  void loop(std::int64_t j_q, T const* query, T* acc) {
    AlignedBuffer<T> scores(kTile * kTile);
    AlignedBuffer<T> block_sums(kTile * kMaxBlocks);
    alignas(kAlignment) T alpha[kTile];
    alignas(kAlignment) T offset[kTile];
    T key_factor[kMaxBlocks];
    std::int32_t visible[kTile];

    SoftmaxTile<T> tile;
    tile.rows = rows_;
    tile.scores = scores.data();
    tile.row_factor = row_factor_;
    tile.key_factor = key_factor;
    tile.key_blocks = unit_ ? 1 : l_.k_blocks_per_tile;
    tile.score_offset = head_.k_high != nullptr ? offset : nullptr;
    tile.f16_scores = f16_scores_;
    tile.visible = visible;
    tile.value_blocks = std::max(1, l_.v_blocks_per_tile);
    tile.prob = options_.prob;
    tile.exp_form = options_.exp_form;
    tile.top_code = options_.top_code;
    tile.state = &state_;
    tile.alpha = alpha;
    tile.block_sums = block_sums.data();

    for (std::int64_t j = 0; j < s_.tiles_kv; ++j) {
      for (int r = 0; r < rows_; ++r) visible[r] = visible_keys(j, r);
      if (visible[rows_ - 1] == 0) break;  // the last row sees most
      T const* const keys = head_.k + j * kTile * width_;
      kernels_.scores(rows_, kTile, width_, query, keys, tile.scores);
      load_key_factors(j, key_factor);
      if (tile.score_offset != nullptr) query_mean_scores(j_q, j, offset);  // [EQ-QMEAN]
      kernels_.softmax_tile(tile);
      kernels_.rescale(rows_, width_, alpha, acc);
      kernels_.accumulate(rows_, width_, kTile, tile.scores, kTile, head_.v + j * kTile * width_, acc);
      if (head_.means != nullptr) {  // [EQ-RESTORE]
        kernels_.accumulate(rows_, width_, l_.v_blocks_per_tile, tile.block_sums, kMaxBlocks,
                            head_.means + j * l_.v_blocks_per_tile * width_, acc);
      }
    }
  }

  void load_key_factors(std::int64_t j, T* key_factor) const {
    auto const* const descale = slab_.section<float>(l_.k_descale);
    std::int64_t const head_kv = h_ / (l_.num_heads / l_.num_heads_kv);
    std::int64_t const tile = slab_.tile_kv(s_, head_kv, j);
    for (int b = 0; b < l_.k_blocks_per_tile; ++b) {
      float const k_descale =
          l_.scales_per_block != 0 ? descale[tile * l_.k_blocks_per_tile + b] : descale[sequence_ * l_.num_heads_kv + head_kv];
      key_factor[b] = static_cast<T>(unit_ ? 1.0f : k_descale);
    }
  }

  void query_mean_scores(std::int64_t j_q, std::int64_t j, T* offset) const {
    float const* const mean = slab_.section<float>(l_.q_mean) + slab_.tile_q(s_, h_, j_q) * width_;
    T mean_row[256];
    for (int d = 0; d < width_; ++d) mean_row[d] = static_cast<T>(mean[d]) * static_cast<T>(multiplier_);
    kernels_.scores(1, kTile, width_, mean_row, head_.k_high + j * kTile * width_, offset);
  }

  void write(T const* acc, bool varlen, MutableTensorView const& o, std::span<float> lse) const {
    std::int64_t const head_kv = h_ / (l_.num_heads / l_.num_heads_kv);
    std::int64_t const kv_index = sequence_ * l_.num_heads_kv + head_kv;
    float const* const v_descale = slab_.section<float>(l_.v_descale) + kv_index * width_;
    auto const* const all_means = slab_.section<float>(l_.v_global_mean);
    float const* const global_mean = all_means == nullptr ? nullptr : all_means + kv_index * width_;
    std::int64_t const first_row = slab_.row_q(s_, h_) + begin_;
    float const* const correction = slab_.section<float>(l_.lse_correction) + first_row;
    std::int64_t const o_origin = (varlen ? s_.row_begin_q * o.stride[1] : sequence_ * o.stride[0]) + h_ * o.stride[2];
    float* const lse_out =
        lse.empty() ? nullptr
                    : lse.data() + (varlen ? h_ * l_.rows_q + s_.row_begin_q : (sequence_ * l_.num_heads + h_) * s_.seqlen_q) + begin_;
    for (int r = 0; r < rows_; ++r) {
      bool const finite = !core::is_nan(correction[r]);
      bool const empty = state_.row_sum[r] == T{0};
      T const inverse = empty ? T{0} : T{1} / state_.row_sum[r];
      for (std::int64_t d = 0; d < l_.head_dim; ++d) {
        T value = acc[r * width_ + d] * inverse * static_cast<T>(v_descale[d]);
        if (global_mean != nullptr && !empty) value += static_cast<T>(global_mean[d]);
        store(o, o_origin + (begin_ + r) * o.stride[1] + d * o.stride[3],
              finite ? static_cast<float>(value) : std::numeric_limits<float>::quiet_NaN());
      }
      if (lse_out == nullptr) continue;
      lse_out[r] = !finite ? correction[r]
                   : empty
                       ? -std::numeric_limits<float>::infinity()
                       : static_cast<float>(core::log_sum_exp(options_.prob, options_.exp_form, state_.row_sum[r], state_.row_const[r])) +
                             correction[r];
    }
  }

  Slab const& slab_;
  formats::PreparedLayout const& l_;
  SequenceExtent const& s_;
  Options const& options_;
  Kernels<T> const& kernels_;
  KvHead<T> const& head_;
  std::int64_t sequence_;
  std::int64_t h_;
  int width_;
  std::int64_t begin_ = 0;
  int rows_ = 0;
  float multiplier_ = 0.0f;
  bool unit_ = false;
  bool f16_scores_ = false;
  RowStates<T> state_;
  alignas(kAlignment) T row_factor_[kTile];
};

template <typename T>
void attention_of(Slab const& slab, Options const& options, bool varlen, MutableTensorView const& o, std::span<float> lse,
                  std::byte* workspace, device::cpu::Isa isa) {
  auto const& l = slab.layout();
  Kernels<T> const kernels{device::cpu::gemm_kernels(isa), softmax_kernels(isa)};
  std::int64_t const group = l.num_heads / l.num_heads_kv;
  for (std::int64_t b = 0; b < l.batch; ++b) {
    SequenceExtent const& s = slab.sequences()[static_cast<std::size_t>(b)];
    KvHead<T> const head = split_workspace<T>(workspace, KvSizes(l, s.tiles_kv));
    for (std::int64_t head_kv = 0; head_kv < l.num_heads_kv; ++head_kv) {
      device::cpu::parallel_for(options.num_threads, s.tiles_kv,
                                [&](std::int64_t j) { decode_kv_tile(slab, options, slab.tile_kv(s, head_kv, j), j, head); });
      device::cpu::parallel_for(options.num_threads, group * s.tiles_q, [&](std::int64_t item) {
        QueryTile<T>(slab, options, kernels, head, b, head_kv * group + item / s.tiles_q).run(item % s.tiles_q, varlen, o, lse);
      });
    }
  }
}

}  // namespace

std::size_t workspace_bytes(formats::PreparedLayout const& layout, std::span<SequenceExtent const> sequences, Options const& options) {
  std::int64_t tiles = 0;
  for (SequenceExtent const& s : sequences) tiles = std::max(tiles, s.tiles_kv);
  return static_cast<std::size_t>(KvSizes(layout, tiles).total()) * (options.exact_f64 ? sizeof(double) : sizeof(float));
}

void attention(Slab const& slab, Options const& options, bool varlen, MutableTensorView const& o, std::span<float> lse,
               std::byte* workspace, device::cpu::Isa isa) {
  if (options.exact_f64) {
    attention_of<double>(slab, options, varlen, o, lse, workspace, isa);
  } else {
    attention_of<float>(slab, options, varlen, o, lse, workspace, isa);
  }
}

}  // namespace vcattn::attention_cpu
