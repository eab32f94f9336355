"""What `nightschool plan` says: the forecast of a run, what it rests on, or why it is refused."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nightschool.cli.answer import Answer, Call, Table, have_store
from nightschool.cli.naming import find_agent
from nightschool.cli.settings import overridden, study_config
from nightschool.curation.dataset import Wanted
from nightschool.dashboard.formatting import duration, number, plural, short_id, size
from nightschool.dashboard.sentences import objective as spoken
from nightschool.errors import InputError, MissingError
from nightschool.models.shapes import find_shape
from nightschool.objectives.catalog import find_objective
from nightschool.objectives.loss import tried
from nightschool.planning.devices import HERE, Device, find_device
from nightschool.planning.forecast import Forecast, Setting, forecast
from nightschool.planning.material import (
    CHARS_PER_TOKEN,
    DIGEST,
    dataset_of_store,
    find_renderer,
    rows_of_digest,
    rows_of_file,
)
from nightschool.planning.numbers import Numbers, described
from nightschool.planning.past import Compared, compare
from nightschool.planning.remedies import Remedy, remedies
from nightschool.planning.speed import FITS, PROCESSOR, Range, spread_of
from nightschool.planning.work import Work, work_of
from nightschool.releases.aliases import BASE, current
from nightschool.training.night import course_over
from nightschool.training.plans import StudyConfig
from nightschool.types import Json


@dataclass(frozen=True, slots=True)
class Wish:
    """The run that is asked about. `numbers` describe it where there is no data; `knobs` are the backend's settings."""

    objective: str
    data: str | None
    agent: str | None
    model: str | None
    numbers: Numbers | None
    knobs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is to run. `price` of an hour; `draws`: completions are generated as well."""

    device: str
    price: float | None
    draws: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """A run's passes, how they were counted, in words, and who would be heard where people were."""

    work: Work
    how: str
    heard: Json | None = None


def answer(call: Call, wish: Wish, place: Place) -> Answer:
    """Raises: InputError, MissingError, ConfigError, and what reading the data raises."""
    config = _config(call, wish)
    shape = find_shape(config.backend.model)
    counted = _counted(call, wish, config, place.draws)
    if place.device == HERE:
        call.progress.say("Measuring this machine", always=True)
    device, dtype = find_device(place.device, config.backend.dtype)
    past = _past(call, device, dtype) if device.measured else []
    factor = spread_of([one.measured_s / one.ideal_s for one in past])
    setting = Setting(shape, device, dtype, config.backend.rank, config.backend.token_budget)
    planned = forecast(setting, counted.work, place.price, factor)
    return _told(wish, planned, counted, past)


def _config(call: Call, wish: Wish) -> StudyConfig:
    """The settings of the run: the defaults, the settings file, and what the command line says."""
    config = study_config(call.config, find_objective(wish.objective))
    return overridden(config, {"backend": {"model": wish.model or call.config.model, **wish.knobs}}, "plan")


def _counted(call: Call, wish: Wish, config: StudyConfig, draws: bool) -> Counted:
    """The passes of the run that is meant: described, in a file, of a dataset, or what the store is ready for."""
    objective = find_objective(wish.objective)
    if wish.numbers is not None:
        return Counted(described(wish.numbers, objective, config, draws), "as described")
    if draws:
        raise InputError("Nothing says what is drawn.", "Recorded replies are not drawn again.", "Add --sequences.")
    renderer, name = find_renderer((config.backend.model, call.config.model))
    budget = config.backend.token_budget
    if wish.data is not None and Path(wish.data).is_file():
        rows = rows_of_file(
            Path(wish.data), _wanted(wish.agent or call.config.agent, BASE, config), objective, renderer
        )
        return Counted(
            work_of(course_over(objective, config, rows, renderer, partial(tried, objective)), budget),
            _how(name, config),
        )
    if not have_store(call.config):
        raise MissingError(
            "There is nothing to plan for.",
            f"{wish.data} is no file." if wish.data else f"There is no store in {call.config.state}.",
            "Describe the run: nightschool plan --sequences 2000 --prompt 512 --completion 256",
        )
    with call.store() as store:
        if wish.data is not None:
            if not DIGEST.fullmatch(wish.data):
                raise MissingError(f"There is no file {wish.data}.", "It is no dataset's digest either.", "")
            rows, how, heard = rows_of_digest(store, call.config.state, wish.data), "recorded tokens", None
        else:
            with store.read() as conn:
                agent = find_agent(conn, store.tenant, wish.agent, call.config)
                anchor = current(conn, store.tenant, agent) or BASE
            dataset = dataset_of_store(store, _wanted(agent, anchor, config), objective, renderer)
            rows, how, heard = dataset.rows, _how(name, config), dataset.summary.get("influence")
    course = course_over(objective, config, rows, renderer, partial(tried, objective))
    return Counted(work_of(course, budget), how, heard)


def _wanted(agent: str, anchor: str, config: StudyConfig) -> Wanted:
    return Wanted(agent, anchor, time.time(), config.curation)


def _how(tokenizer: str | None, config: StudyConfig) -> str:
    if tokenizer is None:
        return f"an estimate: {CHARS_PER_TOKEN} characters as a token, no tokenizer is on this machine"
    return f"with the tokenizer of {tokenizer}" + ("" if tokenizer == config.backend.model else ", not the model's own")


def _past(call: Call, device: Device, dtype: str) -> list[Compared]:
    if not have_store(call.config):
        return []
    with call.store() as store:
        return compare(store, call.config.state, device, dtype)


def _told(wish: Wish, planned: Forecast, counted: Counted, past: list[Compared]) -> Answer:
    device, memory = planned.setting.device, planned.memory
    place = "here" if device.measured else f"on {device.title}"
    room = f"{size(round(memory.total))} of {size(round(device.memory_bytes))}"
    head = f"{spoken(find_objective(wish.objective).name)} on {planned.setting.shape.name}"
    evidence = [_work(planned, counted), _memory(planned), *_heard(counted.heard)]
    data = _data(planned, counted, past)
    if not planned.fits:
        found = remedies(planned)
        data["remedies"] = [asdict(one) for one in found]
        evidence.append(_remedies(found))
        sentence = f"{head} does not fit {place}: it needs {room}."
        why = "; ".join(f"{one.knob} = {one.value} would fit" for one in found) or "Nothing known here would fit."
        hint = f"nightschool plan {_option(found[0])}" if found else ""
        return Answer("plan", sentence, data, tuple(evidence), hint, exit_code=3, why=f"{why}.")
    spoken_time = _span(planned.seconds)
    cost = "" if planned.cost is None else f", at a cost of {_money(planned.cost)}"
    sentence = f"{head} fits {place}, {room}, and takes {spoken_time}{cost}."
    evidence += _error(planned, past)
    return Answer("plan", sentence, data, tuple(evidence), "nightschool train" if device.measured else "")


def _work(planned: Forecast, counted: Counted) -> Table:
    work, tokens = planned.work, number
    shown = planned.utilization
    rows = [
        ("steps", f"{tokens(round(work.steps))}"),
        ("tokens, trained", f"{tokens(round(work.trained.num))} ({counted.how})"),
        ("  of rows padded alike", f"{work.padded / work.unique:.1f} times the unique ones"),
        ("tokens, read only", tokens(round(work.read.num + work.between.num))),
        *([("tokens, drawn", tokens(round(work.drawn.num)))] if work.drawn.num else []),
        ("operations", f"{planned.operations / 1e12:,.4g} T"),
        ("share of the peak", f"{100 * shown.middle:.0f} % [{100 * shown.low:.0f}, {100 * shown.high:.0f}]"),
    ]
    return Table(tuple(rows), wraps=(1,))


def _memory(planned: Forecast) -> Table:
    names = {
        "weights": f"weights, {planned.setting.dtype}",
        "packed": "weights as the processor reads them, twice",
        "adapter": f"adapter of rank {planned.setting.rank}, gradient, moments",
        "activations": f"activations of {planned.work.largest.num_tokens:,} tokens",
        "head": "output layer, one chunk",
        "process": "process",
        "cache": "engine: weights, keys and values",
    }
    parts = asdict(planned.memory)
    rows = [(title, size(round(parts[name]))) for name, title in names.items() if parts[name]]
    return Table((*rows, ("together", size(round(planned.memory.total)))), ("memory", ""), right=(1,))


def _heard(report: Json | None) -> list[Table]:
    """Who would teach, and whose votes would wait."""
    if report is None:
        return []
    sources = ", ".join(f"{count} by {name.replace('_', ' ')}" for name, count in report["sources"].items())
    rows = [
        ("may teach", f"{report['taught']} of {report['votes']}, of {plural(report['people'], 'person', 'people')}"),
        ("of the loudest", str(report["loudest"])),
        ("sources", sources or "none"),
        *((f"held back: {reason}", str(count)) for reason, count in report["held"].items()),
    ]
    return [Table(tuple(rows), ("votes", ""), wraps=(1,))]


def _remedies(found: list[Remedy]) -> Table:
    rows = tuple((one.knob, one.value, size(round(one.needed_bytes))) for one in found)
    return Table(rows, ("what would fit", "", "needs"), right=(2,))


def _error(planned: Forecast, past: list[Compared]) -> list[Table | str]:
    """How far off the forecast may be: by past runs, by the benchmark, or that nobody knows."""
    if not planned.setting.device.measured:
        return [
            "Not measured here: the maker's figures of the device, and an assumed share of its peak of "
            f"{100 * planned.utilization.low:.0f} to {100 * planned.utilization.high:.0f} %."
        ]
    if not past:
        return ["No finished run in this store to compare with: the range is that of benchmarks/speed/plan.py."]
    rows = tuple(
        (
            short_id(one.run_id),
            one.model,
            duration(PROCESSOR.middle * one.ideal_s),
            duration(one.measured_s),
            f"{one.measured_s / (PROCESSOR.middle * one.ideal_s):.2f}",
            "" if one.measured_bytes is None else f"{one.measured_bytes / one.predicted_bytes:.2f}",
        )
        for one in past
    )
    header = ("past run", "model", "steps, predicted", "measured", "ratio", "memory, ratio")
    table = Table(rows, header, right=(2, 3, 4, 5))
    spread = spread_of([one.measured_s / (PROCESSOR.middle * one.ideal_s) for one in past])
    if spread is None:
        return [table, "Fewer than three past runs: they do not correct the forecast yet."]
    said = f"Measured by predicted, of {plural(len(past), 'run')}: {_ratio(spread)}; the forecast is corrected by it."
    return [table, said]


def _span(seconds: Range) -> str:
    return f"{duration(seconds.middle)} [{duration(seconds.low)}, {duration(seconds.high)}]"


def _money(cost: Range) -> str:
    return f"{number(cost.middle, 2)} [{number(cost.low, 2)}, {number(cost.high, 2)}]"


def _ratio(spread: Range) -> str:
    return f"{spread.middle:.2f} [{spread.low:.2f}, {spread.high:.2f}]"


def _option(one: Remedy) -> str:
    return f"--{one.knob.replace('_', '-')} {one.value}"


def _data(planned: Forecast, counted: Counted, past: list[Compared]) -> Json:
    setting = planned.setting
    return {
        "fits": planned.fits,
        "model": asdict(setting.shape) | {"num_parameters": setting.shape.num_parameters},
        "device": asdict(setting.device),
        "dtype": setting.dtype,
        "rank": setting.rank,
        "token_budget": setting.token_budget,
        "counted": counted.how,
        "influence": counted.heard,
        "work": asdict(planned.work),
        "operations": planned.operations,
        "memory_bytes": asdict(planned.memory)
        | {"total": planned.memory.total, "limit": FITS * setting.device.memory_bytes},
        "recomputed": planned.recomputed,
        "activations_checkpointed_bytes": planned.checkpointed_bytes,
        "ideal_s": planned.ideal_s,
        "seconds": asdict(planned.seconds),
        "utilization": asdict(planned.utilization),
        "cost": None if planned.cost is None else asdict(planned.cost),
        "measured": setting.device.measured,
        "past": [asdict(one) for one in past],
    }
