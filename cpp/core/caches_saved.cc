// The half of Caches that is saved and put back: queues and logs by item, and what of a queue is used up.
#include <algorithm>

#include "caches.h"

namespace memsvc {

void Caches::put(Lane* lane, uint32_t item, double weight, uint32_t segment, uint64_t steps) {
  lane->touch();
  if (draws_.append(&lane->queue, item, weight, segment, steps)) items_->pin(item);
}

void Caches::put_logged(Lane* lane, uint64_t number, uint32_t item, double before) {
  if (!lane->raised) lane->raised = std::make_unique<Raised>(items_, places_, settled(lane));
  if (lane->raised->size() < Raised::kMost) lane->raised->put(number, item, before);
}

void Caches::put_last(Lane* lane) {
  // Some draws have found no item.
  size_t at = 0;
  for (Segment& segment : lane->segments) segment.queued = 0;
  draws_.each(lane->queue, [&](uint32_t, uint32_t segment) {
    while (lane->segments[at].id != segment) ++at;
    ++lane->segments[at].queued;
  });
  if (lane->raised) lane->raised->weigh_all();
  lane->touch();
  settle(lane);
}

std::pair<uint32_t, uint64_t> Caches::front(const Lane& lane) const {
  if (lane.queue.length == 0) return {lane.next_segment(), 0};
  const uint32_t id = draws_.segment(lane.queue);
  uint64_t behind = 0;
  for (auto segment = lane.segments.rbegin(); segment != lane.segments.rend() && segment->id != id; ++segment) behind += segment->queued;
  return {id, lane.queue.length - std::min<uint64_t>(behind, lane.queue.length)};
}

void Caches::use_up(Lane* lane, uint32_t segment, uint64_t left) {
  const uint64_t given_way = given_way_;
  while (lane->queue.length > 0) {
    const auto [id, here] = front(*lane);
    const int32_t ahead = static_cast<int32_t>(segment - id);
    if (ahead < 0 || (ahead == 0 && here <= left)) break;
    drop_front(lane, ahead > 0 ? std::max<uint64_t>(here, 1) : here - left);
  }
  given_way_ = given_way;
}

void Caches::lend(Lane* lane, uint32_t item) {
  items_->pin(item);
  if (lane) ++lane->out;
}

void Caches::confirm(Lane* lane, uint32_t item) {
  items_->unpin(item);
  if (lane && lane->out > 0) --lane->out;
}

void Caches::take_back(Lane* lane, uint32_t item) {
  if (lane && lane->out > 0) --lane->out;
  // Of an actor that was replaced nothing is drawn any more.
  if (lane && lane->reported() && items_->value(item) > 0) {
    lane->touch();
    if (draws_.append(&lane->queue, item, items_->value(item), lane->segment(), lane->steps)) {
      ++lane->segments.back().queued;
      return;
    }
    ++given_way_;
  }
  items_->unpin(item);
}

void Caches::use_up(Lane* lane, const std::unordered_set<uint32_t>& items) {
  draws_.erase_if(&lane->queue, [&items](uint32_t item) { return items.contains(item); }, [this](uint32_t item) { items_->unpin(item); });
  lane->touch();
  settle(lane);
}

}  // namespace memsvc
