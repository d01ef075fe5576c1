"""Who works on which trial: claimed by one, given back, taken over, ended once; on SQLite and on PostgreSQL."""

import multiprocessing
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from sparseopt.lab.config.recipes import RECIPES, Config
from sparseopt.lab.errors import UserError
from sparseopt.lab.sweep.database import Database, beside
from sparseopt.lab.sweep.definition import Definition
from sparseopt.lab.sweep.grid import points, read_grid
from sparseopt.lab.sweep.plan import Runs, Search, described
from sparseopt.lab.sweep.space import read_space
from sparseopt.lab.sweep.trials import MOST_DEATHS, Lost, Trials

BASE = replace(RECIPES["digits-mlp"], epochs=3)


def grid_plan(*options: str, base: Config = BASE, retry_failed: bool = False) -> Runs:
    grid = read_grid(options)
    definition = Definition.of("grid", base, tuple(grid), {})
    return Runs.of(points(base, grid), definition, tuple(grid), retry_failed=retry_failed)


def search_plan(*options: str, trials: int, base: Config = BASE) -> Search:
    space = read_space(options)
    return Search(base, space, trials, Definition.of("search", base, tuple(space), described(space)))


@pytest.fixture
def join(storage: str) -> Iterator[Callable[..., Trials]]:
    """Opens a study of its own with a plan; called again, joins it."""
    database, name = Database(storage), f"study {secrets.token_hex(4)}"
    yield lambda plan: Trials.open(database, name, plan)
    database.close()


def test_a_trial_is_claimed_by_one_worker_and_ends_once(join: Callable[..., Trials]) -> None:
    trials = join(grid_plan("seed=0,1"))
    first, second = trials.claim("a", "machine"), trials.claim("b", "machine")
    assert first is not None
    assert second is not None
    assert {first.config.seed, second.config.seed} == {0, 1}
    assert trials.claim("c", "machine") is None
    trials.beat(first, 1, {1: 0.5})
    for _ in range(2):  # an answer may be lost, and the question repeated
        trials.complete(first, {1: 0.5, 2: 0.75}, seconds=3.0)
    complete, running = trials.all()
    assert (complete.state, complete.values) == (TrialState.COMPLETE, [0.75])
    assert complete.intermediate_values == {1: 0.5, 2: 0.75}
    assert running.state == TrialState.RUNNING


def test_a_claim_whose_answer_was_lost_is_the_same_claim(join: Callable[..., Trials]) -> None:
    trials = join(grid_plan("seed=0,1"))
    assert trials.claim("a", "machine") == trials.claim("a", "machine")


def test_one_that_was_taken_for_dead_notices_it(join: Callable[..., Trials]) -> None:
    trials = join(grid_plan("seed=0"))
    slow = trials.claim("slow", "machine")
    assert slow is not None
    (seen,) = trials.all()
    trials.beat(slow, 1, {})
    assert not trials.release_dead(seen)  # it has moved since
    (seen,) = trials.all()
    assert trials.release_dead(seen)
    quick = trials.claim("quick", "machine")
    assert quick is not None
    assert not trials.release_dead(seen)
    for act in (lambda: trials.beat(slow, 2, {}), lambda: trials.complete(slow, {1: 0.1}, seconds=1.0)):
        with pytest.raises(Lost):
            act()
    trials.give_back(slow.trial_id, slow.worker)  # is not its own to give
    trials.complete(quick, {1: 0.9}, seconds=1.0)
    assert [trial.values for trial in trials.all()] == [[0.9]]


def test_a_run_that_kills_its_workers_is_given_up_but_not_one_that_gets_on(
    join: Callable[..., Trials],
) -> None:
    trials = join(grid_plan("seed=0"))
    for death in range(2 * MOST_DEATHS):
        claim = trials.claim(f"worker {death}", "machine")
        assert claim is not None
        trials.beat(claim, 1, {min(death, MOST_DEATHS): 0.5})
        assert trials.release_dead(trials.all()[0])
    (trial,) = trials.all()
    assert trial.state == TrialState.FAIL
    assert f"{MOST_DEATHS} workers" in trial.user_attrs["reason"]


def open_study(url: str, name: str, start: Any) -> None:
    start.wait()
    database, plan = Database(url), grid_plan("seed=0,1,2,3", "correction=none,layer,global")
    database.patience(lambda: Trials.open(database, name, plan))


def test_a_study_that_all_open_at_once_has_every_point_once(storage: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sparseopt.lab.sweep"])
    name, start = f"study {secrets.token_hex(4)}", context.Event()
    processes = [context.Process(target=open_study, args=(storage, name, start)) for _ in range(6)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    database = Database(storage)
    trials = optuna.load_study(study_name=name, storage=database.storage).trials
    database.close()
    runs = [trial.user_attrs["run"] for trial in trials]
    assert len(runs) == len(set(runs)) == 12


def claim_all(url: str, name: str, start: Any, worker: str, claimed: Any) -> None:
    database = Database(url)
    trials = Trials(database, name, grid_plan("seed=0,1,2,3", "correction=none,layer,global"))
    start.wait()
    while claim := database.patience(lambda: trials.claim(worker, "machine")):
        trials.complete(claim, {1: 0.5}, seconds=1.0)
        claimed.put((claim.trial_id, worker))


def test_trials_that_many_claim_at_once_are_each_claimed_by_one(storage: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sparseopt.lab.sweep"])
    name, start, claimed = f"study {secrets.token_hex(4)}", context.Event(), context.SimpleQueue()
    database = Database(storage)
    trials = Trials.open(database, name, grid_plan("seed=0,1,2,3", "correction=none,layer,global"))
    processes = [
        context.Process(target=claim_all, args=(storage, name, start, f"worker {each}", claimed))
        for each in range(4)
    ]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    owners = [claimed.get() for _ in range(12)]
    assert claimed.empty()
    assert sorted(owners) == sorted((each._trial_id, each.user_attrs["worker"]) for each in trials.all())
    database.close()


def test_who_gave_a_trial_back_is_not_taken_for_the_owner_while_the_next_one_claims_it(
    join: Callable[..., Trials],
) -> None:
    trials = join(grid_plan("seed=0"))
    first = trials.claim("a", "machine")
    assert first is not None
    trials.give_back(first.trial_id, "a")
    trials.storage.set_trial_state_values(first.trial_id, TrialState.RUNNING)  # the first half of a claim
    with pytest.raises(Lost):
        trials.beat(first, 1, {})


def test_a_bigger_grid_adds_what_is_missing_and_a_smaller_one_works_on_its_own(
    join: Callable[..., Trials],
) -> None:
    small = join(grid_plan("seed=0"))
    assert small.claim("a", "machine") is not None
    big = join(grid_plan("seed=0,1", "correction=auto,layer"))
    assert [trial.state.name for trial in big.all()] == ["RUNNING", "WAITING", "WAITING", "WAITING"]
    assert small.claim("b", "machine") is None
    claimed = big.claim("b", "machine")
    assert claimed is not None
    assert (claimed.config.seed, claimed.config.correction) == (0, "layer")


def test_a_study_shows_its_grid_as_parameters(join: Callable[..., Trials]) -> None:
    trials = join(grid_plan("lr=0.1,0.2", "method=set", "ham=yes", "max_grad_norm=none,1", "hidden=64x32"))
    assert trials.all()[1].params == {"lr": 0.1, "method": "set", "ham": True, "max_grad_norm": 1.0}
    assert trials.all()[0].user_attrs["max_grad_norm"] == "none"
    assert trials.all()[0].user_attrs["hidden"] == "64x32"


@pytest.mark.parametrize(
    ("plan", "difference"),
    [
        (grid_plan("seed=0", base=replace(BASE, lr=0.2)), "lr is 0.1 there, 0.2 here"),
        (grid_plan("seed=0", base=replace(BASE, data="mnist")), "data is digits there, mnist here"),
        (search_plan("seed=0|1", trials=2), "it is a grid there, a search here"),
    ],
)
def test_another_sweep_is_refused_by_what_differs(plan: Any, difference: str, tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'study.db'}")
    Trials.open(database, "it", grid_plan("seed=0,1"))
    with pytest.raises(UserError, match=r"'it' in sqlite.* another sweep \((.*)\)") as caught:
        Trials.open(database, "it", plan)
    assert difference in str(caught.value)


def test_another_search_is_refused_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'study.db'}")
    Trials.open(database, "it", search_plan("lr=log:0.01:0.5", trials=2))
    with pytest.raises(UserError, match="search over lr"):
        Trials.open(database, "it", search_plan("lr=log:0.01:0.6", trials=2))
    assert len(Trials.open(database, "it", search_plan("lr=log:0.01:0.5", trials=5)).all()) == 5


def test_a_study_of_another_program_is_refused(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'study.db'}")
    optuna.create_study(study_name="it", storage=database.storage).ask()
    with pytest.raises(UserError, match=r"no sweep .*--name"):
        Trials.open(database, "it", grid_plan("seed=0"))


def test_a_search_gives_every_worker_values_of_its_own(join: Callable[..., Trials]) -> None:
    trials = join(search_plan("lr=log:0.01:0.5", "every=uniform:10:90", "method=set|rigl", trials=6))
    claims = [trials.claim(f"worker {number}", "machine") for number in range(6)]
    chosen = [claim.config for claim in claims if claim is not None]
    assert len({config.lr for config in chosen}) == 6
    assert all(0.01 <= config.lr <= 0.5 and 10 <= config.every <= 90 for config in chosen)
    assert {config.method for config in chosen} <= {"set", "rigl"}
    assert trials.claim("late", "machine") is None


def test_a_search_is_the_same_whoever_goes_on_with_it(tmp_path: Path) -> None:
    plan = search_plan("lr=log:0.01:0.5", "momentum=uniform:0:0.9", trials=1)
    configs = []
    for number in range(2):
        trials = Trials.open(Database(f"sqlite:///{tmp_path / f'{number}.db'}"), "it", plan)
        for worker in ("a", "b"):
            claim = trials.claim(worker, "machine")
            assert claim is not None
            configs.append(claim.config)
            trials.give_back(claim.trial_id, worker)
    assert len(set(configs)) == 1


def test_what_failed_is_tried_again_only_if_asked(join: Callable[..., Trials]) -> None:
    trials = join(grid_plan("seed=0"))
    claim = trials.claim("a", "machine")
    assert claim is not None
    for _ in range(2):
        trials.fail(claim, "the loss became nan")
    assert [trial.state.name for trial in join(grid_plan("seed=0")).all()] == ["FAIL"]
    again = join(grid_plan("seed=0", retry_failed=True))
    assert [trial.state.name for trial in again.all()] == ["WAITING"]
    assert again.claim("b", "machine") is not None


@pytest.mark.parametrize("name", ["what?", "100%20"])
def test_a_folder_that_no_url_can_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose"):
        beside(tmp_path / name)
