"""How the process that uploads reads chunks: neighbors together, and what it cannot read is requested from the daemon."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_gpuckpt.daemon.remotes import sending, upload_worker
from jupyter_gpuckpt.daemon.remotes.upload_worker import Source
from jupyter_gpuckpt.errors import ObjectCorrupt, error_from
from jupyter_gpuckpt.store import manifests, packs
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.remote_records import Remote
from tests.remote.conftest import memory_bucket
from tests.remote.stores import FACTS, Machine
from tests.unit.test_store_local import manifest


class Daemon:
    """The daemon's side of the socket."""

    def __init__(self, store):
        self.store = store
        self.asked = []

    def ask(self, question):
        self.asked.append(question)
        answer = sending.answer(self.store, question)
        if isinstance(answer, sending.Refused):
            raise error_from(answer.error)
        return answer

    def wait_while_held(self):
        pass

    @property
    def read(self):
        """The digests of the chunks that were requested."""
        return {one.digest for one in self.asked if isinstance(one, sending.Read)}


class Uploading:
    """A source of one pack, whose chunks have from 1 byte to more than is read at a time."""

    def __init__(self, folder):
        self.machine = Machine(memory_bucket(), folder)
        chance = random.Random(1)
        lengths = [1, 90_000, 5 << 20, 300_000, *[200_000] * 40]
        self.chunks = {digest_of(one): one for one in map(chance.randbytes, lengths)}
        store = self.machine.store
        with store.writer() as writer:
            for digest, chunk in self.chunks.items():
                writer.append_all([Record(digest, chunk, len(chunk), RAW)])
        store.publish(manifest("s1", *self.chunks.values()))
        self.daemon = Daemon(store)
        info, content = store.manifest("s1").info, store.manifest_file("s1")
        task = sending.Task("", Remote("b", "file:///b"), FACTS, info, content)
        self.source = Source(self.daemon, task)
        self.places = list(self.source.locate(manifests.references(store.manifest("s1"))))
        assert len({place.pack for place in self.places}) == 1

    def read(self, digests):
        return {digest: bytes(self.source.read(digest)[1]) for digest in digests}

    def change(self, offset, content):
        with open(self.places[0].pack, "r+b") as file:
            file.seek(offset)
            file.write(content)


@pytest.fixture
def uploading(tmp_path):
    found = Uploading(tmp_path)
    yield found
    found.machine.close()


def test_neighbors_are_read_together_by_several_threads(uploading, monkeypatch):
    reads = []
    read_span = packs.read_span

    def counted(path, offset, into):
        reads.append(len(into))
        return read_span(path, offset, into)

    monkeypatch.setattr(upload_worker.packs, "read_span", counted)
    digests = [place.digest for place in uploading.places]
    assert uploading.read(digests) == uploading.chunks
    assert len(reads) == 5  # two small ones, the long one alone, and three times what follows it
    assert max(reads) > 5 << 20
    assert sorted(reads)[-2] <= 4 << 20
    with ThreadPoolExecutor(4) as pool:
        shuffled = [random.Random(seed).sample(digests, len(digests)) for seed in range(8)]
        assert all(found == uploading.chunks for found in pool.map(uploading.read, shuffled))
    assert not uploading.daemon.read


def test_a_record_that_changed_is_requested_and_its_neighbors_are_not(uploading):
    changed = uploading.places[10]
    uploading.change(changed.offset - packs.RECORD_BYTES, b"none")
    with pytest.raises(ObjectCorrupt, match=changed.digest.hex()[:16]):
        uploading.source.read(changed.digest)
    others = uploading.chunks.keys() - {changed.digest}
    assert uploading.read(others) == {one: uploading.chunks[one] for one in others}
    assert uploading.daemon.read == {changed.digest}


def test_chunks_of_a_pack_that_is_gone_are_requested(uploading):
    digest = uploading.places[5].digest
    uploading.source._places[digest][0].path = "/gone"
    assert uploading.read([digest]) == {digest: uploading.chunks[digest]}
    assert uploading.daemon.read == {digest}
