"""Runtime checks for runs that are certified only for their final parameters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discreet.core import check
from discreet.core.relation import Neighbouring
from discreet.core.world import World
from discreet.engine.shards.local import gradient_like
from discreet.methods.dpsgd_dc.analysis import LastIterate, only
from discreet.methods.dpsgd_dc.curvature import LinearModel, Link
from discreet.stages.analysis import RunGuard
from discreet.stages.plan import Plan, Recipe
from discreet.stages.sampling import FullBatch
from discreet.stages.values import Released

_INSIDE = 1 - 2**-20  # float32 may round a norm upwards


class ClippedFeatures(nn.Module):
    """Flattens each record's features and clips them to norm `bound`.

    Guarantee: every row of the output has norm at most `bound`. A row with non-finite entries becomes zero.

    The layer is part of the model, so it also clips the features at inference.
    """

    def __init__(self, bound: float) -> None:
        super().__init__()
        check.positive("choose a public bound on the norm of the features, e.g. 1.0", bound=bound)
        self._bound = float(bound)

    @property
    def bound(self) -> float:
        """The public bound on the norm of the features."""
        return self._bound

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        # Scale first, because squares of large entries would overflow.
        largest = rows.abs().amax(1, keepdim=True).clamp(min=1.0)
        norms = (rows / largest).double().norm(dim=1, keepdim=True) * largest
        factor = (self._bound * _INSIDE / norms).clamp(max=1.0).to(rows.dtype)
        finite = norms.isfinite()
        zero = rows.new_zeros(())
        clipped: Tensor = rows.where(finite, zero) * factor.where(finite, zero)
        return clipped

    def extra_repr(self) -> str:
        return f"bound={self._bound:g}"


_FULL_PRECISION = (torch.float32, torch.float64)
_TOLERANCE = 1e-3  # float32 losses and gradients agree to about 1e-6
_ROUNDINGS = 8  # an update rounds about four times; fused kernels round in another order


@final
class LastIterateGuard(RunGuard):
    """Checks for `LastIterate`: plain SGD with the stated learning rate, one process, no average, the stated loss.

    What a step of the optimizer does, with all hooks, is checked by `exact_update`.
    """

    def __init__(self, plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert isinstance(plan.analysis, LastIterate)
        self._plan, self._analysis, self._optimizer = plan, plan.analysis, optimizer
        self._scores: Tensor | None = None
        self._features: Tensor | None = None
        self._calls, self._bound = 0, float("inf")
        self._handle: Any = None
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._after: list[Tensor] | None = None  # the trained parameters after the last step
        self.release()
        for name, parameter in model.named_parameters():
            expected, got = "trainable parameters in float32 or float64", f"{name} of {parameter.dtype}"
            remedy = "use model.float(): rounding in half precision can remove the noise"
            only(parameter.dtype in _FULL_PRECISION or not parameter.requires_grad, expected, got, remedy)
        curvature = plan.analysis.curvature
        if isinstance(curvature, LinearModel):
            self._link, self._bound = curvature.link, curvature.features
            self._handle = linear_layer(model, curvature).register_forward_hook(_ForwardHook(self))

    def begin(self, average: float | None, schedulers: Sequence[Any], views: int, world: World) -> None:
        """Refuse an average, learning-rate schedulers, several processes, and several views with a linear model."""
        only(average is None, "no average of parameters", f"average={average}", "remove the average")
        expected = f"the learning rate {self._analysis.learning_rate:g} at every step"
        only(not schedulers, expected, "a learning-rate scheduler", "remove the scheduler")
        only(world.size == 1, "one process", f"{world.size} processes", "train in one process")
        remedy = "use views=1, or state the smoothness instead (Assumed)"
        only(views == 1 or self._handle is None, "one view of each record", f"views={views}", remedy)

    def data(self, size: int) -> None:
        """Refuse a dataset larger than `records`, which full-batch plans under add/remove divide by."""
        if isinstance(self._plan.sampling, FullBatch) and self._plan.relation is Neighbouring.ADD_REMOVE:
            self._plan.horizon.check_at_most(size)

    def losses(self, losses: Tensor) -> None:
        """Check the optimizer and the loss before the batch is added, so that a wrong setting can still be corrected.

        Guarantee: with the stated loss, the result of the check does not depend on any record.
        """
        scores, features, calls = self._scores, self._features, self._calls
        self._scores, self._features, self._calls = None, None, 0
        self.release()
        full = losses.dtype in _FULL_PRECISION and not torch.is_autocast_enabled(losses.device.type)
        remedy = "train in float32: autocast makes the gradient discontinuous"
        only(full, "losses in float32 or float64, without autocast", str(losses.dtype), remedy)
        if self._handle is None:
            return
        once = calls == 1 and features is not None and _are_features(features, self._bound)
        expected = "one call of the linear layer for each batch, on the clipped features"
        got = f"{calls} calls" if calls != 1 else "other features"
        only(once, expected, got, "call the model once and do not modify its features")
        stated = False
        if scores is not None and losses.requires_grad:
            (gradient,) = torch.autograd.grad(losses.sum(), scores, retain_graph=True, allow_unused=True)
            stated = gradient is not None and is_loss(self._link, scores.detach(), gradient, losses.detach())
        expected = f"the {self._link.value} loss of each record, computed from the linear layer's scores"
        plain = "use the plain loss with reduction='none', without weights or smoothing"
        only(stated, expected, "another loss", f"{plain}, or state the smoothness (Assumed)")

    @torch.no_grad()
    def updated(self) -> None:
        """Keep a copy of the trained parameters, to compare them before the next step."""
        self._after = [parameter.clone() for parameter in self._trained]

    def release(self) -> None:
        """Check the parameters, and that the optimizer is plain SGD with the stated settings in every group."""
        with torch._C.DisableTorchFunction():  # no calls to watch
            pairs = zip(self._trained, self._after or self._trained, strict=True)
            are_kept = all(torch.equal(now, after) for now, after in pairs)
        remedy = (
            "do not write to trained parameters, also if discreet.public declares them: noise of earlier steps hides "
            "them in these updates only"
        )
        only(are_kept, "the trained parameters as the last step left them", "others", remedy)
        optimizer, stated = self._optimizer, self._analysis
        remedy = "use plain SGD: other optimizers keep state of earlier parameters"
        only(type(optimizer) is torch.optim.SGD, "torch.optim.SGD", type(optimizer).__name__, remedy)
        for group in optimizer.param_groups:
            remedy = "set momentum=0: momentum keeps earlier gradients"
            only(group["momentum"] == 0, "SGD without momentum", f"momentum={group['momentum']}", remedy)
            only(not group["maximize"], "SGD that minimises", "maximize=True", "set maximize=False")
            expected = f"the learning rate {stated.learning_rate!r} that the certificate states"
            remedy = "reset the learning rate and keep it for the whole run"
            only(float(group["lr"]) == stated.learning_rate, expected, f"lr={float(group['lr'])!r}", remedy)
            expected = f"the weight decay {stated.decay!r} that the certificate states"
            remedy = "set the same weight decay in the optimizer and in LastIterate(decay=...)"
            only(group["weight_decay"] == stated.decay, expected, f"weight_decay={group['weight_decay']!r}", remedy)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def score(self, features: Tensor, scores: Tensor) -> None:
        """Store input and output of the linear layer, without a torch call: the engine traces every call."""
        if not torch.is_grad_enabled():
            return
        self._features, self._scores = features, scores
        self._calls += 1


@contextmanager
@torch.no_grad()
def exact_update(stated: LastIterate, parameters: Sequence[Tensor], released: Released) -> Iterator[None]:
    """Compare the optimizer step inside the block with x - learning_rate * (release + decay x).

    The noise hides earlier parameters only in this update. Hooks of the optimizer, or of all optimizers, a wrapped
    `step`, and settings that change during the step can make another one of it, such as one with less noise.

    Guarantee: after the block the parameters are those of this update, up to rounding, also if it raises an error.
    """
    rate, decay, exact, largest = stated.learning_rate, stated.decay, [], []
    for parameter, view in zip(parameters, released.views(), strict=True):
        gradient = gradient_like(parameter, view.to(parameter.dtype))  # used up before hooks can write to it
        exact.append(parameter * (1 - rate * decay) - rate * gradient)
        largest.append(parameter.abs() * (1 + rate * decay) + rate * gradient.abs())
    is_exact = False
    try:
        yield
        is_exact = all(
            bool(((found - one).abs() <= _ROUNDINGS * torch.finfo(found.dtype).eps * most).all())
            for found, one, most in zip(parameters, exact, largest, strict=True)
        )
    finally:
        if not is_exact:
            for found, one in zip(parameters, exact, strict=True):
                found.copy_(one)
    remedy = (
        "remove hooks and wrappers of optimizer.step that write to gradients, parameters or settings, such as gradient "
        "clipping, averaging or warm-up: the released gradient is clipped already"
    )
    expected = f"the update parameter - {rate:g} * (released gradient + {decay:g} * parameter)"
    only(is_exact, expected, "another update by optimizer.step()", remedy)


@final
class _ForwardHook:
    """The hook on the linear layer. Copying or pickling the model copies a hook that does nothing."""

    def __init__(self, guard: LastIterateGuard | None) -> None:
        self._guard = guard

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self._guard is not None:
            self._guard.score(inputs[0], output)

    def __deepcopy__(self, memo: Any) -> Self:
        return _ForwardHook(None)

    def __reduce__(self) -> Any:
        return _ForwardHook, (None,)


def linear_layer(model: nn.Module, curvature: LinearModel) -> nn.Linear:
    """Return the linear layer, which must directly follow ClippedFeatures and hold all trainable parameters."""
    expected = "an nn.Sequential with ClippedFeatures directly before an nn.Linear, the only trainable layer"
    remedy = "change the model, or state the smoothness of the losses instead (Assumed)"
    # Not `children()`, which lists a module once even if the model calls it twice.
    parts = list(model._modules.values()) if type(model) is nn.Sequential else []
    places = [place for place, part in enumerate(parts[:-1]) if type(part) is ClippedFeatures]
    only(len(places) == 1, expected, type(model).__name__, remedy)
    clipped, linear = parts[places[0]], parts[places[0] + 1]
    assert isinstance(clipped, ClippedFeatures)
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    if type(linear) is not nn.Linear or trained != {id(p) for p in linear.parameters()}:
        check.refuse(expected, f"{type(linear).__name__}, or other trainable parameters", remedy)
    elsewhere = [part for part in model.modules() if part is not linear]
    tied = any(id(p) in trained for part in elsewhere for p in part._parameters.values())
    only(parts.count(linear) == 1 and not tied, expected, "a layer or weight that is used twice", remedy)
    plain = linear._parameters.get("weight") is not None
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in (linear, clipped))
    only(plain and not hooked, expected, "a layer with hooks or a reparametrised weight", remedy)
    expected, got = f"features clipped to at most {curvature.features:g}", f"ClippedFeatures({clipped.bound:g})"
    only(clipped.bound <= curvature.features, expected, got, "use the same bound in the plan and in ClippedFeatures")
    got = "a linear layer with a bias"
    only(linear.bias is None or curvature.bias, "a linear layer without a bias", got, "use LinearModel(bias=True)")
    scores, expected = linear.out_features, f"one score for the {curvature.link.value} loss"
    remedy = "use nn.Linear(..., 1), or the softmax link"
    only(scores == 1 or not curvature.link.one_score, expected, f"{scores} scores", remedy)
    return linear


def _are_features(features: Tensor, bound: float) -> bool:
    """Whether no gradient flows into the features and no row exceeds the bound. NaN rows are ignored."""
    if features.requires_grad or features.dtype not in _FULL_PRECISION:
        return False
    return not bool((features.flatten(1).double().norm(dim=1) > bound * (1 + 1e-4)).any())


def fitting(model: nn.Module, of: Plan | Recipe) -> nn.Module:
    """Return the model, with clipped features if the certificate of the plan or recipe requires them."""
    analysis = of.analysis
    if isinstance(analysis, LastIterate) and isinstance(analysis.curvature, LinearModel):
        return with_clipped_features(model, analysis.curvature.features)
    return model


def with_clipped_features(model: nn.Module, bound: float) -> nn.Module:
    """Replace the nn.Flatten at the start of a linear model by ClippedFeatures; other models are refused.

    The names of the parameters do not change.
    """
    fits = type(model) is nn.Sequential and len(model) > 1 and type(model[0]) is nn.Flatten
    remedy = "choose one, or use --link none and state --smoothness, a bound for every loss"
    only(fits, "a linear model (logistic or softmax)", type(model).__name__, remedy)
    assert isinstance(model, nn.Sequential)
    return nn.Sequential(ClippedFeatures(bound), *list(model.children())[1:])


@torch.no_grad()
def is_loss(link: Link, scores: Tensor, gradient: Tensor, losses: Tensor) -> bool:
    """Whether the losses and their derivatives with respect to the scores are those of the link, for any labels.

    A record with non-finite scores or gradient is ignored, because it gets weight 0.
    """
    rows = losses.shape[0]
    if scores.shape != gradient.shape or scores.numel() == 0 or scores.shape[0] != rows:
        return False
    s, g, found = scores.reshape(rows, -1).double(), gradient.reshape(rows, -1).double(), losses.double()
    if link is Link.SQUARED:
        expected, fits = g[:, 0].square() / 2, torch.ones(rows, dtype=torch.bool, device=s.device)
    elif link is Link.LOGISTIC:
        label = s[:, 0].sigmoid() - g[:, 0]
        fits = (label - label.clamp(0, 1).round()).abs() <= _TOLERANCE
        expected = F.softplus(s[:, 0]) - label.clamp(0, 1).round() * s[:, 0]
    else:
        labels = s.softmax(1) - g
        one_hot = F.one_hot(labels.argmax(1), s.shape[1]).double()
        fits = (labels - one_hot).abs().amax(1) <= _TOLERANCE
        expected = s.logsumexp(1) - (s * one_hot).sum(1)
    close = (found - expected).abs() <= _TOLERANCE * (1 + s.abs().amax(1) + expected.abs())
    counts = s.isfinite().all(1) & g.isfinite().all(1)
    return bool((fits & close | ~counts).all())
