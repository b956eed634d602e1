"""What crosses from the C++ core into Python: one core call each; long ones run without the GIL; every object has one lock, threads may share it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
Keys: TypeAlias = NDArray[np.uint64]

class Schema:
    """Fields of a step, in order: (name, numpy dtype string such as "<f4", shape). Raises ConfigError for what cannot be stored."""

    def __init__(self, fields: Sequence[tuple[str, str, tuple[int, ...]]]) -> None: ...
    @property
    def fields(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(name, dtype, shape) of every field, as given."""
    @property
    def row_bytes(self) -> int:
        """Sum of the fields' bytes."""
    @property
    def row_stride(self) -> int:
        """Bytes a stored or travelling step takes: row_bytes rounded up to 8."""

class TableSpec:
    """One [[table]] of memsvc.toml, normalised (memsvc/config.py), derived against the schema. ConfigError begins with the key's path in it."""

    def __init__(self, schema: Schema, settings: Mapping[str, Any]) -> None: ...
    @property
    def columns(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(name, dtype, shape of one item), the user's columns first, then keys <u8, probabilities <f8, weights <f4, versions <i8."""
    @property
    def burn_in(self) -> int:
        """item.burn_in, 0 for other items than sequences."""
    @property
    def item_bytes(self) -> int:
        """Bytes of one item's computed columns."""
    def layout(self, batch: int) -> tuple[int, list[tuple[str, str, tuple[int, ...], int]]]:
        """(bytes of a batch, [(name, dtype, shape with the batch axis, offset)]); offsets are multiples of 64."""

class Views:
    """Numpy arrays at fixed places of any buffer that is large enough: `columns` are [(name, dtype, shape, offset)], as of TableSpec.layout."""

    def __init__(self, columns: list[tuple[str, str, tuple[int, ...], int]]) -> None: ...
    def of(self, buffer: Any) -> tuple[NDArray[Any], ...]:
        """The views in the columns' order, without a copy: writable where the buffer is, and keeping it alive. ValueError: it is too small."""

class Memory:
    """An actor's local memory (DEFINITIONS 1 to 6, and 7 stage one): recent episodes of its streams, and for each table their items and weights.

    Holds at most `max_steps` steps (but two a stream at least) and `max_episodes` finished episodes over all streams (0: no bound); whole
    episodes go, oldest first. An unfinished episode longer than max_steps / streams loses its oldest steps. Arrays are copied before a call
    returns. Errors are the classes of memsvc_proto.errors (SchemaError: field, shape, dtype; PriorityError), raised before anything is
    stored: a refused step changes nothing.
    """

    def __init__(self, schema: Schema, tables: Sequence[TableSpec], streams: Sequence[int], seed: int) -> None: ...
    def add(self, env: int, step: Mapping[str, Any], priority: float | None, version: int) -> None:
        """Appends one step to the stream of `env`. `step` has exactly the schema's fields; Python and numpy scalars may fill 0-d fields."""
    def add_batch(
        self,
        envs: NDArray[np.int64] | None,
        active: NDArray[np.bool_] | None,
        step: Mapping[str, Any],
        priority: NDArray[np.float64] | None,
        version: int,
        terminated: NDArray[np.bool_] | None,
        truncated: NDArray[np.bool_] | None,
        final: Mapping[str, Any] | None,
    ) -> None:
        """One step of each of n environments, arrays [n, ...], then the end of those that are done. envs None: 0 .. n-1.

        Rows of `final` are read where done.
        """
    def end(self, env: int, terminated: bool, final: Mapping[str, Any] | None, weight: float = 1.0) -> None:
        """Ends the episode of `env`: terminated, else truncated, which needs final's fields where a next observation or a value is used.
        Without a step so far nothing happens.

        `weight`, finite and >= 0, multiplies the weights of the episode's items in tables with
        actor.episode_weights (0: never drawn; positive factors are kept within 1e-100 .. 1e100; 1 until this call, so that
        such tables with select = "all" send nothing before it); SchemaError where it is not 1 and no table has it. Never refused by a gate.
        """
    def gate(self, table: int, allowed: int | None, blocked: bool) -> None:
        """add and add_batch raise WindowFull, which names the table and the rule, from when this table has made `allowed` items (None: no bound;
        counted exactly, one call may pass it), and while `blocked`. A lowered bound hands the rest back: the next payload's head says so."""
    def newest(self, version: int) -> None:
        """The newest version of the actor's topic (DEFINITIONS 10); older ones than before are passed over. Tables with limits.max_staleness:
        items that are too stale have weight 0 and leave total, population and min_weight; of select = "all" they are sent no more."""
    def configure(self, table: int, spec: TableSpec) -> None:
        """Takes the settings of `spec` that may change while running: weights, returns and the priorities that no learner has given are made anew,
        staleness is judged again (what select = "all" has passed over as stale stays so). What the server holds keeps its content. O(items)."""
    def draw(self, table: int, draws: int, max_bytes: int, head: int, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8] | None:
        """One push payload (cpp/core/cache.h) behind `head` free bytes, or None when there is nothing to say. It is in the first bytes of `out`
        (contiguous, writable, at a multiple of 64) where it fits there, else in an array of its own; what is drawn is the same.

        Tables with caches: up to `draws` draws by weight, fewer once the payload passes max_bytes, at least one; draws = 0 reports the totals alone.
        Independent draws, w = g * kappa^t * decay^n * p^exponent with n as of before this cache; or, without replacement, each by the weights left,
        never again before reopen(), and the head's totals are what is left after them.
        Tables with select = "all": unsent items whose quantities are final, oldest first, until max_bytes; None when none is, but a head alone where
        the server must know that the newest version (with max_staleness) has changed, that the allowance was lowered or used up by items that are not
        sent, or that more episodes were too short for any item while none was made. With when_full = "block" at most `draws` items; draws = 0 gives
        the head alone, always.
        """
    def feedback(self, table: int, number: int, keys: Keys, priorities: NDArray[np.float64]) -> int:
        """Learners' raw priorities, numbered by the server; applied to the items still here. Returns how many were."""
    def evicted(self, table: int, keys: Keys) -> None:
        """The server no longer holds these items: their payload travels again when they are drawn again."""
    def missing(self, table: int, keys: Keys) -> None:
        """The server asks for these items' payload: it goes with the next draw(), or among its `gone` keys."""
    def settled(self, payloads: int) -> None:
        """The server has answered this many of the payloads that draw() gave, over all tables, and missing() was told what it asked for again. Where
        every table is select = "all", what only these needed need not be kept any longer. Never waits, costs about .1 us."""
    def forget(self) -> None:
        """Another server, which holds nothing of this memory, but knows its streams: numbers go on, what was sent stays sent (payloads without an
        answer are sent again by their owner), and what the server of before had asked for again is still to be sent."""
    def reopen(self, streams: Sequence[int]) -> None:
        """A new server: nothing is held there, unfinished episodes go on as new streams' episodes, unsent items are sent again under new keys."""
    @property
    def added(self) -> int:
        """Steps added so far."""
    def unsent(self, table: int) -> tuple[int, int]:
        """(items, payload bytes, roughly) that select = "all" still has to send; (0, 0) for tables with caches."""
    def stats(self) -> dict[str, Any]:
        """steps, episodes, added (steps so far), ended (episodes so far), bytes, streams; tables: [{total, population, min_weight, scale, exponent,
        inserted, held, unsent, applied, stale, short_episodes}]."""

class Replay:
    """The server's state: one step store in preallocated, touched pages within `memory_bytes`, and the tables over it (DEFINITIONS 7, stage two).

    Errors by code as in memsvc_proto.errors. Actor numbers are small integers from join().
    """

    def __init__(self, schema: Schema, tables: Sequence[TableSpec], memory_bytes: int, seed: int, first_stream: int) -> None:
        """Takes and touches the memory. Raises ConfigError when memory_bytes is too small for 64 steps."""
    @staticmethod
    def footprint(schema: Schema, tables: Sequence[TableSpec], memory_bytes: int) -> dict[str, Any]:
        """What __init__ would take, without taking it: {"steps": capacity in steps, "step_bytes": bytes of one with its share of every index,
        "bytes": the whole, "least_bytes": what memory_bytes must be at least, "items": [the most that each table holds]}."""
    def join(self, name: str, envs: int, topic: str = "default") -> tuple[int, list[int]]:
        """(actor number, its streams' ids). A living actor of the same name is replaced: its queue and weight leave.

        `topic`: of the parameters whose versions its steps carry.
        """
    def resume(
        self, name: str, envs: int, topic: str, session: int, streams: Sequence[int], first: int, fed: int = 0
    ) -> tuple[int, list[int], int, bool]:
        """The same for an actor that numbers its pushes, and may have been here before: (actor number, streams, number of its newest push that was
        stored or refused for good, whether its session was known, so that what it was told before still holds).

        `session`: 0 < s < 2^64, of one client object. `streams`: those it has, [] at first. `first`: number of the oldest push that it can still
        send; what is missing before that does not come. `fed`: number of the newest feedback that it has had. A session that is not known keeps
        its streams where nobody else here has, or had, one of them; else it gets new ones. It replaces an actor of the same name and another session.
        Sessions of actors that are gone are remembered, the last 65,536 of them.
        """
    def leave(self, actor: int) -> None:
        """The actor's queue is used up, then its weight leaves W and N."""
    def push(self, actor: int, payload: Bytes, number: int = 0) -> tuple[int, int] | None:
        """Stores one payload, exactly once where it is numbered from 1 (0: it is not). Returns (items stored, draws queued); None: that number has
        come before. Gap: one before it has not come (`expected`). ProtocolError for a malformed one, whose number counts as dealt with. ServerError:
        no such actor (`hello`), or no memory for it. None of these changes anything else.
        """
    def notices(self, actor: int, table: int) -> tuple[int, Keys, Keys]:
        """(draws wanted in the queue beyond those that are there, keys asked for again, keys evicted since the last call).

        Where the table blocks when it is full, the first is how many items the actor may send, of those not pushed yet.
        """
    def hungry(self, table: int) -> list[int]:
        """Actors that are to be told more: their queue has fallen below half of the stock wanted from them, or they may send or insert more."""
    def allowance(self, actor: int, table: int) -> tuple[int, float] | None:
        """The limiter's word to an actor (DEFINITIONS 9): (what its own count of inserted items may reach, items that all actors are ahead of
        learners by); None without a limiter."""
    def publish(self, topic: str, version: int) -> None:
        """The newest version of a topic: what is too stale for it cannot be drawn once this has returned (DEFINITIONS 10); it goes piece by piece,
        and pushes and draws may come in between."""
    def take_feedback(self, actor: int, table: int) -> tuple[int, Keys, NDArray[np.float64]] | None:
        """Closes the open batch of learners' priorities for this actor and returns it with its number (from 1), or None when it is empty."""
    def with_feedback(self, table: int) -> list[int]:
        """Actors for which take_feedback has something."""
    def expect(self, table: int, draws: int) -> None:
        """How many draws learners are to find in stock over all actors: the target that `notices` shares out by weight. Start: 1,024.

        Never more than the store holds, or than a quarter of the places for draws; never less than the largest batch asked for.
        """
    def largest_batch(self, table: int) -> int:
        """The largest batch that draw() can ever fill: a quarter of the places for draws; where select = "all" as often as its items may be drawn,
        2^64 - 1 without a bound."""
    def draw(
        self, table: int, batch: int, out: NDArray[np.uint8], offset: int, min_version: int | None = None, ticket: int = 0
    ) -> tuple[int, float] | None:
        """A batch at out[offset:] (TableSpec.layout), shuffled unless the sampler is an order. Returns (N, W), or None when no whole batch
        can be drawn now.

        `min_version`: only items of it or newer, which P, N and W then refer to (select = "all", else ConfigError). `ticket` > 0: a number not in
        use, for `taken` or `put_back`; 0: the batch counts as taken.
        """
    def taken(self, table: int, ticket: int) -> None:
        """A learner has got the batch of this ticket; items drawn max_times_sampled times, all confirmed, go. Tickets not open are ignored."""
    def put_back(self, table: int, ticket: int) -> None:
        """No learner will get the batch of this ticket: it counts neither as sampled nor against max_times_sampled."""
    def why_not(self, table: int, batch: int, min_version: int | None = None) -> tuple[str, int, int]:
        """Why draw() returns None now: (reason, have, need).

        "min_items": items there, limits.min_items. "stock": draws in the queues, batch. "few": draws that are left, batch. "limiter": items inserted,
        how many must have been for this batch. "stale": version of the youngest item, oldest version allowed. "short": episodes so far, all shorter
        than item.length. "version": version of the youngest item, min_version. "empty": items made so far, min_items. "ready".
        """
    def get(self, table: int, keys: Keys, out: NDArray[np.uint8], offset: int) -> tuple[int, int, float]:
        """The items that are here, in the order of `keys`, as a batch of exactly so many at out[offset:], which has room for len(keys).

        Returns (how many, N, W). The weight and probability of an item that cannot be drawn are 0.
        """
    def delete(self, table: int, keys: Keys) -> tuple[int, int]:
        """Removes items; of caches they are never drawn again, here and at the actor. Returns (removed, not here)."""
    def configure(self, table: int, spec: TableSpec) -> None:
        """Takes what may change while running from `spec`: exponent, beta, values of gamma, lambda, min_items, the limiter, max_staleness."""
    def update(self, table: int, keys: Keys, priorities: NDArray[np.float64]) -> tuple[int, int, Keys]:
        """Learners' raw priorities: (applied, stale, keys refused because p is NaN, infinite or negative). Of duplicate keys the last counts.
        Lists are applied in their order; between pieces of 1,024 pushes, draws and other updates may come in."""
    def stats(self) -> dict[str, Any]:
        """steps, capacity_steps, bytes, seed; pushes: {received, stored, duplicate, gap, malformed, unknown (no such
        actor), failed} (received is the sum of the others);
        actors: [{name, actor, number (of the newest push stored or refused for good), and those counts}]; sessions (of actors that are gone);
        tables: [{items, total, population, min_weight, drawn, inserted, stale_updates, refused_updates,
        evicted, starved, aged (removed as too stale), deleted, put_back, in_flight (draws not confirmed), exhausted, age_steps (mean age of draws
        delivered, in steps of their actors), limiter: {inserted, sampled, ahead (samples that actors are ahead by)} | None, bytes of
        feedback_bytes (priorities that actors have not taken, or not reported), told_bytes (keys they are to be told, draws that wait for payload),
        changes_bytes (learners' changes since the queued draws), notes_bytes (of items' versions), actors: [{name, actor, total,
        population, queue, wanted, drawn, received, starved, left, steps, episodes, short_episodes, stale, age_steps}]}]."""
    def save(self) -> Saved:
        """A consistent copy of everything but the rows. Pushes that are not stored yet are left out; batches not confirmed count as put back.
        Replay's lock is held while the arrays are copied (some 10 ms a million items), not while they are sorted out."""
    def prepare(self) -> Capture:
        """`save` in steps, for callers that stop others while the copy is made: takes the memory for it."""
    def rows(self, keys: Keys, out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Copies the rows that are here now to out[i], out u8[n, row_stride]; False where a key's row is not here. Traffic goes on meanwhile."""
    def begin_restore(self, state: Bytes, items: Sequence[Mapping[str, NDArray[Any]] | None]) -> Keys:
        """First of a restore, on a Replay that nothing was done with: Saved.state, and for each of *this* Replay's tables Saved.items of the saved
        table of its name, or None to start it empty. Returns the keys of the rows that are needed, sorted.

        Memory, capacities and settings may be others than those saved: the newest items are kept. ProtocolError for what is damaged, ConfigError
        where a table's items do not fit its settings (kind, select, stack, computed columns): give None. Nothing has changed then.
        """
    def restore_rows(self, keys: Keys, rows: NDArray[np.uint8]) -> int:
        """Rows u8[n, row_stride] of these keys, in any order and in as many calls as are wanted; what is not needed or here already is passed over.
        Returns how many were taken."""
    def finish_restore(self) -> dict[str, list[int]]:
        """Items whose rows have all come are there; draws, priorities, counters and limiter go on. By table: {"items": kept, "dropped": items that
        did not fit or whose rows are missing (their actors are told), "draws": queued}. Actors are here as if connected: `resume` or `leave` them."""
    def restored(self) -> None:
        """Last of a restore, after what is done again (pushes, `advance`): feedback is numbered above all that may have been given since, and
        what actors have perhaps not got is offered again. Called once, also where nothing was done again."""
    def progress(self) -> bytes:
        """What draws have used up since the save: small, written now and then between what is done again. The first call begins the notes: call it
        before the first draw that counts. A call's bytes hold only together with all earlier ones since the last `save`."""
    def advance(self, progress: Bytes) -> None:
        """Uses up what `progress` says; calls in the order of those of `progress`. ProtocolError for what is damaged: nothing has changed."""

class Capture:
    """Replay.prepare(): a save under way."""

    def copy(self) -> bool:
        """Makes the copy, for which Replay's lock is held. False: there is more by now than memory was taken for; prepare anew."""
    def saved(self) -> Saved:
        """What was copied, sorted out, for which no lock is held; once, after `copy` was True."""

class Saved:
    """Replay.save(): what a restore needs beside the rows."""

    @property
    def state(self) -> bytes:
        """Actors, queues of draws, limiters, counters, random states: by key, so that it fits other memory sizes too. Versioned, with a checksum."""
    def items(self, table: int) -> dict[str, NDArray[Any]]:
        """The table's items, those that would be evicted first at the start: key u64, version i64, value f64 (w_now; with select = "all" the scaled
        priority), span u32, head u16, episode u16, factor f64, times u16, updated u32, era u32, made u8[n, item_bytes]. Give back all of them."""
    @property
    def row_keys(self) -> Keys:
        """Of all rows that the items need, sorted."""

class Ring:
    """One end of cpp/core/ring.h: messages through memory that two processes map, one producer and one consumer. One thread at a time uses it.

    `memory`: u8[n], zeros at the start, n and its place multiples of 64; it is kept alive. push, commit and mark return 0 where there is no room, 1,
    or 2 where the consumer sleeps and is to be woken. What the other side cannot have written raises ProtocolError, from then on always.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None: ...
    @property
    def most(self) -> int:
        """Bytes of the longest message that it takes."""
    def push(self, frame: Bytes) -> int:
        """Puts a message: copied in, or as it is where it begins what was reserved last and is no longer than that."""
    def reserve(self, bytes: int) -> NDArray[np.uint8] | None:
        """Where a message may be written in place, until `commit`, or until another is reserved or pushed; None where there is no room."""
    def commit(self, bytes: int) -> int:
        """What was reserved is a message now, of at most the bytes reserved; only after `reserve`."""
    def room(self) -> bool:
        """Whether `mark` would find room now."""
    def mark(self) -> int:
        """Puts a message of no bytes, which stands for one that goes another way."""
    @property
    def written(self) -> int:
        """Position behind the message that was put last; it only grows."""
    def keep(self, position: int | None) -> None:
        """What was put from this `written` on is not written over, though it was read, until `keep` says otherwise; None: what is read may be."""
    def front(self) -> int:
        """Bytes of the oldest message, 0: a mark, -1: nothing is there."""
    def take(self) -> bytearray:
        """The front, copied and popped."""
    def view(self) -> NDArray[np.uint8]:
        """The front in place, read-only, until `pop`. The other side could change it meanwhile."""
    def pop(self) -> None:
        """Removes the front."""
    def spin(self, rounds: int) -> bool:
        """Looks so many times, a few dozen cycles apart and without the GIL, whether something has come; False: not yet."""
    def doze(self) -> bool:
        """The consumer is about to sleep; False: something has come, and nobody will wake it."""

class SumTree:
    """8-ary float64 sum tree over `capacity` leaves (cpp/core/tree.h), exposed for tests and benchmarks. Not thread-safe."""

    def __init__(self, capacity: int, seed: int, simd: bool = True) -> None: ...
    def update(self, indices: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Sets weights [n] >= 0 of leaves [n]; of duplicate indices the last counts."""
    def draw(self, n: int, stratified: bool = True) -> NDArray[np.int64]:
        """n leaves, P(i) = w_i / total; stratified: one in each equal slice of the total. ValueError when total is 0."""
    def weights(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Weights of leaves."""
    @property
    def vectorised(self) -> bool:
        """Whether it runs on AVX-512."""
    @property
    def total(self) -> float:
        """Sum of all weights."""
    @property
    def min_positive(self) -> float:
        """Smallest positive weight, 0 when there is none."""

def use_simd(on: bool) -> None:
    """False: trees made from now on, in the whole process, use the scalar code (tests); True, as at the start: AVX-512 where there is any.

    Both give the same bits (DESIGN 6). Thread-safe.
    """

def n_step(
    reward: NDArray[np.float64], terminated: bool, n: int, gamma: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """DEFINITIONS 2 over a whole episode. reward [T, k], gamma [T, k or 1] (per step).

    Returns (reward [T, k], discount [T, k or 1], next index [T]).
    """

def lambda_return(
    reward: NDArray[np.float64], value: NDArray[np.float64], last_value: NDArray[np.float64], terminated: bool, gamma: NDArray[np.float64], lam: float
) -> NDArray[np.float64]:
    """DEFINITIONS 5. reward, value [T, k]; last_value [k] = V(obs_T); gamma [T, k or 1]. Returns q [T, k]; the advantage is q - value."""
