"""Files are whole or not there, however many write them at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sparseopt.lab.system.files import alone_in, read_json, remove_temporary, write_bytes, write_json

WRITERS = 4


def test_of_several_writers_one_has_written_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    contents = [bytes([65 + number]) * 100_000 for number in range(WRITERS)]
    write_bytes(path, contents[0])
    seen = set()

    def work(number: int) -> None:
        for _ in range(20):
            write_bytes(path, contents[number])
            seen.add(path.read_bytes())

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, range(WRITERS)))
    assert seen <= set(contents)
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_read_and_written_anew_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "count.json"
    write_json(path, {})

    def add(number: int) -> None:
        for index in range(10):
            with alone_in(tmp_path):
                write_json(path, {**read_json(path), f"{number}-{index}": True})

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(add, range(WRITERS)))
    assert len(read_json(path)) == WRITERS * 10


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".metrics.jsonl.0123456789ab.tmp").write_bytes(b"half")
    (tmp_path / ".hidden").write_bytes(b"not ours")
    remove_temporary(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".hidden"]
