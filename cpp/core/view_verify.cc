// The invariants of view.h, checked by their numbers.
#include "view.h"

namespace memsvc {

int View::verify() {
  uint64_t made = 0, held = 0, positive = 0, stale = 0;
  for (size_t env = 0; env < episodes_.envs(); ++env) {
    for (uint32_t id : episodes_.of(env)) {
      const Episode& e = episodes_.episode(id);
      const Progress& at = progress(id);
      uint64_t next = item_from(e, at, 0);
      for (uint64_t t = e.first; t < e.count; ++t) {
        const uint32_t slot = e.slot(t);
        const Item& item = items_[slot];
        if (item.made != (t == next)) return 1;
        if (t == next) next = item_from(e, at, t + 1);
        if (weighs_ && stored(slot) != weight(slot)) return 2;
        if (item.held && !item.made) return 3;
        if (item.stale != (item.made && !fresh(slot)) || (item.stale && weighs_ && stored(slot) != 0)) return 5;
        if (item.spent && weighs_ && (stored(slot) != 0 || spec_.select != Select::kWithoutReplacement)) return 6;
        made += item.made;
        held += item.held;
        stale += item.stale;
        positive += weighs_ && weight(slot) > 0;
      }
      if (next != kNever) return 1;
    }
  }
  if (made != made_) return 1;
  if (positive != population_) return 2;
  if (held != held_) return 3;
  std::vector<uint64_t> last(episodes_.ids(), 0);
  for (uint32_t slot : queue_) {
    const Step& step = episodes_.step(slot);
    if (!items_[slot].made || items_[slot].spent || items_[slot].stale) return 4;
    if (step.index < progress(step.episode).sent || step.index < last[step.episode]) return 4;
    last[step.episode] = step.index + 1;
  }
  if (stale != stale_ || versions_.count() != (spec_.max_staleness >= 0 ? made - stale : 0)) return 5;
  return 0;
}

}  // namespace memsvc
