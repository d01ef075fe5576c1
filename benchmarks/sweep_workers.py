"""Many workers on one study in PostgreSQL, without training: how long do claims and heartbeats take, and are claims lost?

    python benchmarks/sweep_workers.py --workers 200 --storage postgresql://USER:PASSWORD@HOST/NAME

Every worker is a thread with a database of its own, as a process on another machine would have: it claims a trial, beats every
`--heartbeat` seconds for `--beats` times, completes it, and claims the next, until none waits. The server must allow more
connections than there are workers (max_connections), or a pool stands before it.
"""

import argparse
import statistics
import threading
import time
from dataclasses import replace

from sparseopt.lab.config.recipes import RECIPES
from sparseopt.lab.sweep.database import Database
from sparseopt.lab.sweep.definition import Definition
from sparseopt.lab.sweep.plan import Runs
from sparseopt.lab.sweep.trials import COMPLETE, WORKER, Trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", required=True)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--trials", type=int, default=400, help="of all studies together")
    parser.add_argument("--studies", type=int, default=1, help="which the workers share out")
    parser.add_argument("--beats", type=int, default=2)
    parser.add_argument("--heartbeat", type=float, default=10.0)
    given = parser.parse_args()
    base = RECIPES["digits-mlp"]
    plan = Runs.of(
        [replace(base, seed=seed) for seed in range(given.trials // given.studies)], Definition("runs")
    )
    names = [f"bench-{time.time_ns()}-{number}" for number in range(given.studies)]
    studies = [Trials.open(Database(given.storage), name, plan) for name in names]
    first: list[float] = []  # of every worker, while all begin
    later: list[float] = []
    completions: list[float] = []
    beats: list[float] = []
    claimed: list[tuple[int, str]] = []
    errors: list[str] = []

    def work(number: int) -> None:
        database = Database(given.storage)
        patience = database.patience
        own = patience(lambda: Trials(database, names[number % given.studies], plan))
        time.sleep(given.heartbeat * number / given.workers)  # workers do not start in one instant
        worker, claims = f"worker {number}", first
        while True:
            start = time.perf_counter()
            claim = patience(lambda: own.claim(worker, "elsewhere"))
            if claim is None:
                return
            claims.append(time.perf_counter() - start)
            claims = later
            claimed.append((claim.trial_id, worker))
            for beat in range(1, given.beats + 1):
                time.sleep(given.heartbeat)
                start = time.perf_counter()
                try:
                    own.beat(claim, beat, {beat: 0.5})
                except Exception as error:
                    errors.append(f"{type(error).__name__}: {error}"[:120])
                beats.append(time.perf_counter() - start)
            start = time.perf_counter()
            patience(
                lambda claim=claim: own.complete(claim, dict.fromkeys(range(1, given.beats + 1), 0.5), 1.0)
            )
            completions.append(time.perf_counter() - start)

    began, used = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(given.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    ended = [trial for study in studies for trial in study.all()]
    print(
        f"{given.workers} workers, {given.studies} studies, {len(ended)} trials, a beat every {given.heartbeat:g} s; "
        f"{seconds:.0f} s, of the client's CPU {time.process_time() - used:.0f} s"
    )
    measured = {"first claim": first, "later claim": later, "heartbeat": beats, "completion": completions}
    for what, times in measured.items():
        ordered = sorted(times) or [0.0]
        late, longest = ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]
        median = statistics.median(ordered)
        print(
            f"{what}: {len(ordered)} times, median {median:.3f} s, 99% {late:.3f} s, longest {longest:.3f} s"
        )
    twice = len(claimed) - len({trial for trial, _ in claimed})
    wrong = sum(dict(claimed).get(trial._trial_id) != trial.user_attrs.get(WORKER) for trial in ended)
    done = sum(trial.state == COMPLETE for trial in ended)
    print(f"complete {done} of {len(ended)}, claimed twice {twice}, under another's name {wrong}")
    print(f"failed beats {len(errors)} {set(errors) or ''}")


if __name__ == "__main__":
    main()
