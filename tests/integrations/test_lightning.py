"""Lightning: the same run as through `Private`, with automatic and manual optimization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("lightning", reason="needs the extra lightning")

import lightning
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

import loop
from discreet import Refused, Streams
from discreet.accounting.ledger import read
from discreet.integrations.lightning import PrivateModule

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Net(PrivateModule, lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = loop.model()

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def losses(self, batch: Any) -> Tensor:
        return loop.losses(self, *batch)

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("loss_of_public_records", loop.losses(self.net, *batch).mean())

    def configure_optimizers(self) -> Any:
        optimizer = loop.sgd(self.parameters())
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5), "interval": "step"}]


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> None:
        self.release()
        self.optimizers().step()
        self.lr_schedulers().step()


class Talkative(Net):
    def losses(self, batch: Any) -> Tensor:
        found = super().losses(batch)
        self.log("train_loss", found.mean())
        return found


def fit(net: Net, folder: Path, *, resume: Path | None = None, public: bool = False, **options: Any) -> Any:
    settings: dict[str, Any] = {"max_steps": loop.STEPS, "accelerator": "cpu", "enable_progress_bar": False}
    quiet = {"enable_model_summary": False, "enable_checkpointing": False, "log_every_n_steps": 1}
    logger = CSVLogger(folder)
    trainer = lightning.Trainer(**{**settings, **quiet, **options}, default_root_dir=folder, logger=logger)
    validation = DataLoader(loop.data(10), batch_size=5) if public else None
    trainer.fit(net, val_dataloaders=validation, ckpt_path=resume, weights_only=False if resume else None)
    return trainer


def made(kind: type[Net] = Net, seed: int = 7, **options: Any) -> Net:
    return kind().privately(loop.plan(), loop.data(), streams=Streams.seeded(seed), **options)


@pytest.mark.parametrize("kind", [Net, Manual])
def test_same_certificate_and_weights_as_private(kind: type[Net], tmp_path: Path) -> None:
    net = made(kind)
    fit(net, tmp_path, public=True)
    run = loop.private()
    schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 3, 0.5)
    for x, y in run:
        if run.step(loop.losses(run.model, x, y)):
            schedule.step()
    assert net.spent() == run.spent()
    assert torch.allclose(loop.weights(net.net), loop.weights(run.model), rtol=0, atol=1e-6)


def test_the_logger_sees_public_values_alone(tmp_path: Path) -> None:
    trainer = fit(made(), tmp_path, public=True)
    (file,) = Path(trainer.logger.log_dir).glob("metrics.csv")
    assert set(file.read_text().splitlines()[0].split(",")) <= {"epoch", "step", "loss_of_public_records"}
    with pytest.raises(Refused, match="'train_loss' inside losses"):
        fit(made(Talkative), tmp_path)


def test_the_plan_ends_the_training(tmp_path: Path) -> None:
    net = made(ledger=tmp_path / "ledger")
    trainer = fit(net, tmp_path, max_steps=-1, max_epochs=50)
    assert trainer.global_step == loop.STEPS
    assert read(tmp_path / "ledger").length == loop.STEPS


def test_checkpoints_continue_behind_lost_steps(tmp_path: Path) -> None:
    class Saved(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 3:
                trainer.save_checkpoint(tmp_path / "saved.ckpt")
            if trainer.global_step == 5:
                raise RuntimeError("crash")

    crashed = made(ledger=tmp_path / "ledger")
    with pytest.raises(RuntimeError, match="crash"):
        fit(crashed, tmp_path, callbacks=[Saved()])
    again = made(seed=8, ledger=tmp_path / "ledger")
    fit(again, tmp_path, resume=tmp_path / "saved.ckpt", max_steps=-1, max_epochs=50)
    assert [entry.step for entry in read(tmp_path / "ledger").entries] == list(range(loop.STEPS))
    assert again.private is not None
    assert again.private.updates == loop.STEPS - 2  # steps 3 and 4 are lost


def test_a_second_fit_does_not_spend_the_plan_again(tmp_path: Path) -> None:
    """It trained for as many steps again, and `spent` told of the last ones alone."""
    net = made()
    fit(net, tmp_path, max_steps=2)
    with pytest.raises(Refused, match="spent 2 steps"):
        fit(net, tmp_path)
    net.privately(loop.plan(), loop.data(), streams=Streams.seeded(8))  # another run on purpose
    fit(net, tmp_path)
    assert net.private is not None
    assert net.private.ledger.length == loop.STEPS


def test_a_loaded_module_begins_a_run_of_its_own(tmp_path: Path) -> None:
    fit(made(), tmp_path, max_steps=2).save_checkpoint(tmp_path / "saved.ckpt")
    net = Net.load_from_checkpoint(tmp_path / "saved.ckpt", weights_only=False)
    fit(net.privately(loop.plan(), loop.data(), streams=Streams.seeded(8)), tmp_path)
    assert net.private.ledger.length == loop.STEPS


class Stored(Net):
    """Logs what `losses` computed from the records, but later."""

    def losses(self, batch: Any) -> Tensor:
        self.last = super().losses(batch)
        return self.last

    def on_train_batch_end(self, *_: Any) -> None:
        self.log("steps", float(self.private.progress.step))  # type: ignore[union-attr]
        self.log("loss_of_records", self.last.mean())


def test_a_value_of_the_records_is_not_logged_later(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="public numbers, got 'loss_of_records', a Tensor"):
        fit(made(Stored), tmp_path)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "accumulation": ({"accumulate_grad_batches": 2}, "accumulate_grad_batches=1"),
    "scheduled accumulation": (
        {"callbacks": [GradientAccumulationScheduler({1: 2})], "max_epochs": 2},
        "no GradientAccumulationScheduler, got one.*leave it out",
    ),
    "clipping": ({"gradient_clip_val": 0.1}, "gradients that were written to since"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    with pytest.raises(Refused, match=message):
        fit(made(), tmp_path, **options)


def test_scheduled_accumulation_is_refused_before_it_charges(tmp_path: Path) -> None:
    net = made(ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(Refused, match="GradientAccumulationScheduler"):
        fit(net, tmp_path, callbacks=[GradientAccumulationScheduler({0: 2})])
    assert net.private is None


class Loaded(Net):
    def train_dataloader(self) -> Any:
        return DataLoader(loop.data(), batch_size=5)


class Counted(Net):
    def train_dataloader(self) -> Any:
        return DataLoader(range(len(loop.data())))


class Records(lightning.LightningDataModule):  # type: ignore[misc]
    train_dataloader = Loaded.train_dataloader


@pytest.mark.parametrize("given", ["argument", "datamodule", "method", "count"])
def test_lightning_gets_no_loader_of_records(given: str, tmp_path: Path) -> None:
    """The number of steps followed the number of records, and an own training_step logged losses of records."""
    net = made({"method": Loaded, "count": Counted}.get(given, Net))
    loader = DataLoader(loop.data(), batch_size=5)
    options: dict[str, Any] = {"argument": {"train_dataloaders": loader}, "datamodule": {"datamodule": Records()}}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, logger=False, **quiet)
    with pytest.raises(Refused, match="no training loader besides the records of privately"):
        trainer.fit(net, **options.get(given, {}))
    assert net.private is None


def test_a_module_needs_a_plan_and_losses(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="a plan and records"):
        fit(Net(), tmp_path)

    class Bare(PrivateModule, lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        forward, configure_optimizers = Net.forward, Net.configure_optimizers

    with pytest.raises(Refused, match="a module with losses"):
        fit(Bare().privately(loop.plan(), loop.data()), tmp_path)  # type: ignore[arg-type]
