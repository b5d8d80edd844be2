"""A release as bytes: as large as what is active, without indices, and whole or refused."""

from __future__ import annotations

import json

import pytest
import torch

from discreet.core.check import Refused
from discreet.core.streams import Stream, Streams
from discreet.engine.active import from_indices
from discreet.engine.layout import Layout, Mask
from discreet.methods.random_freeze import masks
from discreet.methods.random_freeze.selection import Granularity, RandomFreeze
from discreet.stages.values import Released, StepContext
from research.benchmarks import release_bytes

LAYOUT = Layout(("w", "b"), ((50, 60), (50,)))


def random_mask(rate: float, layout: Layout = LAYOUT, unit: Granularity = Granularity.ELEMENTS) -> Mask | None:
    streams = Streams.seeded(1)
    now = StepContext(step=0, steps_per_epoch=1, batch=1.0, layout=layout, streams=streams)
    return RandomFreeze(final_rate=rate, granularity=unit).mask(now)


def same(one: Released, other: Released) -> bool:
    return torch.equal(one.active, other.active) and torch.equal(one.value, other.value)


@pytest.mark.parametrize("unit", list(Granularity))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_there_and_back(unit: Granularity, dtype: torch.dtype) -> None:
    value = torch.randn(LAYOUT.size, dtype=dtype)
    for mask in (None, random_mask(0.5, unit=unit), from_indices(torch.tensor([0, 7, 3049]), LAYOUT)):
        sent = Released.on(mask, value.clone(), LAYOUT, 3.0)
        data = release_bytes.to_bytes(sent)
        masks.cached_mask.cache_clear()
        assert same(release_bytes.from_bytes(data, LAYOUT), sent)


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.99])
def test_the_size_is_that_of_what_is_active(rate: float) -> None:
    layout = Layout(("w",), ((1000, 1000),))
    value = torch.randn(layout.size)
    dense = len(release_bytes.to_bytes(Released(value, layout)))
    size = len(release_bytes.to_bytes(Released.on(random_mask(rate, layout), value, layout, 1.0)))
    assert size / dense <= (1 - rate) + 0.0005
    assert size / dense > (1 - rate) * 0.99


def test_the_key_is_that_of_the_mask_and_no_other() -> None:
    """Noise and sampling keep their keys; the key of a mask is a hash, from which no other key follows."""
    streams = Streams.seeded(1)
    data = release_bytes.to_bytes(Released.on(random_mask(0.5), torch.zeros(LAYOUT.size), LAYOUT, 1.0))
    name = json.loads(data.split(b"\n")[0])["mask"]
    assert bytes.fromhex(name["stream"]) == streams.mask.at(0).public_key
    for secret in (streams.noise, streams.sampling):
        with pytest.raises(Refused, match="secret"):
            _ = secret.public_key
        assert secret._key.hex() not in data.decode("latin1")
    again = Stream(bytes.fromhex(name["stream"]), name="mask", replayable=True)
    assert again.uniform64(3).tolist() == streams.mask.at(0).uniform64(3).tolist()


def test_what_is_not_whole_is_refused() -> None:
    data = release_bytes.to_bytes(Released.on(random_mask(0.5), torch.ones(LAYOUT.size), LAYOUT, 1.0))
    for broken in (data[:-1], data + b"0", data[:-4]):
        with pytest.raises(Refused, match="send the complete release"):
            release_bytes.from_bytes(broken, LAYOUT)
    for other in (b"", b"{}\n", b"\x80\x02.", b'{"format": "discreet release 2"}\n'):
        with pytest.raises(Refused, match="discreet release 1"):
            release_bytes.from_bytes(other, LAYOUT)
    with pytest.raises(Refused, match="for this layout"):
        release_bytes.from_bytes(data, Layout(("w", "b"), ((60, 50), (50,))))


def test_nothing_is_kept_of_frozen_coordinates() -> None:
    mask = random_mask(0.9)
    sent = Released.on(mask, torch.full((LAYOUT.size,), 7.0), LAYOUT, 1.0)
    assert len(sent.active) == round(0.1 * LAYOUT.size)
    assert int((sent.value != 0).sum()) == len(sent.active)
