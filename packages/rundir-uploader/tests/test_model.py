"""Random writes, renames, deletes, crashes and outages against what must hold at every flush."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from rundir_uploader import Pacing
from rundir_uploader.conditions import Conditions
from rundir_uploader.destination import Destination
from rundir_uploader.manifest import read_merged
from rundir_uploader.session import Session, SessionPlan
from rundir_uploader.settings import MirrorSettings
from stretto.object_store import MemoryStore, PutResult, TransientError

NAMES = st.sampled_from(["a", "b", "c.pt", "d/e", "d/f", "d/.metadata", "g/h/i", "g/h/j"])
LINKS = st.sampled_from(["latest", "d/link"])
SIZES = st.sampled_from([0, 1, 100, 5000, 70_000])
QUICK = Pacing(settle=0.0, max_settle=0.1)


class ModelStore(MemoryStore):
    """Keeps every version that was ever put, and can be down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.history: dict[str, list[bytes]] = {}

    def put(self, key, source, **keywords) -> PutResult:
        if self.down:
            raise TransientError("down")
        data = source if isinstance(source, bytes) else source.readall()
        self.history.setdefault(key, []).append(data)
        return super().put(key, data, **keywords)


class MirrorMachine(RuleBasedStateMachine):
    """The directory, the mirror and the store, and everything that may happen to them."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.run = self.folder / "run"
        self.run.mkdir()
        self.store = ModelStore()
        self.versions: dict[str, set[bytes]] = {}
        self.open()

    def open(self) -> None:
        self.session = Session(
            SessionPlan(
                mirror=MirrorSettings(
                    directory=self.run, pacing=QUICK, num_concurrent_uploads=3, scan_interval=0.05
                ),
                destination=Destination.of(self.store),
                probe=False,
                check=False,
                strict=False,
            ),
            lambda _level, _sentence: None,
        )
        self.session.start()

    def note(self, path: Path) -> None:
        if path.is_file() and not path.is_symlink():
            self.versions.setdefault(path.relative_to(self.run).as_posix(), set()).add(
                path.read_bytes()
            )

    def make_way(self, name: str) -> Path:
        path = self.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        return path

    @rule(name=NAMES, size=SIZES)
    def replace(self, name: str, size: int) -> None:
        path = self.make_way(name)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(os.urandom(size))
        temporary.replace(path)
        self.note(path)

    @rule(name=NAMES, size=SIZES)
    def append(self, name: str, size: int) -> None:
        path = self.make_way(name)
        path.unlink() if path.is_symlink() else None
        with path.open("ab", buffering=0) as file:
            file.write(os.urandom(size))
        self.note(path)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        (self.run / name).unlink(missing_ok=True)

    @rule(old=NAMES, new=NAMES)
    def rename(self, old: str, new: str) -> None:
        if old != new and (self.run / old).is_file():
            path = self.make_way(new)
            (self.run / old).replace(path)
            self.note(path)

    @rule(name=NAMES)
    def touch(self, name: str) -> None:
        if (self.run / name).is_file():
            os.utime(self.run / name, ns=(1, 1))

    @rule(link=LINKS, goal=NAMES)
    def point(self, link: str, goal: str) -> None:
        path = self.make_way(link)
        path.unlink(missing_ok=True)
        path.symlink_to(os.path.relpath(self.run / goal, path.parent))

    @rule()
    def trigger(self) -> None:
        self.session.mirror.trigger()

    @rule(down=st.booleans())
    def outage(self, down: bool) -> None:
        self.store.down = down

    @rule(cut=st.integers(0, 400))
    def crash(self, cut: int) -> None:
        """Stop without a last scan, and lose the end of the journal."""
        self.session.abandon()
        for journal in (self.run / ".rundir-uploader").glob("journal-*"):
            size = journal.stat().st_size
            os.truncate(journal, max(0, size - cut))
        self.open()

    @rule()
    def flush(self) -> None:
        self.store.down = False
        missing = self.session.flush(timeout=30)
        assert missing == []
        self.check()

    def check(self) -> None:
        links = {}
        for path in self.run.rglob("*"):
            name = path.relative_to(self.run).as_posix()
            if name.startswith(".rundir-uploader") or name.endswith(".tmp"):
                continue
            if path.is_symlink():
                if path.resolve().is_file():
                    links[name] = path.resolve().relative_to(self.run.resolve()).as_posix()
            elif path.is_file():
                assert self.store.get(name).read() == path.read_bytes(), name
        for name, target in links.items():
            assert self.store.get(f"{name}.symlink").read().decode() == target
        records = read_merged(self.store, "").records
        for name, record in records.items():
            if record.kind.value == "file" and record.deleted_at is None:
                assert (self.run / name).is_file()

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        self.store.down = False
        assert self.session.close(timeout=30) == []
        self.check()
        for key, stored in self.store.history.items():
            if ".rundir-uploader/" in key or key.endswith(".symlink"):
                continue
            for data in stored:
                assert data in self.versions[key], f"{key}: something that was never the file"
        shutil.rmtree(self.folder)


TestMirrorMachine = MirrorMachine.TestCase
TestMirrorMachine.settings = settings(
    max_examples=int(os.environ.get("MODEL_EXAMPLES", "25")),
    stateful_step_count=25,
    deadline=None,
    # What threads do differs from run to run, so a smaller example would prove nothing.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


def test_conditions_are_told_once_each() -> None:
    said: list[str] = []
    conditions = Conditions(lambda level, sentence: said.append(f"{level}: {sentence}"))
    for _ in range(5):
        conditions.begin("store:X", "down")
    assert conditions.holds("store:")
    conditions.end_all("store:", "up")
    conditions.end_all("store:", "up")
    conditions.begin("store:X", "down")
    assert said == ["warning: down", "info: up", "warning: down"]
