"""The fairness job's tables on small frames, against results by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sharecoord.analytics import census
from sharecoord.analytics.fairness import transform
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.core.dispatch.fair_share import fair_level
from tests.analytics.support import (
    Row,
    Scenes,
    at,
    by,
    by_scene,
    change,
    dicts,
    event,
    frame,
    handed,
    sample,
)
from tests.fairness import fairness_over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = FairnessSettings()
SCENES = Scenes()


class Tables(NamedTuple):
    """Rows of the tables of all scenes."""

    windows: dict[int, list[Row]]
    members: dict[int, list[Row]]
    groups: dict[int, list[Row]]
    census: dict[int, list[Row]]

    def windows_of(self, scene: int) -> dict[Any, Row]:
        return by(self.windows[scene], "group_id", "topic", "partition", "window_start")

    def members_of(self, scene: int) -> dict[str, Row]:
        return by(self.members[scene], "member_id")

    def groups_of(self, scene: int) -> dict[str, Row]:
        return by(self.groups[scene], "group_id")

    def lives(self, scene: int) -> list[tuple[int, int]]:
        """Changes seen and expected, by share-partition and life."""
        placed = (row for row in self.census[scene] if row["partition"] is not None)
        return sorted((row["seen"], row["expected"]) for row in placed)


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Tables:
    """What is found of all scenes."""
    events = frame(spark, SCENES.rows).persist()
    member_samples, histogram = transform.samples(events), transform.timings(events)
    known = census.with_lives(events, census.deletions(events))
    handed_out, counted = transform.acquired(events, SETTINGS), census.census(known)
    rows = transform.windows(member_samples, handed_out, SETTINGS).persist()
    people = transform.members(member_samples, histogram, SETTINGS).persist()
    tables = (rows, people, transform.groups(rows, people, histogram, counted), counted)
    return Tables(*map(by_scene, tables))


def index(rows: list[Row]) -> float:
    """Jain's index of samples of one coordinator, by the definition in core."""
    times = sorted({row["time"] for row in rows})
    return fairness_over(
        {row["member_id"]: (row["demand"], row["got"]) for row in rows if row["time"] == time}
        for time in times
    )


def naive(seconds: float) -> Any:
    """A time as Spark hands it to Python: the wall clock of this machine."""
    return at(seconds).astimezone().replace(tzinfo=None)


# -- windows --------------------------------------------------------------------------------------


TWO_WINDOWS = [
    # First window: a gets all of 30, b wants some too.
    *(sample(s, "a", 10, 10) for s in (1, 2, 3)),
    *(sample(s, "b", 10, 0) for s in (1, 2, 3)),
    handed(0.5, "a", 20),
    handed(1.5, "a", 10, partition=1),
    # Second window: b gets 30. The sample at 10 s tells of the second before.
    sample(10.0, "a", 4, 0),
    *(sample(10 + s, "b", 10, 10) for s in (1, 2, 3)),
    handed(10.5, "b", 30),
]
IN_WINDOWS = SCENES.add(TWO_WINDOWS)


def test_windows_and_the_whole_range(found: Tables) -> None:
    rows, windows = TWO_WINDOWS, found.windows_of(IN_WINDOWS)
    assert len(windows) == 3 + 2 + 3
    first = windows["g", None, None, naive(0)]
    assert (first["demand"], first["got"]) == (64, 30)
    assert first["level"] == pytest.approx(3 * fair_level([10, 10], [10, 0]))
    assert first["jain"] == pytest.approx(index(rows[:6])) == pytest.approx(0.5)
    assert (first["members"], first["wanting"], first["window_ms"]) == (2, 2, 10_000)
    assert (first["records"], first["records_jain"], first["gini"]) == (30, 0.5, 0.5)
    second = windows["g", None, None, naive(10)]
    assert (second["jain"], second["members"], second["top_share"]) == (1.0, 1, 1.0)
    whole = windows["g", None, None, None]
    assert whole["jain"] == pytest.approx(index([row for row in rows if row["kind"] == "member"]))
    assert (whole["records"], whole["records_jain"], whole["window_ms"]) == (60, 1.0, None)
    # Who got nothing of a partition counts there as 0.
    place = windows["g", "t", 0, naive(0)]
    assert (place["records"], place["members"], place["records_jain"]) == (20, 2, 0.5)
    assert (place["jain"], place["demand"], place["level"], place["wanting"]) == (None,) * 4
    assert windows["g", "t", 0, None]["records_jain"] == pytest.approx(
        50**2 / (2 * (20**2 + 30**2))
    )


TWO_COORDINATORS = SCENES.add(
    [
        sample(1.0, "a", 5, 5),
        sample(1.3, "a", 5, 0, coordinator_id="c2"),
        sample(1.3, "b", 10, 5, coordinator_id="c2"),
    ]
)


def test_samples_of_several_coordinators_are_added_up(found: Tables) -> None:
    members = found.members_of(TWO_COORDINATORS)
    assert {(name, row["demand"], row["got"]) for name, row in members.items()} == {
        ("a", 10, 5),
        ("b", 10, 5),
    }
    assert found.windows_of(TWO_COORDINATORS)["g", None, None, None]["jain"] == 1.0


TWO_GROUPS = SCENES.add(
    [sample(1, "a", 5, 5), sample(1, "a", 5, 0, group_id="h"), handed(1, "a", 5)]
)


def test_groups_do_not_mix(found: Tables) -> None:
    windows = found.windows_of(TWO_GROUPS)
    assert windows["h", None, None, None]["got"] == 0
    assert windows["h", None, None, None]["jain"] == 1.0
    assert windows["h", None, None, None]["records"] == 0
    assert windows["g", None, None, None]["records"] == 5


NO_SAMPLES = SCENES.add([handed(1, "a", 5), handed(1, "b", 15)])


def test_without_samples_nobody_knows_who_wanted_something(found: Tables) -> None:
    whole = found.windows_of(NO_SAMPLES)["g", None, None, None]
    assert (whole["jain"], whole["level"], whole["demand"]) == (None, None, None)
    assert (whole["members"], whole["top_share"], whole["gini"]) == (2, 0.75, 0.25)


# -- members --------------------------------------------------------------------------------------


def starving(first: int, last: int, *, group_got: int = 20) -> list[Row]:
    """b gets nothing from one second to another, both inclusive, and something around."""
    rows = []
    for second in range(1, 21):
        rows.append(sample(second, "a", 30, group_got))
        rows.append(sample(second, "b", 30, 0 if first <= second <= last else 5))
    return rows


FIVE_SECONDS = {last: SCENES.add(starving(5, last)) for last in (8, 9)}


@pytest.mark.parametrize(("last", "starved"), [(8, False), (9, True)])
def test_five_seconds_without_records(found: Tables, last: int, *, starved: bool) -> None:
    member = found.members_of(FIVE_SECONDS[last])["b"]
    assert member["starved"] is starved
    assert member["starvation_ms"] == (last - 4) * 1_000
    assert member["starved_since"] == (naive(4) if starved else None)


def test_what_starvation_is_can_be_chosen(spark: SparkSession) -> None:
    events, settings = frame(spark, starving(5, 9)), FairnessSettings(starved_after_ms=60_000)
    people = transform.members(transform.samples(events), transform.timings(events), settings)
    assert by(people, "member_id")["b"]["starved"] is False


ONE_LATE = SCENES.add(row for row in starving(3, 11) if row["time"] != at(6))
TWO_LATE = SCENES.add(row for row in starving(3, 11) if row["time"] not in (at(6), at(7)))


def test_no_demand_ends_a_stretch(found: Tables) -> None:
    assert found.members_of(TWO_LATE)["b"]["starvation_ms"] == 4_000
    # One late sample is forgiven.
    assert found.members_of(ONE_LATE)["b"]["starvation_ms"] == 8_000


NOTHING_FOR_SIX_SECONDS = SCENES.add(
    row | ({"got": 0} if at(6) <= row["time"] < at(12) else {}) for row in starving(5, 14)
)


def test_while_nobody_gets_anything_nobody_starves(found: Tables) -> None:
    members = found.members_of(NOTHING_FOR_SIX_SECONDS)
    # Ten seconds, less the six in which there was nothing; not two stretches.
    assert members["b"]["starvation_ms"] == 4_000
    assert members["a"]["starvation_ms"] == 0
    assert not members["b"]["starved"]


IN_TURN = SCENES.add(
    sample(second, f"m{place:02}", 5, 1 if second % 12 == place else 0)
    for second in range(1, 49)
    for place in range(12)
)


def test_it_was_not_the_members_turn(found: Tables) -> None:
    """One record a second for twelve members: each waits eleven seconds, fairly."""
    assert [row["starved"] for row in found.members_of(IN_TURN).values()] == [False] * 12


JUST_COME = SCENES.add(
    [
        *(sample(second, "a", 5, 5) for second in range(1, 21)),
        *(sample(20, "b", 5, 0), handed(1, "a", 5)),
    ]
)


def test_who_has_just_come_is_not_starved(found: Tables) -> None:
    """It joined in the last second, and it was not served yet."""
    members = found.members_of(JUST_COME)
    a, b = members["a"], members["b"]
    assert (b["starved"], b["starvation_ms"]) == (False, 1_000)
    assert (b["records"], b["share"], b["fair_part"]) == (0, 0.0, 0.0)
    assert (a["starved"], a["share"]) == (False, 1.0)
    # 100 of 97.5 that would have been fair.
    assert a["fair_part"] == pytest.approx(100 / 97.5)


UNSERVED = [sample(second, "b", 5, 0) for second in range(1, 9)]
SERVED = [sample(second, "a", 5, 5) for second in range(1, 9)]
NOTHING_THERE = SCENES.add(UNSERVED)
NOTHING_WANTED = SCENES.add([*SERVED, *(row | {"demand": 0} for row in UNSERVED)])
NOTHING_GOT = SCENES.add([*SERVED, *UNSERVED])


def test_who_gets_nothing_where_there_is_nothing_does_not_starve(found: Tables) -> None:
    assert not found.members_of(NOTHING_THERE)["b"]["starved"]
    assert not found.members_of(NOTHING_WANTED)["b"]["starved"]
    member = found.members_of(NOTHING_GOT)["b"]
    assert (member["starved"], member["starvation_ms"]) == (True, 8_000)
    assert member["starved_since"] == naive(0)


GOT = {"a": 77, "b": 12, "c": 11}
ONE_AFTER_THE_OTHER = SCENES.add(
    [
        *(
            sample(1 + 10 * place + second, member, 100, records)
            for place, (member, records) in enumerate(GOT.items())
            for second in range(10)
        ),
        *(handed(1, member, 10 * records) for member, records in GOT.items()),
    ]
)


def test_members_one_after_the_other_are_compared_with_nobody(found: Tables) -> None:
    """Of three that never met one got 77 %: each got all that there was while it was there."""
    whole = found.windows_of(ONE_AFTER_THE_OTHER)["g", None, None, None]
    assert (whole["jain"], whole["top_share"]) == (pytest.approx(1.0), 0.77)
    parts = [row["fair_part"] for row in found.members_of(ONE_AFTER_THE_OTHER).values()]
    assert parts == pytest.approx([1.0] * 3)


TWO_STRETCHES = SCENES.add(
    row | ({"got": 0} if row["member_id"] == "b" and row["time"] >= at(13) else {})
    for row in starving(3, 8)
)


def test_the_longest_stretch_counts(found: Tables) -> None:
    member = found.members_of(TWO_STRETCHES)["b"]
    assert (member["starvation_ms"], member["starved_since"]) == (8_000, naive(12))
    assert (member["first_seen"], member["last_seen"]) == (naive(0), naive(19))


WAITED = SCENES.add(
    [
        handed(1, "a", 98, available_ms=10),
        handed(2, "a", 1, available_ms=50),
        handed(3, "a", 1, available_ms=90),
        handed(4, "a", 1_000),  # not known
        handed(5, "b", 7, available_ms=None),
    ]
)


def test_waiting_times_are_weighted_by_records(found: Tables) -> None:
    members = found.members_of(WAITED)
    a = members["a"]
    assert a["dwell_p50_ms"] == 10
    assert a["dwell_p99_ms"] == pytest.approx(50.4)
    assert a["records"] == 1_100
    assert members["b"]["dwell_p50_ms"] is None
    assert a["client_id"] == "client-a"
    assert a["demand"] is None
    assert a["starved"] is False


HELD = SCENES.add(
    [
        change(1, "accepted", "a", 3, held_ms=100),
        change(1, "expired", "a", 1, held_ms=500),
        change(1, "renewed", "a", 9, held_ms=10_000),
        change(1, "accepted", "a", 5),
        change(1, "gap", "a", 0),
    ]
)


def test_held_time_is_of_what_ended(found: Tables) -> None:
    member = found.members_of(HELD)["a"]
    assert member["held_ms"] == pytest.approx(200)
    assert (member["records"], member["share"]) == (0, None)


def window(second: float, partition: int, interval_ms: int) -> Row:
    """A sample of a share-partition with a window of 100 records."""
    placed = {"topic": "t", "topic_id": "x", "partition": partition}
    return event("partition", second, window_max=100, interval_ms=interval_ms, **placed)


def holding(second: float, a: int, b: int, **values: Any) -> list[Row]:
    """Samples of two members that hold so many records."""
    return [sample(second, name, 5, 5, held=n, **values) for name, n in (("a", a), ("b", b))]


OVER_SHARE = SCENES.add(
    # The second sample has no window to compare with.
    [*(window(1, p, 1_000) for p in (0, 1)), *holding(1, 101, 100), *holding(2, 1_000, 1)]
)
EVERY_FIVE_SECONDS = SCENES.add(
    [
        *(window(s, p, 5_000) for s in (5, 10) for p in (0, 1)),
        # Another owner, whose samples come at other moments.
        *(window(s, 2, 5_000) for s in (3, 8, 13)),
        *(row for second in range(1, 11) for row in holding(second, 151, 150)),
    ]
)
TENTHS = [row for n in range(10) for row in holding(0.1 + n / 10, 60, 40, interval_ms=100)]
IN_PARTS = SCENES.add([window(1, 0, 100), *TENTHS])


@pytest.mark.parametrize(
    ("scene", "over_share_ms"),
    [(OVER_SHARE, 1_000), (EVERY_FIVE_SECONDS, 10_000), (IN_PARTS, 1_000)],
    ids=["a second", "a window that is sampled every five seconds", "parts of a second"],
)
def test_who_held_more_than_its_share(found: Tables, scene: int, over_share_ms: int) -> None:
    members = found.members_of(scene)
    assert [members[name]["over_share_ms"] for name in "ab"] == [over_share_ms, 0]


# -- completeness ---------------------------------------------------------------------------------


COUNTED = SCENES.add(
    [
        *(handed(1, "a", 1, change_sequence=n) for n in (5, 5, 6, 63, 64, 65, 127, 128, 1_000)),
        *(handed(1, "a", 1, partition=1, change_sequence=n) for n in range(1, 200)),
        handed(1, "a", 1, partition=2),
    ]
)


def test_changes_are_counted_once_each(found: Tables) -> None:
    rows = by(found.census[COUNTED], "partition")
    assert [(rows[p]["seen"], rows[p]["expected"]) for p in (0, 1, 2)] == [
        (8, 996),
        (199, 199),
        (0, 0),
    ]
    assert rows[0]["events"] == 9


NEWEST = {"topic": "t", "topic_id": "0" * 32, "partition": 0}
BOTH_ENDS = SCENES.add(
    [
        event("partition", 0, change_sequence=10, **NEWEST),
        handed(1, "a", 1, change_sequence=13),
        event("partition", 2, change_sequence=13, **NEWEST),
        handed(3, "a", 1, change_sequence=14),
        event("partition", 4, change_sequence=17, **NEWEST),
    ]
)
IDLE = SCENES.add(event("partition", s, change_sequence=8, **NEWEST) for s in (0, 1))


def test_samples_show_what_is_missing_at_both_ends(found: Tables) -> None:
    # 11 to 17; a sample is no proof of an event.
    assert found.lives(BOTH_ENDS) == [(2, 7)]
    assert found.lives(IDLE) == [(0, 0)]


MADE_ANEW = SCENES.add(
    [
        *(handed(1, "a", 1, change_sequence=n, topic_id="old") for n in (100, 101)),
        *(handed(2, "a", 1, change_sequence=n, topic_id="new") for n in (0, 1)),
    ]
)


def test_a_topic_made_anew_is_another_share_partition(found: Tables) -> None:
    assert found.lives(MADE_ANEW) == [(2, 2)] * 2


def deleted(seconds: float, **values: Any) -> Row:
    return event("group", seconds, event="deleted", **values)


FIRST = [handed(1, "a", 1, change_sequence=n) for n in range(400, 500)]
SECOND = [handed(3, "a", 1, change_sequence=n) for n in range(1, 51)]
TOPIC_DELETED = SCENES.add([*FIRST, deleted(2, topic="t"), *SECOND])
OTHERS_DELETED = [
    SCENES.add([*FIRST, other, *SECOND])
    for other in (deleted(2, topic="u"), deleted(2, group_id="h"))
]


def test_changes_that_begin_anew_after_a_deletion_are_counted_by_themselves(found: Tables) -> None:
    assert found.lives(TOPIC_DELETED) == [(50, 50), (100, 100)]
    # Another topic's, and another group's.
    assert [found.lives(scene) for scene in OTHERS_DELETED] == [[(150, 499)]] * 2


LOST_IN_THE_FIRST_LIFE = SCENES.add(
    [
        *(handed(1, "a", 1, change_sequence=n) for n in range(1, 101) if n % 10),
        deleted(2),
        *(handed(3, "a", 1, change_sequence=n) for n in range(1, 101)),
    ]
)


def test_a_loss_is_not_hidden_by_the_numbers_of_another_life(found: Tables) -> None:
    assert found.lives(LOST_IN_THE_FIRST_LIFE) == [(90, 99), (100, 100)]


# -- groups ---------------------------------------------------------------------------------------


OF_A_GROUP = [
    *starving(5, 12),
    *(
        handed(row["time"].second - 0.5, row["member_id"], row["got"], available_ms=10)
        for row in starving(5, 12)
        if row["got"]
    ),
    handed(1, "a", 1, partition=1, change_sequence=1),
    handed(1, "a", 1, partition=1, change_sequence=3),
    event("lost", 2, records=4),
]
A_GROUP = SCENES.add(OF_A_GROUP)


def test_a_group_in_figures(found: Tables) -> None:
    row = found.groups_of(A_GROUP)["g"]
    assert (row["members"], row["starved"], row["starved_members"]) == (2, 1, ["b"])
    assert row["jain"] == pytest.approx(index(starving(5, 12)))
    assert row["records"] == 462
    assert row["dwell_p99_ms"] == 10
    assert (row["complete"], row["lost"], row["incomplete_partitions"]) == (2 / 3, 4, 1)
    assert (row["changes_seen"], row["changes_expected"], row["partitions"]) == (2, 3, 2)
    assert row["worst_jain"] <= row["jain"]
    assert row["worst_window"] in {naive(0), naive(10)}
    assert row["events"] == len(OF_A_GROUP)


def test_what_is_lost_of_no_group_is_told_by_itself(spark: SparkSession) -> None:
    rows = [event("lost", 2, records=4), event("lost", 3, records=9, group_id="")]
    counted = census.census(frame(spark, rows))
    assert census.result_fields(counted) == {"lost": 9, "schema_version": 1, "twice": 0}
    assert list(by(census.completeness(counted, ["group_id"]), "group_id")) == ["g"]


FEW = SCENES.add(
    [
        sample(1, "a", 5, 5, group_id="one"),
        handed(0.5, "a", 5, group_id="one", change_sequence=1),
        handed(1, "a", 5, group_id="unmeasured"),
        event("group", 1, event="paused", group_id="empty"),
        sample(1, "a", 5, 0, group_id="idle"),
    ]
)


def test_groups_of_one_and_of_none(found: Tables) -> None:
    groups = found.groups_of(FEW)
    named = [groups[name] for name in ("one", "unmeasured", "empty", "idle")]
    assert len(groups) == len(named)
    assert [row["jain"] for row in named] == [1.0, None, None, 1.0]
    assert [row["members"] for row in named] == [1, 1, 0, 1]
    assert [row["starved"] for row in named] == [0] * 4
    assert [row["starved_members"] for row in named] == [[]] * 4
    assert [row["complete"] for row in named] == [1.0] * 4
    assert (groups["one"]["gini"], groups["one"]["top_share"]) == (0.0, 1.0)
    assert (groups["empty"]["gini"], groups["idle"]["gini"]) == (None, 0.0)


MANY = transform.LISTED_MAX + 3
MANY_STARVE = SCENES.add(
    [
        *(sample(second, "a", 9 * MANY, 9 * MANY) for second in range(1, 9)),
        *(
            sample(s, f"m{i:03}", 9, 0)
            for i in range(MANY)
            for s in range(1, 7 if i < MANY - 5 else 9)
        ),
    ]
)


def test_starved_members_are_listed_to_a_limit(found: Tables) -> None:
    row = found.groups_of(MANY_STARVE)["g"]
    assert row["starved"] == MANY
    longest, others = range(MANY - 5, MANY), range(transform.LISTED_MAX - 5)
    assert row["starved_members"] == [f"m{i:03}" for i in (*longest, *others)], "longest first"


def test_no_events_at_all(spark: SparkSession) -> None:
    events = frame(spark, [])
    member_samples, histogram = transform.samples(events), transform.timings(events)
    rows = transform.windows(member_samples, transform.acquired(events, SETTINGS), SETTINGS)
    people = transform.members(member_samples, histogram, SETTINGS)
    assert dicts(transform.groups(rows, people, histogram, census.census(events))) == []


# -- plans ----------------------------------------------------------------------------------------


def explained(found: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    found.explain(mode="extended")
    return capsys.readouterr().out


def test_no_row_passes_through_python(
    adaptive: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    events = frame(adaptive, [handed(1, "a", 5), sample(1, "a", 5, 5)])
    member_samples, histogram = transform.samples(events), transform.timings(events)
    counted = census.census(events)
    rows = transform.windows(member_samples, transform.acquired(events, SETTINGS), SETTINGS)
    people = transform.members(member_samples, histogram, SETTINGS)
    for found in (rows, people, transform.groups(rows, people, histogram, counted), counted):
        plan = explained(found, capsys)
        physical = plan[plan.index("== Physical Plan ==") :]
        assert "AdaptiveSparkPlan" in physical
        assert "Exchange" in physical
        for word in ("Python", "InPandas", "InArrow", "CartesianProduct", "NestedLoop"):
            assert word not in plan
    # One exchange between the cells and the windows: partitioned by group and window.
    counting = explained(counted, capsys)
    assert "SortAggregate" not in counting
    assert "ObjectHashAggregate" not in counting


def test_a_python_function_would_be_seen(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    twice = F.udf(lambda value: value, "string")
    assert "Python" in explained(frame(spark, []).select(twice("member_id")), capsys)
