"""Models: the sizes that the papers state, no mixing of records, no touch of global random state."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.core.check import Refused
from discreet.data import MODELS, build, load, parameters

GREY, COLOUR, DIGITS, ADULT = (1, 28, 28), (3, 32, 32), (1, 8, 8), (107,)

COUNTS = [
    ("logistic", ADULT, 2, 108),
    ("softmax", DIGITS, 10, 650),
    ("softmax", GREY, 10, 7850),
    ("head", (2000,), 10, 20_010),
    ("mlp", GREY, 10, 118_282),
    ("mlp", ADULT, 2, 30_594),
    ("cnn-digits", DIGITS, 10, 14_698),
    ("cnn-d2p2", GREY, 10, 33_194),
    ("cnn-d2p2", COLOUR, 10, 33_482),
    ("cnn-550k", COLOUR, 10, 550_570),
    ("cnn-small", GREY, 10, 26_010),
    ("cnn-geodp", GREY, 10, 21_840),
    ("cnn-scatter", (243, 8, 8), 10, 187_210),
    ("resnet20", COLOUR, 10, 269_722),
    ("transformer", GREY, 10, 68_810),
]
SMALLEST = {
    "logistic": (1,),
    "softmax": (1,),
    "head": (1,),
    "mlp": (1,),
    "cnn-digits": (1, 4, 4),
    "cnn-d2p2": (1, 8, 8),
    "cnn-550k": (1, 8, 8),
    "cnn-small": (1, 16, 16),
    "cnn-geodp": (1, 16, 16),
    "cnn-scatter": (1, 2, 2),
    "resnet20": (1, 8, 8),
    "transformer": (1, 4, 4),
}


@pytest.mark.parametrize(("name", "shape", "classes", "wanted"), COUNTS)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, wanted: int) -> None:
    assert parameters(build(name, shape=shape, classes=classes)) == wanted


def test_the_counts_agree_with_the_papers() -> None:
    by_name = {(name, shape): wanted for name, shape, _, wanted in COUNTS}
    assert round(by_name["cnn-550k", COLOUR] / 1000) == 551  # "550K" in Table 1 of the random-freeze paper
    assert round(by_name["cnn-scatter", (243, 8, 8)] / 1000) == 187  # "187K" in the same table
    assert by_name["cnn-geodp", GREY] == 21_840  # "21,840 dimensions" in the GeoDP paper
    # Table 5 of the D2P2-SGD paper: filters of 3x3 over 1, 16, 32, 32 channels, then 64 units to 10.
    table = [(1, 16), (16, 32), (32, 32), (32, 64)]
    assert by_name["cnn-d2p2", GREY] == sum(9 * a * b + b for a, b in table) + 64 * 10 + 10
    assert {name for name, *_ in COUNTS} == set(MODELS)


def per_record(model: nn.Module, x: Tensor) -> bool:
    """Whether the scores of every other record stay the same, bit for bit, when record 1 changes."""
    other = x.clone()
    other[1] = 1 - other[1]
    rest = [0, 2, 3]
    with torch.no_grad():
        return torch.equal(model(x)[rest], model(other)[rest])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["smallest", "usual"])
def test_scores_gradients_and_no_mixing_of_records(name: str, side: str) -> None:
    classes = 2 if name == "logistic" else 7
    shape = SMALLEST[name] if side == "smallest" else DIGITS if name == "cnn-digits" else GREY
    model = build(name, shape=shape, classes=classes, seed=1)
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    scores = model(x)
    assert scores.shape == (4, classes)
    assert scores.isfinite().all()
    F.cross_entropy(scores, torch.arange(4) % classes).backward()
    for label, p in model.named_parameters():
        assert p.grad is not None, label
        assert p.grad.isfinite().all(), label
    assert per_record(model, x)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def test_batch_normalisation_would_be_caught() -> None:
    mixing = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 2))
    assert not per_record(mixing, torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", ["cnn-550k", "cnn-small", "cnn-geodp", "cnn-scatter", "resnet20", "transformer"])
def test_images_need_not_be_square(name: str) -> None:
    assert build(name, shape=(2, 24, 36), classes=3)(torch.zeros(2, 2, 24, 36)).shape == (2, 3)


def weights(name: str, seed: int | None) -> Tensor:
    model = build(name, shape=GREY, classes=10, seed=seed)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("logistic", "head")])
def test_a_seed_fixes_the_weights_and_leaves_the_global_state_alone(name: str) -> None:
    before = torch.get_rng_state()
    first = weights(name, 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(weights(name, 5), first)
    assert not torch.equal(weights(name, 6), first)
    assert not torch.equal(weights(name, 5 + 2**32), first)  # torch alone would drop the upper half of a seed


def test_a_head_starts_at_zero_and_takes_half_precision() -> None:
    head = build("head", shape=(6,), classes=3, seed=0)
    assert not any(p.any() for p in head.parameters())
    assert head(torch.ones(2, 6, dtype=torch.float16)).dtype == torch.float32


def test_without_a_seed_torch_is_as_torch_is() -> None:
    before = torch.get_rng_state()
    first = weights("softmax", None)
    assert not torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(weights("softmax", None), first)


def test_logistic_is_the_binary_logistic_loss() -> None:
    model = build("logistic", shape=(5,), classes=2, seed=0)
    x, y = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 2
    scores = model(x)
    assert (scores[:, 0] == 0).all()
    wanted = F.binary_cross_entropy_with_logits(scores[:, 1], y.float(), reduction="none")
    torch.testing.assert_close(F.cross_entropy(scores, y, reduction="none"), wanted)


def test_order_of_patches_is_seen() -> None:
    vision = build("transformer", shape=DIGITS, classes=10, seed=0)
    x = torch.rand(1, *DIGITS, generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(vision(x), vision(x.roll(2, dims=3)))


@pytest.mark.parametrize(
    ("name", "shape", "classes", "says"),
    [
        ("resnet50", GREY, 10, "logistic, softmax, head, mlp.*transformer"),
        ("logistic", GREY, 10, "use softmax"),
        ("cnn-d2p2", ADULT, 2, "image shape"),
        ("cnn-550k", (1, 7, 28), 10, "at least 8"),
        ("cnn-small", DIGITS, 10, "at least 16"),
        ("cnn-geodp", (1, 28, 15), 10, "at least 16"),
        ("cnn-digits", (1, 3, 8), 10, "at least 4"),
        ("resnet20", (3, 4, 4), 10, "at least 8"),
        ("transformer", (1, 30, 30), 10, "patches of 4"),
        ("softmax", (), 10, "without the batch axis"),
        ("softmax", (1, 0), 10, "whole number"),
        ("softmax", GREY, 0, "classes"),
    ],
)
def test_refusals(name: str, shape: tuple[int, ...], classes: int, says: str) -> None:
    with pytest.raises(Refused, match=says):
        build(name, shape=shape, classes=classes)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(Refused, match="seed"):
        build("softmax", shape=GREY, classes=10, seed=-1)


@pytest.mark.parametrize(("name", "steps", "least"), [("softmax", 150, 0.93), ("cnn-digits", 60, 0.95)])
def test_digits_can_be_learnt(name: str, steps: int, least: float) -> None:
    """Full-batch gradient descent without privacy, everything seeded: no false alarms."""
    task = load("digits")
    model = build(name, shape=task.shape, classes=task.classes, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    (x, y), (x_test, y_test) = task.train.tensors, task.test.tensors

    def accuracy() -> float:
        with torch.no_grad():
            return float((model(x_test).argmax(1) == y_test).float().mean())

    assert accuracy() < 0.5
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert accuracy() >= least
