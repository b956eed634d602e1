"""The sentences for what a learner waits for, the stock of batches it keeps, topics, and which settings make another table."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from memsvc_client import ConfigError
from memsvc_client.reasons import sentence
from memsvc_client.stock import MOST_ASKED, Stock
from memsvc_client.topics import Topics
from memsvc_client.waiting import SLICE_S
from memsvc_client.welcome import CHANGEABLE, Welcome
from memsvc_proto.wire import Kind, Message
from serving import CACHES, config, serve

SETTINGS = {
    "name": "replay",
    "item": {"kind": "sequence", "length": 80, "tail": "drop"},
    "limits": {"samples_per_insert": 1.5, "tolerance": 64.0, "max_staleness": 3},
}


@pytest.mark.parametrize(
    ("reason", "have", "need", "words"),
    [
        ("min_items", 37, 1000, ["37 of the 1,000 items", "limits.min_items"]),
        ("stock", 3, 32, ["3 draws of its actors", "needs 32"]),
        ("empty", 0, 32, ["0 of the 32 items"]),
        ("few", 12, 32, ["12 items that may be drawn", "32 different ones"]),
        ("unread", 8, 8, ["8 batches", "read them first"]),
        ("sending", 1000, 4000, ["1,000 bytes", "4,000 is the most"]),
        ("limiter", 100, 112, ["learners", "ahead of its actors by 12 items", "samples_per_insert = 1.5", "tolerance = 64"]),
        ("stale", 4, 7, ["staler than 3 versions", "limits.max_staleness", "version 4", "7 is the oldest"]),
        ("short", 5, 80, ["all 5 episodes", "80 steps", "item.length", "tail = 'drop'"]),
        ("version", 4, 7, ["version 4", "min_version asks for 7"]),
        ("of a newer server", 1, 2, ["of a newer server", "1 of 2"]),
    ],
)
def test_every_reason_is_a_sentence(reason, have, need, words):
    text = sentence({"reason": reason, "have": have, "need": need}, SETTINGS)
    assert "table 'replay'" in text
    for word in words:
        assert word in text


def test_a_reason_that_is_malformed_is_told_all_the_same():
    assert "'replay'" in sentence({"reason": None, "have": "x"}, {"name": "replay"})


def test_batches_of_other_versions_are_kept_apart():
    stock, a, b, c = Stock(), object(), object(), object()
    stock.asked = {1: None, 2: 7, 3: None}
    assert stock.missing(2, None) <= 0
    assert stock.missing(3, None) > 0
    assert stock.missing(1, 7) <= 0
    assert stock.missing(1, 8) > 0
    stock.came(1, a)
    stock.came(2, b)
    stock.came(3, c)
    assert stock.take(8) is None
    assert (stock.take(7).batch, stock.take(7)) == (b, None)
    assert [stock.take(None).seq, stock.take(None).seq] == [1, 3]
    assert stock.missing(1, None) > 0


def test_no_more_is_asked_for_than_the_server_keeps():
    stock = Stock()
    stock.asked = dict.fromkeys(range(MOST_ASKED))
    assert stock.missing(100, None) <= 0
    assert stock.missing(1, 7) <= 0


def test_what_nobody_waits_for_any_more_is_bounded():
    stock = Stock()
    stock.asked = {100: None}
    stock.came(100, "plain")
    for version in range(50):
        stock.asked[version] = version
        stock.came(version, version)
    assert len(stock.ready) == MOST_ASKED + 1
    assert stock.take(None).batch == "plain"
    assert stock.take(49).batch == 49


def test_a_new_server_knows_nothing_of_what_was_delivered():
    stock = Stock()
    stock.asked = {4: None, 5: None}
    stock.came(4, "batch")
    stock.restart()
    assert (stock.asked, stock.take(None).seq) == ({}, 0)


# Topics.


def notice(topic, version):
    return Message(Kind.NOTICE, a=version, meta={"topic": topic})


def test_topics_are_followed_each_for_itself():
    seqs = iter(range(1, 100))
    topics = Topics("mine", {"mine": 3, "opponent": 8})
    assert topics.own.newest == 3
    assert topics.fetch(lambda: next(seqs), 0.0) is None  # nobody has asked for parameters
    opponent = topics.follow("opponent")
    assert topics.fetch(lambda: next(seqs), 0.0).meta == {"topic": "opponent"}
    assert topics.fetch(lambda: next(seqs), 0.0) is None
    topics.heard(notice("opponent", 9))
    topics.heard(notice("third", 9))
    topics.heard(Message(Kind.PARAMS, 1, a=9, meta={"topic": "opponent"}, body=b"blob"))
    assert opponent.take() == (9, b"blob")
    assert topics.own.held == 0
    assert topics.seen() == {"mine": 3, "opponent": 9}
    assert topics.follow("mine") is topics.own
    assert topics.fetch(lambda: next(seqs), 1.0).meta == {"topic": "mine"}


def test_before_the_first_publication_it_is_asked_for_again_and_again():
    topics = Topics("mine", {})
    topics.follow("mine")
    first = topics.fetch(lambda: 1, 0.0)
    assert first is not None
    topics.heard(Message(Kind.PARAMS, 1, a=0, meta={"topic": "mine"}))
    assert topics.fetch(lambda: 2, SLICE_S / 2) is None
    again = topics.fetch(lambda: 2, SLICE_S)
    assert again is not None
    topics.unsent(again)
    assert topics.fetch(lambda: 3, 2 * SLICE_S) is not None


def test_few_fetches_are_out_at_once():
    topics = Topics("0", {})
    for i in range(20):
        topics.follow(str(i))
    seqs = iter(range(1, 100))
    out = []
    while (fetch := topics.fetch(lambda: next(seqs), 0.0)) is not None:
        out.append(fetch)
    assert len(out) == 4


@pytest.mark.parametrize("topic", [7, "x" * 201])
def test_what_is_no_topic(topic):
    with pytest.raises(ConfigError, match="topic"):
        Topics("mine", {}).follow(topic)


# Settings that may differ between a server and the one that comes back.


def welcome(tables):
    return Welcome("", 0, [], False, 0, 0, {}, [("obs", "<f4", (3,))], tables, None, [])


def other(settings, path, value):
    changed = copy.deepcopy(settings)
    section, key = path.split(".")
    changed[section][key] = value
    return changed


def test_what_may_change_makes_no_other_table():
    settings = config("tcp://127.0.0.1:0", CACHES | {"returns": None}).tables[0] | {"returns": {"gamma": [0.9, 0.8], "lambda": 0.5}}
    assert welcome([settings]).same_tables(welcome([copy.deepcopy(settings)]))
    for path in CHANGEABLE:
        value = [0.1, 0.2] if path == "returns.gamma" else 0.25
        assert welcome([settings]).same_tables(welcome([other(settings, path, value)])), path
    for path, value in [
        *[("item.n_step", 7), ("actor.max_steps", 7), ("limits.max_times_sampled", 7), ("capacity.items", 7), ("priority.source", "given")],
        *[("item.gamma", "discounts"), ("returns.gamma", [0.9]), ("returns.gamma", "discounts"), ("priority.decay", 0.5)],
    ]:
        assert not welcome([settings]).same_tables(welcome([other(settings, path, value)])), path
    assert not welcome([settings]).same_tables(welcome([settings | {"returns": None}]))
    assert not welcome([settings]).same_tables(welcome([settings, settings]))


@pytest.mark.parametrize("version", [1.5, "3", -2, 2**63, True])
def test_a_version_that_is_none(version, tmp_path):
    wrong = pytest.raises(ConfigError, match="version: expected a version, an integer from -1")
    with serve("local", tmp_path) as made, made.actor() as actor, wrong:
        actor.add(obs=np.zeros(3, np.float32), action=0, reward=0.0, priority=1.0, version=version)


@pytest.mark.parametrize("name", ["", 3, "x" * 300])
def test_a_name_that_is_none(name, tmp_path):
    with serve("local", tmp_path) as made, pytest.raises(ConfigError, match="name: expected a string"):
        made.actor(name=name)
