#include "tree.h"

// GCC 12 warns of its own intrinsics' deliberately undefined lanes (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "arena.h"
#include "fetch.h"

namespace memsvc {
namespace {

constexpr int kMostLevels = 12;
constexpr size_t kChunk = 256;  // draws or updates that travel together: their state stays in the first-level cache
constexpr size_t kGroup = 32;   // draws on one level at a time, while the nodes of the other groups are on their way from memory
constexpr size_t kAhead = 24;   // updates whose nodes are on their way from memory
constexpr size_t kBitmapNodes = 4096;
constexpr double kInf = std::numeric_limits<double>::infinity();

std::atomic<bool> simd_wanted{true};

// The mass before each child, in three doubling steps: the order of the vector code, so that both give the same bits. Empty children start at
// infinity, where no mass reaches them. Returns the sum, which is the last inclusive prefix (T1).
double starts_scalar(const double* x, double* starts) {
  double y[8], z[8], prefix[8];
  for (int i = 0; i < 8; ++i) y[i] = i >= 1 ? x[i] + x[i - 1] : x[i];
  for (int i = 0; i < 8; ++i) z[i] = i >= 2 ? y[i] + y[i - 2] : y[i];
  for (int i = 0; i < 8; ++i) prefix[i] = i >= 4 ? z[i] + z[i - 4] : z[i];
  for (int i = 0; i < 8; ++i) starts[i] = x[i] > 0 ? (i ? prefix[i - 1] : 0) : kInf;
  return prefix[7];
}

// The smallest positive value of so many, infinity where there is none.
double least(const double* x, size_t n) {
  double low = kInf;
  for (size_t i = 0; i < n; ++i) low = x[i] > 0 && x[i] < low ? x[i] : low;
  return low;
}

// One level of a descent: of each draw's node the last child that starts at or before its mass, which becomes the mass inside that child.
// The first live child starts at 0 exactly, so there always is one, and mass past the node's sum ends in its last live child. On levels that
// keep no starts these are nullptr and made from `sums`.
void descend_scalar(const double* starts, const double* sums, const double* below, size_t n, double* mass, uint32_t* at) {
  double made[8];
  for (size_t k = 0; k < n; ++k) {
    const double* node = starts ? starts + size_t{at[k]} * 8 : made;
    if (!starts) starts_scalar(sums + size_t{at[k]} * 8, made);
    uint32_t child = 7;
    while (child > 0 && !(node[child] <= mass[k])) --child;
    mass[k] -= node[child];
    at[k] = at[k] * 8 + child;
    if (below) __builtin_prefetch(below + size_t{at[k]} * 8);
  }
}

__attribute__((target("avx512f"))) inline __m512d prefix_avx512(__m512d x) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512d y = _mm512_add_pd(x, _mm512_castsi512_pd(_mm512_alignr_epi64(_mm512_castpd_si512(x), zero, 7)));
  const __m512d z = _mm512_add_pd(y, _mm512_castsi512_pd(_mm512_alignr_epi64(_mm512_castpd_si512(y), zero, 6)));
  return _mm512_add_pd(z, _mm512_castsi512_pd(_mm512_alignr_epi64(_mm512_castpd_si512(z), zero, 4)));
}

__attribute__((target("avx512f"))) inline __m512d starts_avx512(__m512d x, __m512d prefix) {
  const __m512d before = _mm512_castsi512_pd(_mm512_alignr_epi64(_mm512_castpd_si512(prefix), _mm512_setzero_si512(), 7));
  const __mmask8 live = _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_GT_OQ);
  return _mm512_mask_blend_pd(live, _mm512_set1_pd(kInf), before);
}

__attribute__((target("avx512f,lzcnt"))) void descend_avx512(const double* starts, const double* sums, const double* below, size_t n, double* mass,
                                                             uint32_t* at) {
  alignas(64) double made[8];
  for (size_t k = 0; k < n; ++k) {
    const double* node = made;
    if (starts) {
      node = starts + size_t{at[k]} * 8;
    } else {
      const __m512d x = _mm512_load_pd(sums + size_t{at[k]} * 8);
      _mm512_store_pd(made, starts_avx512(x, prefix_avx512(x)));
    }
    const unsigned reached = _mm512_cmp_pd_mask(_mm512_load_pd(node), _mm512_set1_pd(mass[k]), _CMP_LE_OQ);
    const unsigned child = 31 - __builtin_clz(reached | 1);
    mass[k] -= node[child];
    at[k] = at[k] * 8 + child;
    if (below) __builtin_prefetch(below + size_t{at[k]} * 8);
  }
}

// The sums of T1, and T3, for the named nodes of one level. starts: nullptr where the level keeps none.
void recompute_scalar(const double* sums, double* starts, const uint32_t* nodes, size_t n, double* up) {
  double unused[8];
  for (size_t k = 0; k < n; ++k) {
    const size_t first = size_t{nodes[k]} * 8;
    up[nodes[k]] = starts_scalar(sums + first, starts ? starts + first : unused);
  }
}

__attribute__((target("avx512f"))) void recompute_avx512(const double* sums, double* starts, const uint32_t* nodes, size_t n, double* up) {
  for (size_t k = 0; k < n; ++k) {
    const size_t first = size_t{nodes[k]} * 8;
    const __m512d x = _mm512_load_pd(sums + first);
    const __m512d prefix = prefix_avx512(x);
    up[nodes[k]] = _mm512_cvtsd_f64(_mm512_permutexvar_pd(_mm512_set1_epi64(7), prefix));
    if (starts) _mm512_store_pd(starts + first, starts_avx512(x, prefix));
  }
}

// The mins of T2, each over `span` entries, for the named places of one level. Keeps those that are another min now, the only ones that levels above
// have to hear of. Returns how many.
size_t lower_scalar(const double* lows, size_t span, uint32_t* places, size_t n, double* up) {
  size_t kept = 0;
  for (size_t k = 0; k < n; ++k) {
    const uint32_t place = places[k];
    const double low = least(lows + place * span, span);
    places[kept] = place;
    kept += low != up[place];
    up[place] = low;
  }
  return kept;
}

__attribute__((target("avx512f"))) size_t lower_avx512(const double* lows, size_t span, uint32_t* places, size_t n, double* up) {
  const __m512d inf = _mm512_set1_pd(kInf);
  size_t kept = 0;
  for (size_t k = 0; k < n; ++k) {
    const uint32_t place = places[k];
    __m512d least = inf;
    for (size_t i = 0; i < span; i += 8) {
      const __m512d x = _mm512_load_pd(lows + place * span + i);
      least = _mm512_mask_min_pd(least, _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_GT_OQ), least, x);
    }
    const double low = _mm512_reduce_min_pd(least);
    places[kept] = place;
    kept += low != up[place];
    up[place] = low;
  }
  return kept;
}

// The parents of sorted or unsorted nodes, most duplicates left out: all of them where a bitmap of the level is small, neighbours elsewhere
// (there the rest are rare, and recomputing a node twice is only work). No branches: which nodes come twice nobody can predict.
size_t parents(uint32_t* nodes, size_t n, size_t level_nodes) {
  uint64_t seen[kBitmapNodes / 64];
  const bool small = level_nodes <= kBitmapNodes;
  if (small) std::fill_n(seen, (level_nodes + 63) / 64, 0);
  size_t kept = 0;
  uint32_t last = ~uint32_t{0};
  for (size_t k = 0; k < n; ++k) {
    const uint32_t node = nodes[k] / 8;
    bool known = node == last;
    if (small) {
      uint64_t& word = seen[node / 64];
      known = word >> (node % 64) & 1;
      word |= uint64_t{1} << (node % 64);
    }
    nodes[kept] = last = node;
    kept += !known;
  }
  return kept;
}

}  // namespace

void use_simd(bool on) { simd_wanted = on; }

struct SumTree::Levels {
  size_t capacity = 0;
  bool simd = false;
  int top = 0;  // the level of the root's node
  size_t nodes[kMostLevels] = {};
  double* sums[kMostLevels + 1] = {};    // sums[0]: the leaves; sums[top + 1]: the root
  double* lows[kMostLevels + 1] = {};    // from level 2: lows[2] has one for every 64 leaves
  double* starts[kMostLevels + 1] = {};  // from level 2, below the root
  Arena arena;

  void place(size_t leaves, Arena* from) {
    capacity = leaves;
    size_t entries = (leaves + 63) / 64 * 64;
    for (int level = 0;; ++level) {
      nodes[level] = (entries + 7) / 8;
      sums[level] = from->take<double>(nodes[level] * 8);
      if (level > 1) {
        lows[level] = from->take<double>(nodes[level] * 8);
        starts[level] = from->take<double>(nodes[level] * 8);
      }
      entries = nodes[level];
      if (entries == 1) {
        top = level;
        break;
      }
    }
    sums[top + 1] = from->take<double>(8);
    lows[top + 1] = from->take<double>(8);
  }

  // The leaves `at` have changed, and of the 64 around each of `low` perhaps the min: so does all above them. Both lists are used up.
  void rise(uint32_t* at, size_t n, uint32_t* low, size_t lower) {
    for (int level = 0; level <= top; ++level) {
      n = parents(at, n, nodes[level]);
      (simd ? recompute_avx512 : recompute_scalar)(sums[level], starts[level], at, n, sums[level + 1]);
      if (level == 0 || lower == 0) continue;
      lower = parents(low, lower, nodes[level]);
      lower = (simd ? lower_avx512 : lower_scalar)(level > 1 ? lows[level] : sums[0], level > 1 ? 8 : 64, low, lower, lows[level + 1]);
    }
  }

  // Groups follow each other a level apart: between the prefetch of a node and its use lies the work of all other levels.
  void descend(size_t n, double* mass, uint32_t* at) const {
    const size_t groups = (n + kGroup - 1) / kGroup;
    for (size_t step = 0; step < groups + static_cast<size_t>(top); ++step) {
      for (int level = 0; level <= top; ++level) {
        const size_t group = step - static_cast<size_t>(top - level);  // wraps where it has not begun
        if (group >= groups) continue;
        const double* below = level == 0 ? nullptr : level <= 2 ? sums[level - 1] : starts[level - 1];
        const size_t first = group * kGroup;
        (simd ? descend_avx512 : descend_scalar)(starts[level], sums[level], below, std::min(kGroup, n - first), mass + first, at + first);
      }
    }
  }

  // What an update of this leaf touches where levels are large.
  MEMSVC_FETCHES void prefetch(uint32_t leaf) const {
    __builtin_prefetch(&sums[0][leaf], 1);
    __builtin_prefetch(&sums[1][leaf / 8], 1);
    __builtin_prefetch(&lows[2][leaf / 64]);
  }
};

SumTree::SumTree(size_t capacity, bool simd) : levels_(std::make_unique<Levels>()) {
  assert(capacity >= 1 && capacity <= 0xFFFFFFFF);
  Levels& levels = *levels_;
  if (!levels.arena.map(bytes_for(capacity)).ok()) throw std::bad_alloc();
  levels.place(capacity, &levels.arena);
  levels.simd = simd && simd_wanted && __builtin_cpu_supports("avx512f");
  for (int level = 2; level <= levels.top; ++level) {
    std::fill_n(levels.lows[level], levels.nodes[level] * 8, kInf);
    std::fill_n(levels.starts[level], levels.nodes[level] * 8, kInf);
  }
  levels.lows[levels.top + 1][0] = kInf;
}

SumTree::~SumTree() = default;
SumTree::SumTree(SumTree&&) noexcept = default;

size_t SumTree::bytes_for(size_t capacity) {
  Arena counting;
  Levels levels;
  levels.place(capacity, &counting);
  return counting.used();
}

size_t SumTree::capacity() const { return levels_->capacity; }
size_t SumTree::bytes() const { return levels_->arena.used(); }
bool SumTree::vectorised() const { return levels_->simd; }
double SumTree::total() const { return levels_->sums[levels_->top + 1][0]; }
double SumTree::weight(size_t index) const { return levels_->sums[0][index]; }

double SumTree::min_positive() const {
  const double low = levels_->lows[levels_->top + 1][0];
  return low == kInf ? 0 : low;
}

void SumTree::set(size_t index, double weight) {
  const uint32_t at = static_cast<uint32_t>(index);
  set(&at, &weight, 1);
}

int64_t SumTree::set(const uint32_t* indices, const double* weights, size_t n) {
  int64_t more = 0;
  Levels& levels = *levels_;
  uint32_t at[kChunk], low[kChunk];
  for (size_t begin = 0; begin < n; begin += kChunk) {
    const size_t many = std::min(kChunk, n - begin);
    size_t lower = 0;
    for (size_t k = 0; k < std::min(kAhead, many); ++k) levels.prefetch(indices[begin + k]);
    for (size_t k = 0; k < many; ++k) {
      if (k + kAhead < many) levels.prefetch(indices[begin + k + kAhead]);
      const uint32_t index = indices[begin + k];
      const double weight = weights[begin + k];
      assert(index < levels.capacity && std::isfinite(weight) && weight >= 0);
      const double before = std::exchange(levels.sums[0][index], weight);
      more += static_cast<int64_t>(weight > 0) - static_cast<int64_t>(before > 0);
      at[k] = index;
      // A min changes only with a weight that was the min, or is below it: few do, unless all are the same.
      const double least = levels.lows[2][index / 64];
      low[lower] = index / 8;
      lower += (weight > 0 && weight < least) || (before == least && weight != before);
    }
    levels.rise(at, many, low, lower);
  }
  return more;
}

bool SumTree::draw(size_t n, bool stratified, Random& random, uint32_t* indices) const {
  const double sum = total();
  if (!(sum > 0)) return false;
  double mass[kChunk];
  const double slice = sum / static_cast<double>(n);
  for (size_t begin = 0; begin < n; begin += kChunk) {
    const size_t many = std::min(kChunk, n - begin);
    for (size_t k = 0; k < many; ++k) {
      mass[k] = stratified ? (static_cast<double>(begin + k) + random.uniform()) * slice : random.uniform() * sum;
      indices[begin + k] = 0;
    }
    levels_->descend(many, mass, indices + begin);
  }
  return true;
}

size_t SumTree::find(double mass) const {
  uint32_t at = 0;
  levels_->descend(1, &mass, &at);
  return at;
}

bool SumTree::consistent() const {
  const Levels& levels = *levels_;
  for (int level = 0; level <= levels.top; ++level) {
    for (size_t node = 0; node < levels.nodes[level]; ++node) {
      double starts[8];
      if (levels.sums[level + 1][node] != starts_scalar(levels.sums[level] + node * 8, starts)) return false;
      if (levels.starts[level] && !std::equal(starts, starts + 8, levels.starts[level] + node * 8)) return false;
      const double low = level > 1 ? least(levels.lows[level] + node * 8, 8) : least(levels.sums[0] + node * 64, level == 1 ? 64 : 0);
      if (level > 0 && levels.lows[level + 1][node] != low) return false;
    }
  }
  return true;
}

}  // namespace memsvc
