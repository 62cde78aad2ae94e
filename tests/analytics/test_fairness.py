"""The fairness job's tables on small frames, against results by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sharecoord.analytics import census
from sharecoord.analytics.fairness import transform
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.core.dispatch.fair_share import fair_level
from tests.analytics.support import Row, at, by, change, dicts, event, frame, handed, sample
from tests.fairness import fairness_over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = FairnessSettings()


def windows(spark: SparkSession, rows: list[Row]) -> dict[Any, Row]:
    events = frame(spark, rows)
    found = transform.windows(
        transform.samples(events), transform.acquired(events, SETTINGS), SETTINGS
    )
    return by(found, "group_id", "topic", "partition", "window_start")


def members(spark: SparkSession, rows: list[Row], **given: int) -> dict[str, Row]:
    events, settings = frame(spark, rows), FairnessSettings(**given)
    found = transform.members(transform.samples(events), transform.timings(events), settings)
    return by(found, "member_id")


def groups(spark: SparkSession, rows: list[Row]) -> dict[str, Row]:
    events = frame(spark, rows)
    member_samples, histogram = transform.samples(events), transform.timings(events)
    found = transform.groups(
        transform.windows(member_samples, transform.acquired(events, SETTINGS), SETTINGS),
        transform.members(member_samples, histogram, SETTINGS),
        histogram,
        census.census(events),
    )
    return by(found, "group_id")


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


def test_windows_and_the_whole_range(spark: SparkSession) -> None:
    rows = [
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
    found = windows(spark, rows)
    assert len(found) == 3 + 2 + 3
    first = found["g", None, None, naive(0)]
    assert (first["demand"], first["got"]) == (64, 30)
    assert first["level"] == pytest.approx(3 * fair_level([10, 10], [10, 0]))
    assert first["jain"] == pytest.approx(index(rows[:6])) == pytest.approx(0.5)
    assert (first["members"], first["wanting"], first["window_ms"]) == (2, 2, 10_000)
    assert (first["records"], first["records_jain"], first["gini"]) == (30, 0.5, 0.5)
    second = found["g", None, None, naive(10)]
    assert (second["jain"], second["members"], second["top_share"]) == (1.0, 1, 1.0)
    whole = found["g", None, None, None]
    assert whole["jain"] == pytest.approx(index([row for row in rows if row["kind"] == "member"]))
    assert (whole["records"], whole["records_jain"], whole["window_ms"]) == (60, 1.0, None)
    # Who got nothing of a partition counts there as 0.
    place = found["g", "t", 0, naive(0)]
    assert (place["records"], place["members"], place["records_jain"]) == (20, 2, 0.5)
    assert (place["jain"], place["demand"], place["level"], place["wanting"]) == (None,) * 4
    assert found["g", "t", 0, None]["records_jain"] == pytest.approx(50**2 / (2 * (20**2 + 30**2)))


def test_samples_of_several_coordinators_are_added_up(spark: SparkSession) -> None:
    rows = [
        sample(1.0, "a", 5, 5),
        sample(1.3, "a", 5, 0, coordinator_id="c2"),
        sample(1.3, "b", 10, 5, coordinator_id="c2"),
    ]
    found = transform.samples(frame(spark, rows))
    assert {(row["member_id"], row["demand"], row["got"]) for row in dicts(found)} == {
        ("a", 10, 5),
        ("b", 10, 5),
    }
    assert windows(spark, rows)["g", None, None, None]["jain"] == 1.0


def test_groups_do_not_mix(spark: SparkSession) -> None:
    rows = [sample(1, "a", 5, 5), sample(1, "a", 5, 0, group_id="h"), handed(1, "a", 5)]
    found = windows(spark, rows)
    assert found["h", None, None, None]["got"] == 0
    assert found["h", None, None, None]["jain"] == 1.0
    assert found["h", None, None, None]["records"] == 0
    assert found["g", None, None, None]["records"] == 5


def test_without_samples_nobody_knows_who_wanted_something(spark: SparkSession) -> None:
    found = windows(spark, [handed(1, "a", 5), handed(1, "b", 15)])
    whole = found["g", None, None, None]
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


@pytest.mark.parametrize(("last", "starved"), [(8, False), (9, True)])
def test_five_seconds_without_records(spark: SparkSession, last: int, *, starved: bool) -> None:
    found = members(spark, starving(5, last))["b"]
    assert found["starved"] is starved
    assert found["starvation_ms"] == (last - 4) * 1_000
    assert found["starved_since"] == (naive(4) if starved else None)
    assert members(spark, starving(5, last), starved_after_ms=60_000)["b"]["starved"] is False


def test_no_demand_ends_a_stretch(spark: SparkSession) -> None:
    rows = [row for row in starving(3, 11) if row["time"] not in (at(6), at(7))]
    assert members(spark, rows)["b"]["starvation_ms"] == 4_000
    # One late sample is forgiven.
    rows = [row for row in starving(3, 11) if row["time"] != at(6)]
    assert members(spark, rows)["b"]["starvation_ms"] == 8_000


def test_while_nobody_gets_anything_nobody_starves(spark: SparkSession) -> None:
    rows = starving(5, 14)
    for row in rows:
        if row["time"] in {at(second) for second in range(6, 12)}:
            row["got"] = 0
    found = members(spark, rows)
    # Ten seconds, less the six in which there was nothing; not two stretches.
    assert found["b"]["starvation_ms"] == 4_000
    assert found["a"]["starvation_ms"] == 0
    assert not found["b"]["starved"]


def test_it_was_not_the_members_turn(spark: SparkSession) -> None:
    """One record a second for twelve members: each waits eleven seconds, fairly."""
    rows = [
        sample(second, f"m{place:02}", 5, 1 if second % 12 == place else 0)
        for second in range(1, 49)
        for place in range(12)
    ]
    found = members(spark, rows)
    assert [row["starved"] for row in found.values()] == [False] * 12


def test_who_has_just_come_is_not_starved(spark: SparkSession) -> None:
    """It joined in the last second, and it was not served yet."""
    rows = [sample(second, "a", 5, 5) for second in range(1, 21)]
    rows += [sample(20, "b", 5, 0), handed(1, "a", 5)]
    found = members(spark, rows)
    assert (found["b"]["starved"], found["b"]["starvation_ms"]) == (False, 1_000)
    assert (found["b"]["records"], found["b"]["share"], found["b"]["fair_part"]) == (0, 0.0, 0.0)
    assert (found["a"]["starved"], found["a"]["share"]) == (False, 1.0)
    # 100 of 97.5 that would have been fair.
    assert found["a"]["fair_part"] == pytest.approx(100 / 97.5)


def test_who_gets_nothing_where_there_is_nothing_does_not_starve(spark: SparkSession) -> None:
    rows = [sample(second, "b", 5, 0) for second in range(1, 9)]
    assert not members(spark, rows)["b"]["starved"]
    served = [sample(second, "a", 5, 5) for second in range(1, 9)]
    assert not members(spark, [*served, *(row | {"demand": 0} for row in rows)])["b"]["starved"]
    found = members(spark, [*served, *rows])["b"]
    assert (found["starved"], found["starvation_ms"]) == (True, 8_000)
    assert found["starved_since"] == naive(0)


def test_members_one_after_the_other_are_compared_with_nobody(spark: SparkSession) -> None:
    """Of three that never met one got 77 %: each got all that there was while it was there."""
    got = {"a": 77, "b": 12, "c": 11}
    rows = [
        sample(1 + 10 * place + second, member, 100, records)
        for place, (member, records) in enumerate(got.items())
        for second in range(10)
    ]
    rows += [handed(1, member, 10 * records) for member, records in got.items()]
    whole = windows(spark, rows)["g", None, None, None]
    assert (whole["jain"], whole["top_share"]) == (pytest.approx(1.0), 0.77)
    parts = [row["fair_part"] for row in members(spark, rows).values()]
    assert parts == pytest.approx([1.0] * 3)


def test_the_longest_stretch_counts(spark: SparkSession) -> None:
    rows = starving(3, 8)
    for row in rows:
        if row["member_id"] == "b" and row["time"] >= at(13):
            row["got"] = 0
    found = members(spark, rows)["b"]
    assert (found["starvation_ms"], found["starved_since"]) == (8_000, naive(12))
    assert (found["first_seen"], found["last_seen"]) == (naive(0), naive(19))


def test_waiting_times_are_weighted_by_records(spark: SparkSession) -> None:
    rows = [
        handed(1, "a", 98, available_ms=10),
        handed(2, "a", 1, available_ms=50),
        handed(3, "a", 1, available_ms=90),
        handed(4, "a", 1_000),  # not known
        handed(5, "b", 7, available_ms=None),
    ]
    found = members(spark, rows)
    assert found["a"]["dwell_p50_ms"] == 10
    assert found["a"]["dwell_p99_ms"] == pytest.approx(50.4)
    assert found["a"]["records"] == 1_100
    assert found["b"]["dwell_p50_ms"] is None
    assert found["a"]["client_id"] == "client-a"
    assert found["a"]["demand"] is None
    assert found["a"]["starved"] is False


def test_held_time_is_of_what_ended(spark: SparkSession) -> None:
    rows = [
        change(1, "accepted", "a", 3, held_ms=100),
        change(1, "expired", "a", 1, held_ms=500),
        change(1, "renewed", "a", 9, held_ms=10_000),
        change(1, "accepted", "a", 5),
        change(1, "gap", "a", 0),
    ]
    found = members(spark, rows)["a"]
    assert found["held_ms"] == pytest.approx(200)
    assert (found["records"], found["share"]) == (0, None)


def test_who_held_more_than_its_share(spark: SparkSession) -> None:
    rows = [
        event(
            "partition", 1, topic="t", topic_id="x", partition=p, window_max=100, interval_ms=1_000
        )
        for p in (0, 1)
    ]
    rows += [sample(1, "a", 5, 5, held=101), sample(1, "b", 5, 5, held=100)]
    rows += [sample(2, "a", 5, 5, held=1_000), sample(2, "b", 5, 5, held=1)]
    found = members(spark, rows)
    # The second sample has no window to compare with.
    assert [found[name]["over_share_ms"] for name in "ab"] == [1_000, 0]


def test_a_window_that_is_sampled_every_five_seconds_counts_in_all_of_them(
    spark: SparkSession,
) -> None:
    placed = {"topic": "t", "topic_id": "x", "window_max": 100, "interval_ms": 5_000}
    rows = [event("partition", s, partition=p, **placed) for s in (5, 10) for p in (0, 1)]
    # Another owner, whose samples come at other moments.
    rows += [event("partition", s, partition=2, **placed) for s in (3, 8, 13)]
    for second in range(1, 11):
        rows += [sample(second, "a", 5, 5, held=151), sample(second, "b", 5, 5, held=150)]
    found = members(spark, rows)
    assert [found[name]["over_share_ms"] for name in "ab"] == [10_000, 0]


def test_what_is_held_in_parts_of_a_second_is_no_more_than_in_the_whole(
    spark: SparkSession,
) -> None:
    given = {"interval_ms": 100}
    rows = [event("partition", 1, topic="t", topic_id="x", partition=0, window_max=100, **given)]
    for tenth in range(10):
        rows += [sample(0.1 + tenth / 10, "a", 5, 5, held=60, **given)]
        rows += [sample(0.1 + tenth / 10, "b", 5, 5, held=40, **given)]
    found = members(spark, rows)
    assert [found[name]["over_share_ms"] for name in "ab"] == [1_000, 0]


# -- completeness ---------------------------------------------------------------------------------


def counted(spark: SparkSession, rows: list[Row]) -> dict[int, Row]:
    return by(census.census(frame(spark, rows)), "partition")


def test_changes_are_counted_once_each(spark: SparkSession) -> None:
    rows = [handed(1, "a", 1, change_sequence=n) for n in (5, 5, 6, 63, 64, 65, 127, 128, 1_000)]
    rows += [handed(1, "a", 1, partition=1, change_sequence=n) for n in range(1, 200)]
    rows += [handed(1, "a", 1, partition=2)]
    found = counted(spark, rows)
    assert [(found[p]["seen"], found[p]["expected"]) for p in (0, 1, 2)] == [
        (8, 996),
        (199, 199),
        (0, 0),
    ]
    assert found[0]["events"] == 9


def test_samples_show_what_is_missing_at_both_ends(spark: SparkSession) -> None:
    newest = {"topic": "t", "topic_id": "0" * 32, "partition": 0}
    rows = [
        event("partition", 0, change_sequence=10, **newest),
        handed(1, "a", 1, change_sequence=13),
        event("partition", 2, change_sequence=13, **newest),
        handed(3, "a", 1, change_sequence=14),
        event("partition", 4, change_sequence=17, **newest),
    ]
    found = counted(spark, rows)[0]
    # 11 to 17; a sample is no proof of an event.
    assert (found["seen"], found["expected"]) == (2, 7)
    idle = counted(spark, [event("partition", s, change_sequence=8, **newest) for s in (0, 1)])[0]
    assert (idle["seen"], idle["expected"]) == (0, 0)


def test_a_topic_made_anew_is_another_share_partition(spark: SparkSession) -> None:
    rows = [handed(1, "a", 1, change_sequence=n, topic_id="old") for n in (100, 101)]
    rows += [handed(2, "a", 1, change_sequence=n, topic_id="new") for n in (0, 1)]
    found = census.census(frame(spark, rows))
    assert [(row["seen"], row["expected"]) for row in dicts(found)] == [(2, 2)] * 2


def deleted(seconds: float, **values: Any) -> Row:
    return event("group", seconds, event="deleted", **values)


def lives(spark: SparkSession, rows: list[Row]) -> list[tuple[int, int]]:
    """Changes seen and expected, by share-partition and life."""
    events = frame(spark, rows)
    known = census.with_lives(events, census.deletions(events))
    found = [row for row in dicts(census.census(known)) if row["partition"] is not None]
    return sorted((row["seen"], row["expected"]) for row in found)


def test_changes_that_begin_anew_after_a_deletion_are_counted_by_themselves(
    spark: SparkSession,
) -> None:
    first = [handed(1, "a", 1, change_sequence=n) for n in range(400, 500)]
    second = [handed(3, "a", 1, change_sequence=n) for n in range(1, 51)]
    rows = [*first, deleted(2, topic="t"), *second]
    assert lives(spark, rows) == [(50, 50), (100, 100)]
    # Another topic's, and another group's.
    for other in (deleted(2, topic="u"), deleted(2, group_id="h")):
        assert lives(spark, [*first, other, *second]) == [(150, 499)]


def test_a_loss_is_not_hidden_by_the_numbers_of_another_life(spark: SparkSession) -> None:
    first = [handed(1, "a", 1, change_sequence=n) for n in range(1, 101) if n % 10]
    second = [handed(3, "a", 1, change_sequence=n) for n in range(1, 101)]
    assert lives(spark, [*first, deleted(2), *second]) == [(90, 99), (100, 100)]


# -- groups ---------------------------------------------------------------------------------------


def test_a_group_in_figures(spark: SparkSession) -> None:
    rows = [
        *starving(5, 12),
        *(
            handed(row["time"].second - 0.5, row["member_id"], row["got"], available_ms=10)
            for row in starving(5, 12)
            if row["got"]
        ),
        handed(1, "a", 1, partition=1, change_sequence=1),
        handed(1, "a", 1, partition=1, change_sequence=3),
        event("lost", 2, records=4),
        event("lost", 3, records=9, group_id=""),
    ]
    found = groups(spark, rows)
    assert list(found) == ["g"]
    row = found["g"]
    assert (row["members"], row["starved"], row["starved_members"]) == (2, 1, ["b"])
    assert row["jain"] == pytest.approx(index(starving(5, 12)))
    assert row["records"] == 462
    assert row["dwell_p99_ms"] == 10
    assert (row["complete"], row["lost"], row["incomplete_partitions"]) == (2 / 3, 4, 1)
    assert (row["changes_seen"], row["changes_expected"], row["partitions"]) == (2, 3, 2)
    assert row["worst_jain"] <= row["jain"]
    assert row["worst_window"] in {naive(0), naive(10)}
    assert row["events"] == len(rows) - 1
    fields = census.result_fields(census.census(frame(spark, rows)))
    assert fields == {"lost": 9, "schema_version": 1, "twice": 0}


def test_groups_of_one_and_of_none(spark: SparkSession) -> None:
    rows = [
        sample(1, "a", 5, 5, group_id="one"),
        handed(0.5, "a", 5, group_id="one", change_sequence=1),
        handed(1, "a", 5, group_id="unmeasured"),
        event("group", 1, event="paused", group_id="empty"),
        sample(1, "a", 5, 0, group_id="idle"),
    ]
    found = groups(spark, rows)
    assert [found[name]["jain"] for name in ("one", "unmeasured", "empty", "idle")] == [
        1.0,
        None,
        None,
        1.0,
    ]
    assert [found[name]["members"] for name in ("one", "unmeasured", "empty", "idle")] == [
        1,
        1,
        0,
        1,
    ]
    assert [row["starved"] for row in found.values()] == [0] * 4
    assert [row["starved_members"] for row in found.values()] == [[]] * 4
    assert [row["complete"] for row in found.values()] == [1.0] * 4
    assert (found["one"]["gini"], found["one"]["top_share"]) == (0.0, 1.0)
    assert (found["empty"]["gini"], found["idle"]["gini"]) == (None, 0.0)


def test_starved_members_are_listed_to_a_limit(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transform, "LISTED_MAX", 2)
    rows = [sample(second, "a", 9, 9) for second in range(1, 9)]
    rows += [sample(s, f"m{i}", 9, 0) for i in range(1, 4) for s in range(1, 5 + i)]
    row = groups(spark, rows)["g"]
    assert row["starved"] == 3
    assert row["starved_members"] == ["m3", "m2"], "the longest first"


def test_no_events_at_all(spark: SparkSession) -> None:
    assert groups(spark, []) == {}


# -- plans ----------------------------------------------------------------------------------------


def explained(found: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    found.explain(mode="extended")
    return capsys.readouterr().out


def test_no_row_passes_through_python(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    events = frame(spark, [handed(1, "a", 5), sample(1, "a", 5, 5)])
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
