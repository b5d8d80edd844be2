"""Other libraries on the same work, if installed: pip install -c constraints.txt -e '.[bench]'."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import nn

from discreet.data.features.vision_operators import declare_vision_operators
from research.benchmarks.models import Task
from research.benchmarks.rows import BY_HAND, CLIP, NOISE, OWN, RATE, AbsentError, Row, Step


def _module(name: str) -> Any:
    """A peer's module; its warnings are suppressed, as they do not concern speed."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise AbsentError("not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _fixed(model: nn.Module) -> nn.Module:
    """A copy with Opacus's own attention and recurrent layers, put in by `fix`."""
    validator = _module("opacus.validators").ModuleValidator
    fixed: nn.Module = model if validator.is_valid(model) else validator.fix(model)
    return fixed


def opacus_hooks(task: Task) -> Step:
    """Opacus 1.6, per-sample gradients by hooks."""
    model = _module("opacus").GradSampleModule(_fixed(task.model))
    optimizer = _module("opacus.optimizers").DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=task.batch,
    )

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(task.inputs), task.labels).backward()
        optimizer.step()

    return step


def opacus_ghost(task: Task) -> Step:
    """Opacus 1.6, ghost clipping: norms in a first backward pass, the clipped sum in a second."""
    module = _module("opacus.grad_sample.grad_sample_module_fast_gradient_clipping")
    optimizers = _module("opacus.optimizers.optimizer_fast_gradient_clipping")
    losses = _module("opacus.utils.fast_gradient_clipping_utils")
    model = module.GradSampleModuleFastGradientClipping(_fixed(task.model), max_grad_norm=CLIP)
    optimizer = optimizers.DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=task.batch,
    )
    criterion = losses.DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(task.inputs), task.labels).backward()
        optimizer.step()

    return step


def fast_dp(task: Task) -> Step:
    """fastDP, its default: mixed ghost clipping with book-keeping."""
    declare_vision_operators()  # it imports transformers, whatever the model
    engine = _module("fastDP").PrivacyEngine(
        task.model,
        batch_size=task.batch,
        sample_size=100 * task.batch,
        epochs=1,
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        clipping_fn="Abadi",
        clipping_style="all-layer",
    )
    optimizer = torch.optim.SGD(task.model.parameters(), lr=RATE)
    engine.attach(optimizer)

    def step() -> None:
        F.cross_entropy(task.model(task.inputs), task.labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    trained = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    step()
    still = sum(map(torch.equal, before, trained))
    if still:  # another, smaller training: no comparison
        raise AbsentError(f"leaves {still} of {len(before)} parameters untrained")
    return step


@final
class JaxStep:
    """A step of JAX Privacy with its own clipping and noise, compiled whole; `parameters` are JAX arrays."""

    def __init__(self, task: Task) -> None:
        library, self._jax = _module("jax_privacy"), _module("jax")
        models = importlib.import_module("research.benchmarks.models.in_jax")
        forward = models.forward_of(task.model)

        def loss(parameters: Any, inputs: Any, labels: Any) -> Any:
            scores = self._jax.nn.log_softmax(forward(parameters, inputs))
            return -self._jax.numpy.take_along_axis(scores, labels[:, None], axis=1).mean()

        gradient = library.clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=task.batch, batch_argnums=(1, 2))
        noise = library.noise_addition.gaussian_privatizer(stddev=NOISE * CLIP / task.batch, prng_key=0)

        def step(parameters: Any, state: Any, inputs: Any, labels: Any) -> Any:
            noisy, state = noise.update(gradient(parameters, inputs, labels), state)
            return self._jax.tree.map(lambda old, move: old - RATE * move, parameters, noisy), state

        self.parameters = models.parameters_of(task.model)
        self._state = noise.init(self.parameters)
        self._batch = models.batch_of(task.inputs), models.batch_of(task.labels)
        ready = self._jax.jit(step, donate_argnums=(0, 1))  # in place, as torch updates
        self._step = ready.lower(self.parameters, self._state, *self._batch).compile()

    def __call__(self) -> None:
        self.parameters, self._state = self._step(self.parameters, self._state, *self._batch)
        self._jax.block_until_ready(self.parameters)


def jax_privacy(task: Task) -> Step:
    """JAX Privacy 2 on the same model in JAX, with its default settings; compiling is not in the time.

    Threads: XLA makes its pool once in a process, at the first array. It takes as many as `PJRT_NPROC` says, here
    PyTorch's number, where nobody has set it.
    """
    os.environ.setdefault("PJRT_NPROC", str(torch.get_num_threads()))
    return JaxStep(task)


ROWS: tuple[Row, ...] = (
    *OWN,
    Row(name="opacus", about="Opacus hooks", make=opacus_hooks, is_peer=True),
    Row(name="opacus-ghost", about="Opacus ghost", make=opacus_ghost, is_peer=True),
    Row(name="fastdp", about="fastDP", make=fast_dp, is_peer=True),
    BY_HAND,
    Row(name="jax-privacy", about="JAX Privacy", make=jax_privacy, is_peer=True),
)
