"""A launch in words: how it ended first, then region after region what was asked and answered.

Owns the words for what stands in a fleetcast.launch_story, and no form. It is pure: standard
library and msgspec only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from fleetcast.durations import age_text
from fleetcast.errors import InternalError
from fleetcast.selection import is_blind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fleetcast.launch_story import Ask, AskOutcome, LaunchStory, RegionEnd
    from fleetcast.read_answers import LaunchAnswer, LaunchedInstance
    from fleetcast.selection import RankedRegion

Tone: TypeAlias = Literal["plain", "strong", "good", "bad", "doubtful"]

_IDS_SHOWN: Final = 8

# {node}: the node that answered.
_OUTCOMES: Final[Mapping[AskOutcome, str]] = {
    "accepted": "accepted by {node}",
    "full": "{node} was full when it arrived (a lost race, asked again at once)",
    "client_fault": "{node} says that the request itself is at fault",
    "node_fault": "{node} can't",
    "no_responders": "nobody listens, no node there has room",
    "unreachable": "the region could not be asked",
    "no_answer": "no answer, it may have happened",
    "found": "found what the request had become",
    "not_found": "no node that answered has anything of it",
    "committed": "told to boot",
    "released": "given up",
}
_OUTCOME_TONES: Final[Mapping[AskOutcome, Tone]] = {
    "accepted": "good",
    "client_fault": "bad",
    "node_fault": "bad",
    "unreachable": "doubtful",
    "no_answer": "doubtful",
}
_ENDS: Final[Mapping[RegionEnd, tuple[str, Tone]]] = {
    "placed": ("placed here", "good"),
    "no_room": ("left: {why}", "plain"),
    "not_asked": ("left, and whether it has room is not known: {why}", "doubtful"),
    "in_doubt": ("left in doubt, something may be held here: {why}", "doubtful"),
}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line. depth: how far it is indented, from 0. tone: what it means to its reader."""

    text: str
    depth: int = 0
    tone: Tone = "plain"


def tell_launch(launch: LaunchAnswer) -> list[Line]:
    """Tell a launch."""
    lines = [_headline(launch), Line(text=f"Wanted: {_wanted(launch)}."), *_end(launch)]
    if launch.story is not None:
        for index in range(len(launch.story.ranked)):
            lines += _region(launch, launch.story, index)
        if launch.story.asks_left_out:
            lines.append(Line(text=f"{launch.story.asks_left_out} more asks were not kept."))
    return lines


# --- how it ended --------------------------------------------------------------------------


def _headline(launch: LaunchAnswer) -> Line:
    words: str
    tone: Tone
    match launch.state:
        case "placed":
            words, tone = f"placed in {launch.region}", "good"
        case "refused":
            words, tone = "refused", "bad"
        case "unknown":
            words, tone = "it is not known whether it happened", "doubtful"
        case "placing":
            words, tone = "not decided", "doubtful"
    took = f" after {_ms(launch.story.took_ms)}" if launch.story else ""
    began = f"begun {_time(launch.launched_at_s)}"
    age = age_text(launch.answered_at_s - launch.launched_at_s)
    return Line(text=f"{launch.reservation_id}: {words}{took} ({began}, {age} ago)", tone=tone)


def _wanted(launch: LaunchAnswer) -> str:
    asked_n = launch.story.asks[0].count if launch.story and launch.story.asks else 0
    count = f"{launch.min_count}"
    if asked_n > launch.min_count:
        count += f" to {asked_n}"
    return f"{count} x {launch.instance_type}" + (", in one place only" if launch.pinned else "")


def _end(launch: LaunchAnswer) -> Iterator[Line]:
    story = launch.story
    if story is not None and story.error_code is not None:
        error = f"{story.error_code}: {story.error_message}"
        yield Line(text=f"The caller was told {error}", tone="bad")
        if launch.state != "unknown" and story.error_code == InternalError.code:
            found = {"placed": "its nodes have it", "refused": "no node has anything of it"}
            yield Line(text=f"Found out since: {found.get(launch.state, launch.state)}.")
    if launch.state in {"placing", "unknown"}:
        yield Line(text=_undecided(launch), tone="doubtful")
    elif story is None:
        yield Line(
            text="There is no story: its function ended before it wrote one down. What became of "
            "the launch was found out from its nodes."
        )
    yield from _instances(launch)


def _undecided(launch: LaunchAnswer) -> str:
    until_s = launch.undecided_until_s
    if until_s is not None and launch.answered_at_s < until_s:
        return (
            f"A function may be at work on it until {_time(until_s)}; what happened is written "
            "down when it ends."
        )
    return (
        "No function is at work on it any more. What became of it is found out from the nodes, "
        "by reconcile or by a retry with the same ClientToken."
    )


def _instances(launch: LaunchAnswer) -> Iterator[Line]:
    by_place: dict[str, list[LaunchedInstance]] = {}
    for instance in launch.instances:
        by_place.setdefault(_place(instance), []).append(instance)
    for place, instances in by_place.items():
        ids = [f"{one.instance_id} ({one.state or 'gone'})" for one in instances[:_IDS_SHOWN]]
        if len(instances) > _IDS_SHOWN:
            ids.append(f"and {len(instances) - _IDS_SHOWN} more")
        yield Line(text=f"{place}: {', '.join(ids)}", depth=1)


def _place(instance: LaunchedInstance) -> str:
    if instance.node is not None:
        return f"on node {instance.node}" + (f", zone {instance.zone}" if instance.zone else "")
    # A record goes an hour after its instance has ended, and its node with it.
    return "terminated over an hour ago" if instance.state is None else "may run somewhere"


# --- region after region -------------------------------------------------------------------


def _region(launch: LaunchAnswer, story: LaunchStory, index: int) -> Iterator[Line]:
    ranked = story.ranked[index]
    asks = [ask for ask in story.asks if ask.region == ranked.region]
    verdict = next((one for one in story.verdicts if one.region == ranked.region), None)
    yield Line(text=f"{index + 1}. {ranked.region}: {_score(ranked)}", tone="strong")
    yield Line(text=_why_here(story, index, pinned=launch.pinned), depth=1)
    for ask in asks:
        tone = _OUTCOME_TONES.get(ask.outcome, "plain")
        yield Line(text=_ask(ask), depth=1, tone=tone)
    if verdict is not None:
        words, tone = _ENDS[verdict.end]
        yield Line(text=words.format(why=verdict.why), depth=1, tone=tone)
    elif asks:
        yield Line(text="the launch ended here", depth=1, tone="bad")
    else:
        yield Line(text="not tried, the launch had ended", depth=1)


def _score(place: RankedRegion) -> str:
    if place.score is None or place.age_s is None:
        return "no score"
    score = f"{place.score:,.4f}".rstrip("0").rstrip(".")
    words = f"score {score}, {place.freshness} ({age_text(place.age_s)} old)"
    if place.missing_scored_signals:
        words += f", {place.missing_scored_signals} of its load signals not read"
    return words


def _why_here(story: LaunchStory, index: int, *, pinned: bool) -> str:
    """Say why a region is where it is in the order, which is selection.rank_regions'."""
    place = story.ranked[index]
    if len(story.ranked) == 1:
        return "tried alone: " + (
            "the caller asked for this place" if pinned else "the only region"
        )
    if index == 0:
        return f"tried first: {_why_first(story)}"
    before = story.ranked[index - 1]
    if place.region in story.asked_last and before.region not in story.asked_last:
        return "asked last: some seconds before, nobody here had room for this type"
    return f"tried after {before.region}: {_why_behind(story, place, before)}"


def _why_first(story: LaunchStory) -> str:
    first, *others = story.ranked
    if story.asked_last and first.region not in story.asked_last:
        return "the best of those that did not lack room lately"
    if is_blind(story.ranked):
        return "the default region leads when no region's load is known"
    as_good = [other.region for other in others if _is_ahead(other, first)]
    if as_good:
        return f"about as good as {as_good[0]}, launches are spread over such regions"
    return "the lowest score" + ("" if first.freshness == "fresh" else ", though an old one")


def _why_behind(story: LaunchStory, place: RankedRegion, before: RankedRegion) -> str:
    if _is_ahead(place, before):
        if is_blind(story.ranked) and before is story.ranked[0]:
            return "the default region leads when no region's load is known"
        return "about as good, launches are spread over such regions"
    if place.freshness != before.freshness:
        return "no score" if place.score is None else f"a {place.freshness} score"
    if place.missing_scored_signals != before.missing_scored_signals:
        return "other load signals were not read"
    if place.score == before.score:
        return "no score either" if place.score is None else "as good"
    return "a higher score, which is worse"


def _is_ahead(one: RankedRegion, other: RankedRegion) -> bool:
    """Tell whether one has the better score of two that are as fresh and miss as many signals."""
    return (
        (one.freshness, one.missing_scored_signals)
        == (other.freshness, other.missing_scored_signals)
        and one.score is not None
        and other.score is not None
        and one.score < other.score
    )


def _ask(ask: Ask) -> str:
    outcome = _OUTCOMES[ask.outcome].format(node=f"node {ask.node}" if ask.node else "a node")
    instances = "1 instance" if ask.count == 1 else f"{ask.count} instances"
    detail = f": {ask.detail}" if ask.detail else ""
    return (
        f"+{_ms(ask.began_ms)}  {ask.subject}, {instances}, attempt {ask.attempt}: "
        f"{outcome}{detail} [{_ms(ask.took_ms)}]"
    )


def _ms(duration_ms: float) -> str:
    return f"{duration_ms:,.1f} ms"


def _time(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
